"""``semiar designs``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from semiar.cli.options import Parser
from semiar.drafters import REGISTRY, facts_of

HELP = "List the designs of drafters: what each is, and what can be set."


def options(one: Parser, words: Sequence[str]) -> None:
    """None."""


def run(chosen: Namespace) -> None:
    table = Table(title="designs of drafters (--drafter.architecture NAME)", show_lines=True)
    for head in ("name", "what it is", "distant past", "drafted tokens", "how it comes to be", "settings"):
        table.add_column(head)
    for name, one in REGISTRY.items():
        facts = facts_of(one.Settings())
        made = "train" if facts.learns else "attach" if facts.attach else ""
        made += ", attach" if facts.learns and facts.attach else ""
        made += f", import ({facts.original})" if facts.original else ""
        own = [field.name for field in fields(one.Settings) if field.name != "architecture"]
        table.add_row(name, f"{facts.title}: {facts.line}", facts.distant, facts.recent, made, ", ".join(own))
    Console().print(table)
