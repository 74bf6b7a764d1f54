"""``semiar generate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from jsonargparse import Namespace

from semiar.cli.options import Parser, add_pair, add_settings, settings_of
from semiar.pair import Pair
from semiar.settings import Decoding, Load

HELP = "Write text with a trained pair."


@dataclass(frozen=True)
class GenerateSettings:
    """How text is written."""

    adapter: str = ""
    """PEFT adapter of a target that is given as a model."""
    load: Load = field(default_factory=Load)
    decoding: Decoding = field(default_factory=Decoding)


def options(one: Parser, words: Sequence[str]) -> None:
    add_pair(one, ", or a model, which decodes plainly")
    one.add_argument("prompt", type=str, help="the prompt; - reads standard input")
    add_settings(one, GenerateSettings, words)


def run(chosen: Namespace) -> None:
    settings: GenerateSettings = settings_of(GenerateSettings, chosen)
    pair = Pair.load(chosen.run, settings.load, adapter=settings.adapter)
    prompt = sys.stdin.read() if chosen.prompt == "-" else chosen.prompt
    if not settings.decoding.lossless:
        print("semiar: rule none is LOSSY: the text is not what the target would write", file=sys.stderr)
    for piece in pair.pieces(prompt, settings.decoding):
        print(piece, end="", flush=True)
    print()
