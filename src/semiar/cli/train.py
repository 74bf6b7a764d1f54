"""``semiar train``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace

from semiar.cli.options import Parser, add_settings, add_switch, settings_of
from semiar.training.config import TrainConfig
from semiar.training.run import train

HELP = "Fine-tune a target and its drafter."


def options(one: Parser, words: Sequence[str]) -> None:
    add_settings(one, TrainConfig, words)
    add_switch(one, "resume", "continue an interrupted run")
    add_switch(one, "dry_run", "only estimate")


def run(chosen: Namespace) -> int:
    done = train(settings_of(TrainConfig, chosen), resume=chosen.resume, dry_run=chosen.dry_run)
    return 0 if done or chosen.dry_run else 130
