"""What can go wrong, in words for the person who can mend it.

Every error says what was found, what was expected and what to do.  Each class also derives from the builtin that a
Python programmer would catch, so ``except ValueError`` keeps working.
"""


class SemiarError(Exception):
    """Root of the family; the command line prints it as one line and exits with code 2."""

    def __init__(self, found: str, expected: str = "", hint: str = ""):
        self.found, self.expected, self.hint = found, expected, hint
        parts = [found]
        if expected:
            parts.append(f"expected {expected}")
        if hint:
            parts.append(hint)
        super().__init__("; ".join(parts))


class ConfigError(SemiarError, ValueError):
    """An option has a value that cannot be used."""


class DataError(SemiarError, ValueError):
    """A record or a data source cannot be read or has nothing to learn from."""


class SourceNotFound(SemiarError, FileNotFoundError):
    """A file, folder or hub id does not exist."""


class TargetError(SemiarError, ValueError):
    """A model cannot serve as a target (unknown format, no rollback, wrong adapter)."""


class PairError(SemiarError, ValueError):
    """A drafter, tokenizer and target do not belong together, or a pair's folder is damaged."""


class MissingDependency(SemiarError, ImportError):
    """An optional package is needed for what was asked."""


class TrainingError(SemiarError, RuntimeError):
    """A run cannot go on: a loss that is not finite, or a checkpoint of another run."""
