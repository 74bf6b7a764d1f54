"""``semiar verify``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_pair, add_settings, results_folder, settings_of
from semiar.data.tasks.registry import load_any
from semiar.measuring.verify import VerifySettings, publish, verify
from semiar.pair import Pair

HELP = "Prove that a pair decodes losslessly."


def options(one: Parser, words: Sequence[str]) -> None:
    add_pair(one)
    add_settings(one, VerifySettings, words)


def run(chosen: Namespace) -> int:
    settings: VerifySettings = settings_of(VerifySettings, chosen)
    pair = Pair.load(chosen.run, settings.load)
    records = load_any(settings.data.filled(pair.source), settings.decoding.seed).records
    prompts = [pair.encode(record.prompt_messages) for record in records]
    console = Console()
    found = verify(pair, prompts, pair.limits(1).end_ids, settings, console)
    publish(found, results_folder(chosen.run) / "certificate.json", console)
    return 0 if found.passed else 1
