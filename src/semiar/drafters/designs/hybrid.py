"""Lookup where the text repeats itself, a trained drafter elsewhere; decided from the prefix alone, step by step.

After SuffixDecoding (Oliaro et al. 2024) and SAM decoding (Hu et al. 2024), which put a lookup before a drafter too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.core.calibration import Calibration
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.base import Context, Drafter, State
from semiar.drafters.designs.semi import SemiSettings
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.finding import Corpus, Finder, Finders, FindingSettings, fill
from semiar.drafters.registry import build_drafter, design, drafter_settings, facts_of, register
from semiar.drafters.settings import HeadSettings
from semiar.errors import ConfigError
from semiar.targets.target import Target


@dataclass(frozen=True)
class HybridSettings(HeadSettings, FindingSettings):
    """What is looked up, and who drafts otherwise."""

    architecture: str = "hybrid"
    min_match: int = 4
    """Shortest match that goes before the trained drafter."""
    inner: dict[str, Any] = field(default_factory=dict)
    """The trained drafter's settings; K and draft vocabulary are the hybrid's, its architecture is semi unless said."""


class Memories(State):
    """The rows' finders and the trained drafter's memory."""

    def __init__(self, finders: Finders, inner: State):
        super().__init__()
        self.finders, self.inner = finders, inner

    def select(self, rows: Tensor) -> None:
        self.finders.select(rows)
        self.inner.select(rows)

    def join(self, other: State) -> None:
        assert isinstance(other, Memories)
        self.finders.join(other.finders)
        self.inner.join(other.inner)


@register("hybrid")
class HybridDrafter(Drafter):
    """Rows whose end matches at least ``min_match`` earlier tokens draft what followed these, the others as trained.

    The trained drafter follows every step, so that it knows the text when its turn comes; training it, and everything
    about its head, is its own affair.  Its weights are saved below ``inner.``.  Where the plan says a tree, it drafts
    one whenever no row of the batch has a match.
    """

    Settings = HybridSettings
    FACTS = Facts(
        "hybrid", "lookup where the text repeats itself, a trained drafter elsewhere",
        "after SuffixDecoding (Oliaro et al. 2024) and SAM Decoding (Hu et al. 2024)",
        Distant.LAST_STATE, Recent.SMALL_LM, searches=True, attach="around",
    )  # fmt: skip

    def __init__(
        self, settings: HybridSettings, target: Target, vocab: Tensor | None,
        inner: dict[str, Any] | None = None, corpus_size: int = 0,
    ):  # fmt: skip
        super().__init__(settings)
        self.inner: Any = build_drafter(inner_settings(settings), target, vocab, inner)
        if not self.inner.trainable:
            raise ConfigError(f"a hybrid of lookup and {self.inner.name}", "a drafter that learns", "see option inner")
        self.layers = self.inner.layers
        self.register_buffer("d2t", None if vocab is None else vocab.clone())
        self.corpus = Corpus(corpus_size)

    @classmethod
    def around(cls, settings: HybridSettings, inner: Drafter, target: Target) -> HybridDrafter:
        if settings.inner:
            raise ConfigError("option inner", "none: the pair's own drafter is inside")
        default, size = HybridSettings.draft_vocab_size, inner.settings.draft_vocab_size
        if settings.draft_vocab_size not in (default, size):
            raise ConfigError(f"draft_vocab_size {settings.draft_vocab_size}", f"{size}, as the pair's own drafter has")
        if settings.num_speculative_tokens == HybridSettings.num_speculative_tokens:  # not said
            settings = replace(settings, num_speculative_tokens=inner.settings.num_speculative_tokens)
        whole = replace(settings, draft_vocab_size=size, inner=asdict(inner.settings))
        return cls(whole, target, inner.vocab, inner.extra_config()).bind(target)

    def trained_part(self) -> tuple[Drafter, str]:
        return self.inner, "inner."

    def bind(self, target: Target) -> HybridDrafter:
        self.inner.bind(target)
        return self

    def prepare(self, engine: str = "packed") -> None:
        self.inner.prepare(engine)

    def extra_config(self) -> dict[str, Any]:
        return {"inner": self.inner.extra_config(), "corpus_size": self.corpus.size}

    @classmethod
    def facts(cls, settings: HybridSettings) -> Facts:
        inner = facts_of(inner_settings(settings))
        same = {name: getattr(inner, name) for name in ("distant", "recent", "form", "trees", "stops")}
        return replace(cls.FACTS, **same)

    @property
    def label(self) -> str:
        return f"{self.name} on {self.inner.label}"

    @classmethod
    def modernised(cls, old: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        """What was said of the trained drafter beside the lookup's options belongs to it."""
        given = {"architecture": SemiSettings.architecture, **old["options"].get("inner", {})}
        whole = {**old, "options": {}, **given}
        inner = design(given["architecture"]).modernised(whole, extra.get("inner", {}))
        return super().modernised(old, extra) | {"inner": inner}

    def take_calibration(self, found: Calibration) -> None:
        self.inner.take_calibration(found)

    def read_answers(self, answers: Sequence[Sequence[int]]) -> None:
        self.corpus.read(answers, self.settings.corpus_tokens)

    # -- training is the trained drafter's -----------------------------------------------------------------------------

    def unroll(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Iterator[Tensor]:
        states: Iterator[Tensor] = self.inner.unroll(hidden, tokens, anchors)
        return states

    def head(self, state: Tensor, *step: Any) -> Tensor:
        logits: Tensor = self.inner.head(state, *step)
        return logits

    def teacher(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.inner.teacher(hidden)
        return logits

    def head_parameters(self) -> list[nn.Parameter]:
        parameters: list[nn.Parameter] = self.inner.head_parameters()
        return parameters

    def extra_loss(self, *batch: Any) -> Tensor | None:
        loss: Tensor | None = self.inner.extra_loss(*batch)
        return loss

    # -- drafting ----------------------------------------------------------------------------------------------------

    def start(self, batch: int, capacity: int, device: torch.device) -> Memories:
        corpus = self.corpus.matcher(self.settings)
        finders = Finders([Finder(self.settings, corpus) for _ in range(batch)])
        return Memories(finders, self.inner.start(batch, capacity, device))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        assert isinstance(state, Memories)
        state.finders.follow(context)
        chains = state.finders.propose(min(plan.count, self.settings.num_speculative_tokens))
        needed = plan if not any(chains) else replace(plan, tree="none")  # beside a row that looked up all draft chains
        needed = needed if not all(chains) else replace(needed, count=0)  # it follows, without drafting
        draft: Draft = self.inner.propose(context, state.inner, needed, sampling, rng)
        return mix(draft, fill(chains, context.tokens.device)) if any(chains) else draft


def inner_settings(settings: HybridSettings) -> Any:
    """Those of the trained drafter: its own, with the hybrid's K and draft vocabulary."""
    given = {"architecture": SemiSettings.architecture, **settings.inner}
    if given["architecture"] == settings.architecture:
        raise ConfigError("a hybrid inside a hybrid", "one of a lookup and a drafter that learns")
    shared = {"num_speculative_tokens": settings.num_speculative_tokens}
    known = {field.name for field in fields(design(given["architecture"]).Settings)}
    if "draft_vocab_size" in known:
        shared["draft_vocab_size"] = settings.draft_vocab_size  # type: ignore[assignment]
    return drafter_settings({**shared, **given})


def mix(draft: Draft, chosen: Tensor) -> Draft:
    """The chain ``chosen`` (B, n) of every row that has one (its first token is not -1), else the row of ``draft``.

    In a draft that was sampled, a chosen token's law is the point mass on it, which the verifier treats exactly as a
    chosen token; what the draft vocabulary lacks is added to its end.
    """
    width = max(draft.count, chosen.shape[1])
    chosen = F.pad(chosen, (0, width - chosen.shape[1]), value=-1)
    looked = chosen[:, :1] >= 0
    tokens = torch.where(looked, chosen, F.pad(draft.tokens, (0, width - draft.count), value=-1))
    if draft.probs is None:
        return Draft.chain(tokens)
    probs, vocab = F.pad(draft.probs, (0, 0, 0, width - draft.count)), draft.vocab
    columns = chosen.clamp(min=0)
    if vocab is not None:
        ids = columns.unique()
        more = ids[~torch.isin(ids, vocab)]
        vocab, probs = torch.cat([vocab, more]), F.pad(probs, (0, len(more)))
        place = torch.zeros(int(vocab.max()) + 1, dtype=torch.long, device=vocab.device)
        place[vocab] = torch.arange(len(vocab), device=vocab.device)
        columns = place[columns]
    sure = torch.zeros_like(probs).scatter(-1, columns[..., None], 1.0) * (chosen >= 0)[..., None]
    return Draft.chain(tokens, torch.where(looked[..., None], sure, probs), vocab)
