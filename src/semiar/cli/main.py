"""Entry point of the ``semiar`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from jsonargparse import ArgumentError, set_parsing_settings
from transformers.utils import logging

from semiar.cli import (
    advise,
    attach,
    bench,
    compare,
    data,
    demo,
    designs,
    generate,
    import_,
    regenerate,
    report,
    train,
    verify,
)
from semiar.cli.options import Parser
from semiar.cli.words import complaint, normalised
from semiar.errors import SemiarError
from semiar.version import __version__

set_parsing_settings(docstring_parse_attribute_docstrings=True)

GROUPS: dict[str, tuple[ModuleType, ...]] = {
    "make": (train, attach, import_, regenerate),
    "use": (generate,),
    "measure": (bench, verify, compare, advise),
    "look": (data, designs, report, demo),
}
VERBS = {one.__name__.rsplit(".", 1)[1].rstrip("_"): one for group in GROUPS.values() for one in group}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code: 0, 1 (verify failed), 2 (wrong input), 130."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not words or words[0] in ("--help", "-h"):
        print(overview())
        return 0 if words else 2
    try:
        top = parser(words)
        verb = next((word for word in words if word in VERBS), "")
        options = top.parse_args(normalised(words, verb, top.switches_of(verb)))
        return VERBS[options.verb].run(options[options.verb]) or 0
    except (SemiarError, OSError) as error:
        if debug:
            raise
        print(f"semiar: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ArgumentError as error:
        print(f"semiar: {complaint(error, words, VERBS)}", file=sys.stderr)
        return 2
    except SystemExit as done:  # --help, --version, --print_config
        return int(done.code or 0)
    except KeyboardInterrupt:
        print("semiar: interrupted", file=sys.stderr)
        return 130


def parser(words: Sequence[str]) -> Parser:
    """The command line of the verb that these words name; an unknown key, in a file or not, is an error (code 2)."""
    # no abbreviations: --n, several answers elsewhere, would be taken for --num_speculative_tokens
    top = Parser(prog="semiar", description=overview(), exit_on_error=False, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"semiar {__version__}")
    verbs = top.add_subcommands(dest="verb", required=True)
    for name, verb in VERBS.items():
        told = f"{verb.HELP}  --flag switches on, --no_flag off; --debug shows tracebacks."
        one = Parser(description=told, exit_on_error=False)
        if name in words:
            verb.options(one, words)
        verbs.add_subcommand(name, one, help=verb.HELP)
        top.verbs[name] = one
    return top


def overview() -> str:
    """What the command can do, by what one wants to do."""
    lines = ["Fine-tune an LLM with its draft model; decode faster, losslessly.", "", "usage: semiar VERB [OPTIONS]"]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:"]
        for one in verbs:
            name = next(name for name, verb in VERBS.items() if verb is one)
            lines.append(f"  {name:<12}{one.HELP}")
    return "\n".join([*lines, "", "semiar VERB --help shows a verb's options, semiar --version the version."])


if __name__ == "__main__":
    sys.exit(main())
