"""`semiar attach`: put a drafter that has nothing to learn beside a tuned or a plain target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from semiar.data.batches import answers_of, prepare
from semiar.data.chat import ChatRenderer
from semiar.data.tasks.registry import load_any
from semiar.drafters import Drafter, DrafterSettings, HybridDrafter, NoDrafter, build_drafter
from semiar.drafters.heads import choose_vocab, count_tokens
from semiar.drafters.hybrid import wrap
from semiar.drafters.saving import load_weights
from semiar.drafters.settings import refuse_unused
from semiar.errors import ConfigError
from semiar.pair import Pair
from semiar.targets import LoadSettings


@dataclass(frozen=True)
class AttachSettings:
    """Which drafter comes beside the target, and what it may remember."""

    out: str
    """Folder of the pair that comes out."""
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    data: str = ""
    """Task, file or hub id whose answers the drafter may remember; measure it on others."""
    split: str = "train"
    folder: str = ""
    """Local folder of the named tasks; default: SEMIAR_DATA, else the hub."""
    limit: int = 0
    """At most so many samples; 0 = all."""
    max_length: int = 1024
    """Longest sample in tokens; longer answers are cut, longer prompts skipped."""
    adapter: str = ""
    """PEFT adapter of a target that is given as a model."""


def attach(name: str, settings: AttachSettings, load: LoadSettings, console: Console) -> Pair:
    """Save the target of the pair (or model) ``name`` with a new drafter in ``settings.out``; an adapter is copied.

    A hybrid is put around the pair's own drafter.  Raises ``ConfigError`` for a drafter that would have to learn.
    """
    pair = Pair.open(name, replace(load, engine="eager"), adapter=settings.adapter)
    return attach_to(pair, Path(name).expanduser(), settings, console)


def attach_to(pair: Pair, folder: Path, settings: AttachSettings, console: Console) -> Pair:
    """`attach` for a pair that has been loaded for the engine eager; ``folder`` is where a hybrid's trained part is."""
    answers = _answers(pair, settings)
    if settings.drafter.architecture == "hybrid":
        drafter: Drafter = _hybrid(pair, folder, settings.drafter)
    else:
        drafter = build_drafter(settings.drafter, pair.target, _vocabulary(pair, answers, settings.drafter))
        if drafter.trainable:
            raise ConfigError(
                f"drafter {drafter.name} has to learn", "lookup, recycling, model or hybrid", "use semiar train"
            )
    drafter.read_answers(answers)
    drafter.check_tokenizer(pair.tokenizer)
    made = pair.with_drafter(drafter)
    made.run = {"model": pair.base, "data": settings.data} | made.run
    made.metrics = pair.metrics if isinstance(pair.drafter, NoDrafter) else {}  # it would be another drafter's
    made.save(settings.out)
    known = f" that knows {len(answers)} answers" if answers else ""
    console.print(f"saved the pair in {settings.out}, its drafter {drafter.name}{known}", soft_wrap=True)
    return made


def _answers(pair: Pair, settings: AttachSettings) -> list[list[int]]:
    """Ids of the answers in the data, if any is named."""
    if not settings.data:
        return []
    records = load_any(settings.data, settings.split, settings.folder or None, settings.limit or None).records
    return answers_of(prepare(records, ChatRenderer(pair.tokenizer), settings.max_length).examples)


def _vocabulary(pair: Pair, answers: Sequence[Sequence[int]], settings: DrafterSettings) -> Tensor | None:
    """The ids that can be drafted, counted in the answers; None = all, as always without answers."""
    if not answers:
        return None
    counts = count_tokens(answers, pair.target.vocab_size)
    return choose_vocab(counts, settings.draft_vocab_size, pair.end_ids())


def _hybrid(pair: Pair, folder: Path, settings: DrafterSettings) -> Drafter:
    """A hybrid around the pair's drafter, with the weights as they lie in its folder."""
    if not pair.drafter.trainable:
        raise ConfigError(
            f"a hybrid for '{folder}', which has no trained drafter", "a pair that semiar train wrote", "or take lookup"
        )
    if "inner" in settings.options:
        raise ConfigError("option inner", "none: the pair's own drafter is inside")
    refuse_unused(settings, "hybrid, which takes them from the pair")
    inner: Any = pair.drafter.inner if isinstance(pair.drafter, HybridDrafter) else pair.drafter
    own = "inner." if isinstance(pair.drafter, HybridDrafter) else ""
    hybrid = wrap(settings, inner, pair.target)
    saved = load_file(folder / "drafter" / "model.safetensors")
    load_weights(hybrid.inner, {k.removeprefix(own): v for k, v in saved.items() if k.startswith(own)}, str(folder))
    return hybrid
