"""The one interface that every drafter implements, and what it may look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.core.calibration import Calibration
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.facts import Facts
from semiar.drafters.originals import Original, Tensors
from semiar.drafters.settings import DrafterSettings
from semiar.errors import ConfigError
from semiar.targets.cache import take_rows
from semiar.targets.engines.packed import pack
from semiar.targets.target import LAST, Target


@dataclass(frozen=True, slots=True)
class Context:
    """All that a drafter may look at."""

    tokens: Tensor  # (B, T) committed tokens, anything after `lengths`
    lengths: Tensor  # (B,) committed tokens of each row; the last one has not been run through the target yet
    hidden: Tensor  # (B, n, F, H) target states of the positions run last
    fresh: Tensor  # (B,) how many of the n are real; row b's belong to positions lengths-1-fresh .. lengths-2

    def last(self) -> Tensor:
        """The newest committed token of each row, (B, 1)."""
        return self.tokens.gather(1, self.lengths[:, None] - 1)

    def select(self, rows: Tensor) -> Context:
        """Only these rows."""
        return Context(self.tokens[rows], self.lengths[rows], self.hidden[rows], self.fresh[rows])

    def join(self, other: Context) -> Context:
        """These rows, then the other's; both have room for the same number of tokens."""
        width = max(self.hidden.shape[1], other.hidden.shape[1])
        hidden = [F.pad(one.hidden, (0, 0, 0, 0, 0, width - one.hidden.shape[1])) for one in (self, other)]
        tokens, lengths = torch.cat([self.tokens, other.tokens]), torch.cat([self.lengths, other.lengths])
        return Context(tokens, lengths, torch.cat(hidden), torch.cat([self.fresh, other.fresh]))


class State:
    """A drafter's memory of one batch: named tensors (or lists of tensors) with the row as first dimension."""

    def __init__(self, **values: Any):
        self.values: dict[str, Any] = values

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        for name, value in self.values.items():
            several = isinstance(value, list)
            self.values[name] = [take_rows(one, rows) for one in value] if several else take_rows(value, rows)

    def join(self, other: State) -> None:
        """Append the rows of another memory of the same drafter and capacity."""
        for name, mine in self.values.items():
            theirs = other.values[name]
            if isinstance(mine, list):
                self.values[name] = [torch.cat(pair) for pair in zip(mine, theirs, strict=True)]
            else:
                self.values[name] = torch.cat([mine, theirs])


class Drafter(nn.Module):
    """Guesses the target's next tokens.  A wrong guess costs time, never quality.

    The module itself is stateless: what it remembers of a batch lives in the `State` that `start` returns.
    """

    name: ClassVar[str] = ""
    Settings: ClassVar[type[DrafterSettings]] = DrafterSettings
    FACTS: ClassVar[Facts]
    FORMS: ClassVar[tuple[dict[str, Any], ...]] = ()  # settings of the forms that an ablation compares

    def __init__(self, settings: Any, layers: tuple[int, ...] = (LAST,)):
        super().__init__()
        self.settings = settings
        self.calibration: Calibration | None = None  # of its own probabilities, once it has learned
        self.layers = layers  # target layers read, the last one being the state that the output head reads

    def start(self, batch: int, capacity: int, device: torch.device) -> State:
        """An empty memory for `batch` rows of at most `capacity` tokens."""
        return State()

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        """At most `plan.count` tokens deep for each row; may propose none."""
        raise NotImplementedError

    def unroll(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Iterator[Tensor]:
        """Training: for k = 1..K the state (B, A, D) that predicts token ``anchors + 1 + k``, teacher-forced.

        ``hidden`` (B, T, F, H) and ``tokens`` (B, T) are of whole sequences, ``anchors`` (B, A) the positions t whose
        state h_t is known; d_1 is token t + 1.
        """
        raise NotImplementedError

    def head(self, state: Tensor, step: int | Tensor) -> Tensor:
        """Logits (..., V_draft) of states from `unroll`, of one step (from 0) or, for states (n, D), of steps (n,)."""
        raise NotImplementedError

    def head_parameters(self) -> list[nn.Parameter]:
        """Parameters that act between a state and its logits."""
        return []

    def teacher(self, hidden: Tensor) -> Tensor:
        """The target's own logits (..., V_draft) at its states (..., H), on the draft vocabulary."""
        raise NotImplementedError

    def extra_loss(
        self, states: Tensor, hidden: Tensor, tokens: Tensor, anchors: Tensor, valid: Tensor
    ) -> Tensor | None:
        """Training: a loss (B, A, K) to be added, weighted and summed like that of the drafts; None = none.

        ``states`` (B, A, K, D) is what `unroll` gave for ``hidden``, ``tokens`` and ``anchors``; ``valid`` (B, A, K)
        says which of them count (the others' loss may be anything finite).
        """
        return None

    @property
    def vocab(self) -> Tensor | None:
        """Target ids (V_draft,) of the draft vocabulary, sorted; None = the whole vocabulary."""
        return getattr(self, "d2t", None)

    def resolve_count(self, wanted: int | None) -> int:
        """K for a run: ``wanted``, or the drafter's own.  Raises ``ConfigError`` for one it was not made for."""
        own = self.settings.num_speculative_tokens
        if wanted is not None and not 0 <= wanted <= own:
            raise ConfigError(f"num_speculative_tokens {wanted}", f"0 to {own}, the drafter's K; 0 decodes plainly")
        return own if wanted is None else wanted

    def check(self, plan: Plan) -> None:
        """Raise ``ConfigError`` for a way of drafting that it does not know."""
        facts = self.facts(self.settings)
        trees = ("none", *facts.trees)
        if plan.tree not in trees:
            raise ConfigError(f"tree {plan.tree} with drafter {self.name}", f"tree {' or '.join(trees)}")
        if plan.stop_below and not facts.stops:
            found = f"stop_below {plan.stop_below} with drafter {self.name}"
            raise ConfigError(found, "0: its tokens have no probability of their own")

    @property
    def drafts(self) -> bool:
        """Whether it ever proposes anything."""
        return self.FACTS.drafts

    def trained_part(self) -> tuple[Drafter, str]:
        """The drafter in it that learns, and what the names of its weights begin with."""
        return self, ""

    @classmethod
    def around(cls, settings: Any, inner: Drafter, target: Target) -> Drafter:
        """Of a design whose facts say that it is put around another: one around ``inner``, whose weights are to be
        loaded by the caller.  Raises ``ConfigError`` for settings that are the inner one's affair.
        """
        raise NotImplementedError

    @classmethod
    def original(cls, tensors: Tensors, target: Target) -> Original:
        """A checkpoint of the original project in our terms, of a design whose facts name one; raises ``PairError``."""
        raise NotImplementedError

    @property
    def trainable(self) -> bool:
        """Whether there is anything to learn."""
        return any(True for _ in self.parameters())

    def read_answers(self, answers: Sequence[Sequence[int]]) -> None:
        """Take from the ids of training answers what is remembered without learning; most drafters take nothing."""

    def take_calibration(self, found: Calibration) -> None:
        """Remember what its own probabilities are worth, as the end of a training measures it."""
        self.calibration = found

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ``PairError`` when the drafter gives a text other ids than the target's tokenizer."""

    def bind(self, target: Target) -> Drafter:
        """Borrow the target's embedding and head rows; called after every load or move."""
        return self

    def prepare(self, engine: str = "packed") -> None:
        """Get ready for decoding with this engine of the target's; the weights stay, but learning is over."""
        pack(self, keep=True)

    def extra_config(self) -> dict[str, Any]:
        """What `build_drafter` needs beside the settings to build this drafter again."""
        return {"calibration": asdict(self.calibration)} if self.calibration else {}

    @classmethod
    def facts(cls, settings: Any) -> Facts:
        """What is known of the design with these settings."""
        return cls.FACTS

    @property
    def label(self) -> str:
        """A short name, with what tells its forms apart."""
        return self.name

    @classmethod
    def modernised(cls, old: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        """Settings as they are now, of those that a drafter was saved with when all designs shared one form."""
        flat = {**old, **old.get("options", {})}
        return {field.name: flat[field.name] for field in fields(cls.Settings) if field.name in flat}
