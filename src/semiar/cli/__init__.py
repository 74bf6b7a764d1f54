"""The command line: one file per verb, each with its options and the one call that it makes."""

from semiar.cli.main import main, parser

__all__ = ["main", "parser"]
