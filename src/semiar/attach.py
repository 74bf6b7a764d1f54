"""`semiar attach`: put a drafter that has nothing to learn beside a tuned or a plain target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from semiar.data.batches import answers_of, prepare
from semiar.data.chat import ChatRenderer
from semiar.data.tasks.registry import load_any
from semiar.drafters import DefaultSettings, Drafter, DrafterSettings, build_drafter, design, facts_of, names_of
from semiar.drafters.layers.heads import choose_vocab, count_tokens
from semiar.drafters.saving import load_weights
from semiar.errors import ConfigError
from semiar.pair import Pair
from semiar.settings import DataSource, Load, Place


@dataclass(frozen=True)
class AttachSettings:
    """Which drafter comes beside the target, and what it may remember."""

    out: str
    """Folder of the pair that comes out."""
    drafter: DrafterSettings = field(default_factory=DefaultSettings)
    data: DataSource = field(default_factory=DataSource)
    """Whose answers the drafter may remember, if any; measure it on others."""
    adapter: str = ""
    """PEFT adapter of a target that is given as a model."""
    load: Place = field(default_factory=Place)


def attach(name: str, settings: AttachSettings, console: Console) -> Pair:
    """Save the target of the pair (or model) ``name`` with a new drafter in ``settings.out``; an adapter is copied.

    Some are put around the pair's own drafter.  Raises ``ConfigError`` for a drafter that would have to learn.
    """
    pair = Pair.load(name, Load(settings.load.dtype, settings.load.device, engine="eager"), adapter=settings.adapter)
    return attach_to(pair, Path(name).expanduser(), settings, console)


def attach_to(pair: Pair, folder: Path, settings: AttachSettings, console: Console) -> Pair:
    """`attach` for a pair that has been loaded for the engine eager; ``folder`` is where the pair lies."""
    name, how = settings.drafter.architecture, facts_of(settings.drafter).attach
    if not how:
        raise ConfigError(f"drafter {name} has to learn", names_of(lambda facts: facts.attach), "use semiar train")
    answers = _answers(pair, settings)
    if how == "around":
        drafter = _around(pair, folder, settings.drafter)
    else:
        drafter = build_drafter(settings.drafter, pair.target, _vocabulary(pair, answers, settings.drafter))
    drafter.read_answers(answers)
    drafter.check_tokenizer(pair.tokenizer)
    made = pair.with_drafter(drafter)
    made.run = {"model": pair.base, "data": asdict(settings.data)} | made.run
    made.metrics = {} if pair.drafter.drafts else pair.metrics  # it would be another drafter's
    made.save(settings.out)
    known = f" that knows {len(answers)} answers" if answers else ""
    console.print(f"saved the pair in {settings.out}, its drafter {drafter.name}{known}", soft_wrap=True)
    return made


def _answers(pair: Pair, settings: AttachSettings) -> list[list[int]]:
    """Ids of the answers in the data, if any is named."""
    data = settings.data
    if not data.source:
        return []
    records = load_any(data.filled(split="train")).records
    return answers_of(prepare(records, ChatRenderer(pair.tokenizer), data.max_length).examples)


def _vocabulary(pair: Pair, answers: Sequence[Sequence[int]], settings: DrafterSettings) -> Tensor | None:
    """The ids that can be drafted, counted in the answers; None = all, as always without answers."""
    if not answers:
        return None
    counts = count_tokens(answers, pair.target.vocab_size)
    return choose_vocab(counts, getattr(settings, "draft_vocab_size", "full"), pair.end_ids())


def _around(pair: Pair, folder: Path, settings: Any) -> Drafter:
    """A drafter around the pair's trained one, with the weights as they lie in its folder."""
    if not pair.drafter.trainable:
        raise ConfigError(
            f"drafter {settings.architecture} for '{folder}', which has no trained drafter",
            "a pair that semiar train wrote",
            f"or take one of {names_of(lambda facts: facts.attach == 'alone')}",
        )
    trained, own = pair.drafter.trained_part()
    drafter = design(settings.architecture).around(settings, trained, pair.target)
    saved = load_file(folder / "drafter" / "model.safetensors")
    weights = {name.removeprefix(own): value for name, value in saved.items() if name.startswith(own)}
    load_weights(drafter.trained_part()[0], weights, str(folder))
    return drafter
