"""Drafters that guess token after token: everything but the guess itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, uniform
from semiar.drafters.base import Context, State
from semiar.drafters.drawing import draw_chain
from semiar.drafters.engines.compiled import CompiledDraft
from semiar.drafters.engines.native import native_draft
from semiar.drafters.head_drafter import HeadDrafter
from semiar.drafters.memory import Fresh, Memory, map_tensors
from semiar.drafters.trees import Root, draft_tree
from semiar.targets.target import Target


class ChainDrafter(HeadDrafter):
    """A drafter of single steps: h_t and d_1..d_k give the state that the draft head turns into the law of the next.

    To add one, subclass it in a file of its own in ``drafters/designs``, put ``@register("name")`` before the class and
    name the file in that room's ``DESIGNS``.  Write two hooks; the same code then serves training (all anchors of whole
    sequences at once, teacher-forced) and drafting (one anchor per row, or the nodes of a tree's level), so the two
    cannot differ:

    * ``begin(hidden) -> inner`` makes the drafter's inner state from the target's states ``hidden`` (B, A, F, H) at the
      anchors; ``hidden[:, :, -1]`` is what the output head reads, h_t.
    * ``step(ids, inner, index, memory) -> (state, inner)`` reads d_{index+1}, ``ids`` (B, A), and gives the state
      (B, A, D) that `head` reads.  Whatever ``inner`` holds (tuples, lists, dataclasses) its tensors are (B, A, ...),
      and a step makes new ones instead of writing to them: a tree continues one state several times.

    More, where it is needed:

    * ``Settings``, a frozen dataclass of its own knobs, found in ``self.settings``; ``FACTS``, what is known of it.
    * ``layers`` of ``__init__``: the target layers to read, the head's input (LAST) last.
    * ``memory_shape`` and ``remember``: keys and values of all verified positions, written once when a position is
      verified; ``step`` finds them in ``memory`` and how far it may look in ``memory.visible``.
    * ``head`` and ``head_parameters``, when the logits are not the draft head's alone.
    * ``extra_loss``: a training loss beside that of the drafts.
    * ``own_steps``, why the steps can be no graph or program; ``carry``, when ``inner`` is not made of tensors.

    A module whose last layer starts at zero and that is added to h_t starts training at the target's own head.
    """

    own_steps: str = ""  # why an engine has to leave it to its own steps

    _ready: Sequence[Any] = ()  # what drafts instead of `draft`, where it can: a graph or a kernel

    # -- what a drafter writes ---------------------------------------------------------------------------------------

    def begin(self, hidden: Tensor) -> Any:
        """Inner state before the first drafted token; ``hidden`` (B, A, F, H) are the states at the anchors."""
        raise NotImplementedError

    def step(self, ids: Tensor, inner: Any, index: int, memory: Memory | None) -> tuple[Tensor, Any]:
        """Read drafted token number ``index`` (from 0), ``ids`` (B, A): the state (B, A, D) for `head`, new inner."""
        raise NotImplementedError

    def memory_shape(self) -> tuple[int, int, int] | None:
        """Layers, heads and units per head of what is kept of every verified position; None = no memory."""
        return None

    def remember(self, hidden: Tensor, tokens: Tensor, positions: Tensor, memory: Memory) -> None:
        """Write newly verified positions into ``memory`` (`Memory.write`).

        ``hidden`` (B, n, F, H) are their states, ``positions`` (B, n) where they stand, ``tokens`` (B, n + 1) the
        tokens there and the one that follows the last.
        """
        raise NotImplementedError

    def carry(self, inner: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """``inner`` with ``change`` applied to its tensors: how a tree picks the nodes that it continues."""
        return map_tensors(change, inner)

    # -- what all share ----------------------------------------------------------------------------------------------

    def bind(self, target: Target) -> ChainDrafter:
        super().bind(target)
        self._ready = ()
        return self

    def prepare(self, engine: str = "packed") -> None:
        if engine == "compiled" and not self.own_steps:
            self._ready = [CompiledDraft(self)]
        native = native_draft(self) if engine == "native" and not self.own_steps else None
        if native is not None:
            self._ready = [native]
        super().prepare(engine)

    def copies(self) -> list[Tensor]:
        """The kernel's own weights."""
        return [one for ready in self._ready for one in ready.copies]

    def train(self, mode: bool = True) -> ChainDrafter:
        if mode:
            self._ready = ()  # what was prepared holds the weights as they were
        return super().train(mode)

    # -- training ----------------------------------------------------------------------------------------------------

    def unroll(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Iterator[Tensor]:
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        memory = None if self.memory_shape() is None else self._training_memory(hidden, tokens, anchors)
        inner = self.begin(hidden[rows, anchors])
        for step in range(self.settings.num_speculative_tokens):
            ids = tokens[rows, (anchors + 1 + step).clamp(max=tokens.shape[1] - 1)]
            state, inner = self.step(ids, inner, step, memory)
            yield state

    def _training_memory(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Memory:
        slots = torch.arange(tokens.shape[1] - 1, device=tokens.device)
        memory = Memory([], [], slots <= anchors[..., None], anchors + 1)
        self.remember(hidden[:, :-1], tokens, slots.expand(len(tokens), -1), memory)
        return memory

    # -- drafting ----------------------------------------------------------------------------------------------------

    def start(self, batch: int, capacity: int, device: torch.device) -> State:
        kept = self.memory_shape()
        if kept is None:
            return State()
        layers, heads, width = kept
        dtype = next(self.parameters(), self.embedding).dtype
        shape = (batch, heads, capacity + 1, width)
        keys, values = ([torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)] for _ in range(2))
        return State(keys=keys, values=values)

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        count = min(plan.count, self.settings.num_speculative_tokens)
        batch, device = len(context.lengths), context.tokens.device
        if context.hidden.shape[1] == 0:
            return Draft.empty(batch, device)
        fresh = self._fresh(context, state)
        if count == 0 or bool((context.fresh == 0).any()):  # one-token prompts have no state yet
            self.recall(fresh)  # now or never
            return Draft.empty(batch, device)
        if plan.tree != "none":
            memory, inner = self.recall(fresh), self.begin(fresh.newest())
            return draft_tree(self, Root(fresh.last, inner, memory), plan, count, sampling, rng)
        coins = None if sampling.greedy else uniform((batch, count), rng, device)
        draft = self._ready[0](fresh, coins, count, sampling) if self._ready and not plan.stop_below else None
        tokens, probs = draft or self.draft(fresh, coins, count, sampling, plan.stop_below)
        return Draft.chain(tokens, probs, self.vocab)

    def _fresh(self, context: Context, state: State) -> Fresh:
        """What the last step brought, and how much of the memory may be seen."""
        lengths, hidden = context.lengths, context.hidden
        start = lengths - 1 - context.fresh  # (B,) position of the first fresh state
        positions = start[:, None] + torch.arange(hidden.shape[1] + 1, device=start.device)
        tokens = context.tokens.gather(1, positions.clamp(max=context.tokens.shape[1] - 1)).clamp(min=0)
        keys, values, visible = state.values.get("keys", []), state.values.get("values", []), None
        positions = positions[:, :-1]
        if keys:
            positions = positions.clamp(max=keys[0].shape[2] - 1)  # shorter rows write rubbish behind their end, unseen
            seen = lengths - 1
            visible = (torch.arange(int(seen.max()), device=seen.device) < seen[:, None])[:, None]
        return Fresh(context.last(), tokens, positions, hidden, context.fresh, lengths, keys, values, visible)

    def recall(self, fresh: Fresh) -> Memory | None:
        """The memory with what the last step completed added to it; rejected tokens were never written."""
        if fresh.visible is None:
            return None
        memory = Memory(fresh.keys, fresh.values, None, fresh.positions)
        self.remember(fresh.hidden, fresh.tokens, fresh.positions, memory)
        width = fresh.visible.shape[-1]
        keys, values = [k[:, :, :width] for k in fresh.keys], [v[:, :, :width] for v in fresh.values]
        return Memory(keys, values, fresh.visible, fresh.lengths[:, None] - 1)

    def draft(
        self, fresh: Fresh, coins: Tensor | None, count: int, sampling: Sampling, stop_below: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Drafted ids (B, count) and, when sampling, their laws (B, count, V_draft); see `draw_chain`."""
        memory, inner = self.recall(fresh), self.begin(fresh.newest())

        def following(ids: Tensor, step: int) -> Tensor:
            nonlocal inner
            state, inner = self.step(ids, inner, step, memory)
            return self.head(state, step)

        return draw_chain(following, fresh.last, coins, count, sampling, self.vocab, stop_below, self.calibration)
