"""Drafters whose guesses a test chooses: from a script, a table of logits, or another model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kit.models import noisy_copy
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, distribution, draw
from semiar.drafters import Context, Drafter, State
from semiar.drafters.cached import CacheState
from semiar.drafters.designs.none import NoDrafter, NoSettings
from semiar.targets import Target

WIDE = {"layers": "low_mid_high"}
CASES: list[dict[str, Any]] = [  # settings of every kind that learns; vocab: size of the draft vocabulary
    {"small_lm": "context"},
    {"small_lm": "context", "vocab": 40, "num_layers": 2, **WIDE},
    {"small_lm": "context", "vocab": 40, "fusion": "additive"},
    {"small_lm": "context", "num_layers": 2},
    {"small_lm": "context", "induction": False},
    {"small_lm": "lstm", "vocab": 40},
    {"small_lm": "lstm", "fusion": "initial_state", **WIDE},
    {"small_lm": "lstm", "fusion": "both", "vocab": 40, "lora_r": 0},
    {"small_lm": "lstm", "fusion": "additive"},
    {"small_lm": "gru"},
    {"small_lm": "gru", "fusion": "initial_state", "vocab": 40},
    {"small_lm": "rnn", "vocab": 40, **WIDE},
    {"small_lm": "rnn", "fusion": "both"},
    {"small_lm": "fixed_attention", "vocab": 40},
    {"small_lm": "fixed_attention", "fusion": "initial_state", **WIDE},
    {"small_lm": "fixed_attention", "fusion": "additive"},
    {"small_lm": "attention", "vocab": 40},
    {"small_lm": "attention", "fusion": "both", "num_layers": 2, **WIDE},
    {"small_lm": "hf", "vocab": 40},
    {"small_lm": "hf", **WIDE},
    {"small_lm": "hf", "fusion": "additive"},
    {"small_lm": "none", "vocab": 40},
    {"architecture": "medusa", "vocab": 40},
    {"architecture": "medusa", "heads": "own", "blocks": 1},
    {"architecture": "hydra", "vocab": 40},
    {"architecture": "hydra", "heads": "own", "skip": "linear", "blocks": 2, "vocab": 40},
    {"architecture": "recurrent", "vocab": 40},
    {"architecture": "recurrent", "heads": "own", "first": "token"},
    {"architecture": "mlp", "vocab": 40},
    {"architecture": "mlp", "tied": False},
    {"architecture": "mlp", "cell": "lstm"},
    {"architecture": "mlp", "cell": "lstm", "tied": False, "vocab": 40, "lora_r": 0},
    {"architecture": "eagle", "vocab": 40},
    {"architecture": "eagle", **WIDE, "num_heads": 2, "inner_size": 20},
    {"architecture": "eagle", "vocab": 40, "version": 1},
    {"architecture": "parallel", "vocab": 40},
    {"architecture": "parallel", "num_layers": 2, **WIDE},
    {"architecture": "skip", "vocab": 40},
    {"architecture": "skip", "exit_layer": 2, "with_h_p": True},
]


class TestDrafter(Drafter):
    """Base of the drafters below: K drafts, nothing to learn."""

    __test__ = False  # not a test class
    FACTS = replace(NoDrafter.FACTS, drafts=True, trees=("best", "beam", "sampled"), stops=True)

    def __init__(self, count: int):
        super().__init__(NoSettings(num_speculative_tokens=count))


class ScriptDrafter(TestDrafter):
    """Proposes what ``script(tokens, count)`` says for each row's committed tokens; short lists are filled with -1."""

    def __init__(self, script: Callable[[list[int], int], Sequence[int]], count: int = 4):
        super().__init__(count)
        self.script = script

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        rows = [context.tokens[b, :n].tolist() for b, n in enumerate(context.lengths.tolist())]
        drafts = [list(self.script(row, plan.count))[: plan.count] for row in rows]
        width = max(len(draft) for draft in drafts)
        return Draft.chain(torch.tensor([d + [-1] * (width - len(d)) for d in drafts], dtype=torch.long))


class TableDrafter(TestDrafter):
    """Drafts from its own table of logits: a chain, or a full tree with ``width`` children of every node.

    ``how``: "sampled" draws from the row's softmax (siblings i.i.d.), "without" draws siblings without replacement,
    "chosen" takes the most likely ones.  ``vocab`` limits it to these ids, as a reduced draft vocabulary does.
    """

    def __init__(
        self,
        table: Sequence[Sequence[float]],
        count: int = 4,
        *,
        width: int = 1,
        how: str = "sampled",
        vocab: Sequence[int] | None = None,
    ):
        super().__init__(count)
        self.width, self.how = width, how
        self.register_buffer("d2t", None if vocab is None else torch.tensor(vocab))
        rows = torch.tensor(table, dtype=torch.float64)
        self.laws = (rows if self.vocab is None else rows[:, self.vocab]).softmax(-1)  # (V, V_draft)

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        how = "chosen" if sampling.greedy else self.how
        level = [(0, context.last()[:, 0])]  # (slot, token) of the nodes that get children
        tokens: list[Tensor] = []
        parents: list[int] = []
        laws: list[Tensor] = []
        for _ in range(plan.count):
            following = []
            for slot, token in level:
                law = self.laws[token]
                for column in self._siblings(law, how, rng):
                    tokens.append(column if self.vocab is None else self.vocab[column])
                    parents.append(slot)
                    laws.append(law)
                    following.append((len(tokens), tokens[-1]))
            level = following
        nodes = torch.stack(tokens, 1)
        probs = None if how == "chosen" else torch.stack(laws, 1)
        if self.width == 1:
            return Draft.chain(nodes, probs, self.vocab)
        return Draft(nodes, torch.tensor(parents).expand(len(nodes), -1), probs, self.vocab, how != "without")

    def _siblings(self, law: Tensor, how: str, rng: torch.Generator | None) -> list[Tensor]:
        if how == "chosen":
            return list(law.topk(self.width, -1).indices.unbind(-1))
        picks: list[Tensor] = []
        for _ in range(self.width):
            picks.append(draw(law, rng))
            if how == "without":
                law = law.scatter(1, picks[-1][:, None], 0.0)
        return picks


class ModelDrafter(TestDrafter):
    """A whole model as drafter, with its own cache: a chain, or a tree with ``width`` most likely children."""

    def __init__(self, model: nn.Module, count: int = 4, *, width: int = 1):
        super().__init__(count)
        self.own, self.width = Target(model), width

    def start(self, batch: int, capacity: int, device: torch.device) -> CacheState:
        return CacheState(self.own.start(batch, capacity))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        assert isinstance(state, CacheState)
        logits = self._catch_up(context, state.cache)
        if self.width > 1:
            return self._tree(logits, state.cache, plan.count)
        tokens: list[Tensor] = []
        laws: list[Tensor | None] = []
        for step in range(plan.count):
            law = distribution(logits, sampling)
            tokens.append(law.tokens if law.probs is None else draw(law.probs, rng))  # type: ignore[arg-type]
            laws.append(law.probs)
            if step + 1 < plan.count:
                logits = self._look(torch.cat(tokens, 1), state.cache)[:, -1:]
        return Draft.chain(torch.cat(tokens, 1), None if laws[0] is None else torch.cat(laws, 1))  # type: ignore[arg-type]

    def _catch_up(self, context: Context, cache: Any) -> Tensor:
        """Run what was committed since the last call; logits (B, 1, V) after each row's newest token."""
        need = context.lengths - cache.lengths
        steps = torch.arange(int(need.max()))
        places = (cache.lengths[:, None] + steps).clamp(max=context.tokens.shape[1] - 1)
        out = self.own(context.tokens.gather(1, places), cache)
        cache.keep(torch.where(steps < need[:, None], steps, -1))
        return out.logits[torch.arange(len(need)), need - 1][:, None]

    def _look(self, tokens: Tensor, cache: Any, **geometry: Tensor) -> Tensor:
        """Logits over drafted tokens; nothing of them stays in the cache."""
        logits = self.own(tokens, cache, **geometry).logits
        cache.keep(torch.full_like(tokens, -1), chain=True)
        return logits

    def _tree(self, logits: Tensor, cache: Any, count: int) -> Draft:
        """The ``width`` best children of every node, down to depth ``count``; chosen, not sampled."""
        batch = len(logits)
        tokens = logits[:, 0].topk(self.width).indices
        parents = [0] * self.width
        level = list(range(1, self.width + 1))
        for _ in range(count - 1):
            depths, mask = Draft(tokens, torch.tensor(parents).expand(batch, -1)).geometry()
            seen = self._look(tokens, cache, depths=depths[:, 1:] - 1, mask=mask[:, 1:, 1:])
            new = []
            for slot in level:
                tokens = torch.cat([tokens, seen[:, slot - 1].topk(self.width).indices], 1)
                parents += [slot] * self.width
                new += range(len(parents) - self.width + 1, len(parents) + 1)
            level = new
        return Draft(tokens, torch.tensor(parents).expand(batch, -1))


def noisy_drafter(model: nn.Module, count: int = 4, *, width: int = 1, noise: float = 0.04) -> ModelDrafter:
    """A noisy copy of the target as drafter: a good share of its drafts are right, but not all."""
    return ModelDrafter(noisy_copy(model, noise), count, width=width)
