"""The semi-autoregressive drafter ("Semi-autoregressive Decoding for Efficient LLM Inference").

The target's own state h_p, computed when the last verified token was, carries the distant past; a small language model
h_q over the tokens drafted since carries the recent ones; a fusion gives the vector that the draft head reads:
``q(x_{t+1+k} | x_1..x_t, d_1..d_k) = softmax(Head(Fuse(h_p, h_q(d_1..d_k))))``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, distribution, pick, uniform
from semiar.drafters.base import Context, Drafter, DrafterSettings, State, register, resolve_layers
from semiar.drafters.compiled import CompiledDraft
from semiar.drafters.context_lm import ContextLM, Memory
from semiar.drafters.fusion import Features, build_fusion
from semiar.drafters.heads import DraftHead
from semiar.drafters.hf_lm import HFSmallLM
from semiar.drafters.small_lm import build_small_lm, count_heads
from semiar.errors import PairError
from semiar.targets.packed import pack
from semiar.targets.target import Target


@register("semi")
class SemiDrafter(Drafter):
    """h_p from the target, h_q from a small LM, fused by an MLP; see `DrafterSettings` for the choices."""

    def __init__(
        self,
        settings: DrafterSettings,
        target: Target,
        vocab: Tensor | None,
        embedding_scale: float | None = None,
        hf_config: dict[str, Any] | None = None,
    ):
        super().__init__(settings, resolve_layers(settings, target))
        size = target.hidden_size
        if vocab is not None and int(vocab.max()) >= target.vocab_size:
            raise PairError(f"a draft vocabulary with token {int(vocab.max())}", f"ids below {target.vocab_size}")
        self.register_buffer("d2t", vocab)
        self.scale = embedding_scale or 1 / float(target.embedding[:4096].detach().float().std())
        self.features = Features(size, len(self.layers)) if settings.reads_features else None
        if settings.small_lm == "context":
            self.lm: Any = ContextLM(
                size, count_heads(settings, size), settings.num_layers, settings.num_speculative_tokens
            )
        elif settings.small_lm == "hf":
            self.lm = HFSmallLM(settings.small_lm_model, size, hf_config)
        elif settings.small_lm == "none":
            self.lm = None
        else:
            self.lm = build_small_lm(settings, size)
        rows = target.vocab_size if vocab is None else len(vocab)
        self.fuse = build_fusion(settings, size, rows)
        self.draft_head = DraftHead(size, rows, settings.lora_r)
        self._embedding: list[Tensor] = []
        self._ready: list[CompiledDraft] = []

    def bind(self, target: Target) -> SemiDrafter:
        ids = torch.arange(target.vocab_size) if self.vocab is None else self.vocab
        self.draft_head.bind(target, ids)
        self._embedding = [target.embedding.detach()]
        return self

    def prepare(self, engine: str = "packed") -> None:
        if engine == "compiled":
            self._ready = [CompiledDraft(self)]
        self.draft_head.prepare()  # before its low-rank factors are packed: it needs their product
        for part in (self.lm, self.fuse, self.features):
            if part is not None:
                pack(part, keep=True)

    def extra_config(self) -> dict[str, Any]:
        extra: dict[str, Any] = {"embedding_scale": self.scale}
        if isinstance(self.lm, HFSmallLM):
            extra["hf_config"] = self.lm.config()
        return extra

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's input embeddings, brought to unit scale."""
        return F.embedding(tokens, self._embedding[0]) * self.scale

    def distant(self, hidden: Tensor) -> Tensor:
        """h_p (B, n, H) of states (B, n, F, H), as h_q and the fusion read it."""
        return hidden[:, :, -1] if self.features is None else self.features(hidden)

    # -- training ----------------------------------------------------------------------------------------------------

    def unroll(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Iterator[Tensor]:
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        last = hidden[rows, anchors, -1]  # (B, A, H)
        memory = None
        if isinstance(self.lm, ContextLM):
            everywhere = self.distant(hidden[:, :-1])
            memory = self._training_memory(everywhere, tokens, anchors)
            distant = everywhere[rows, anchors.clamp(max=everywhere.shape[1] - 1)]
        else:
            distant = self.distant(hidden[rows, anchors])
        state = self.lm.begin(distant) if self.lm is not None else None
        for step in range(self.settings.num_speculative_tokens):
            ids = tokens[rows, (anchors + 1 + step).clamp(max=tokens.shape[1] - 1)]
            recent, state = self._step(ids, state, memory)
            yield self.fuse(last, distant, recent, step)

    def _training_memory(self, distant: Tensor, tokens: Tensor, anchors: Tensor) -> Memory:
        slots = torch.arange(distant.shape[1], device=tokens.device)
        memory = Memory([], [], slots <= anchors[..., None], anchors + 1)
        self.lm.remember(distant, self.embed(tokens[:, 1:]), slots.expand(len(tokens), -1), memory)
        return memory

    def _step(self, ids: Tensor, state: Any, memory: Memory | None) -> tuple[Tensor | None, Any]:
        if self.lm is None:
            return None, None
        if memory is not None:
            return self.lm.step(self.embed(ids), state, memory)
        return self.lm.step(ids, self.embed(ids), state)

    def head(self, state: Tensor) -> Tensor:
        return self.fuse.logits(self.draft_head, state)

    # -- drafting ----------------------------------------------------------------------------------------------------

    def start(self, batch: int, capacity: int, device: torch.device) -> State:
        if not isinstance(self.lm, ContextLM):
            return State()
        dtype = self.lm.read.weight.dtype
        shape = (batch, self.lm.heads, capacity + 1, self.lm.size // self.lm.heads)
        layers = range(len(self.lm.blocks))
        return State(
            keys=[torch.zeros(shape, dtype=dtype, device=device) for _ in layers],
            values=[torch.zeros(shape, dtype=dtype, device=device) for _ in layers],
        )

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        count = min(plan.count, self.settings.num_speculative_tokens)
        batch, device = len(context.lengths), context.tokens.device
        if context.hidden.shape[1] == 0:
            return Draft.empty(batch, device)
        fresh = self._fresh(context, state)
        if count == 0 or bool((context.fresh == 0).any()):  # one-token prompts have no state yet
            if isinstance(self.lm, ContextLM):
                self._remember(fresh)  # now or never
            return Draft.empty(batch, device)
        coins = None if sampling.greedy else uniform((batch, count), rng, device)
        draft = self._ready[0](fresh, coins, count, sampling) if self._ready else None
        tokens, probs = draft or self.draft(fresh, coins, count, sampling)
        return Draft.chain(tokens, probs, self.vocab)

    def _fresh(self, context: Context, state: State) -> Fresh:
        """What the last step brought, and how much of the memory may be seen."""
        lengths, hidden = context.lengths, context.hidden
        start = lengths - 1 - context.fresh  # (B,) position of the first fresh state
        positions = start[:, None] + torch.arange(hidden.shape[1], device=start.device)
        following = context.tokens.gather(1, (positions + 1).clamp(max=context.tokens.shape[1] - 1)).clamp(min=0)
        keys, values, visible = [], [], None
        if isinstance(self.lm, ContextLM):
            keys, values = state.values["keys"], state.values["values"]
            positions = positions.clamp(max=keys[0].shape[2] - 1)  # shorter rows write rubbish behind their end, unseen
            seen = lengths - 1
            visible = (torch.arange(int(seen.max()), device=seen.device) < seen[:, None])[:, None]
        return Fresh(context.last(), following, positions, hidden, context.fresh, lengths, keys, values, visible)

    def _remember(self, fresh: Fresh) -> Memory:
        """Add the pairs that the last step completed; rejected ones were never written."""
        memory = Memory(fresh.keys, fresh.values, None, fresh.positions)
        self.lm.remember(self.distant(fresh.hidden), self.embed(fresh.following), fresh.positions, memory)
        assert fresh.visible is not None
        width = fresh.visible.shape[-1]
        keys, values = [k[:, :, :width] for k in fresh.keys], [v[:, :, :width] for v in fresh.values]
        return Memory(keys, values, fresh.visible, fresh.lengths[:, None] - 1)

    def draft(self, fresh: Fresh, coins: Tensor | None, count: int, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
        """Drafted ids (B, count) and, when sampling, their laws (B, count, V_draft); no host synchronisation."""
        memory = self._remember(fresh) if isinstance(self.lm, ContextLM) else None
        rows = torch.arange(len(fresh.lengths), device=fresh.lengths.device)
        newest = fresh.hidden[rows, fresh.count - 1][:, None]  # (B, 1, F, H)
        last, distant = newest[:, :, -1], self.distant(newest)
        inner = self.lm.begin(distant) if self.lm is not None else None
        ids, tokens, laws = fresh.last, [], []
        for step in range(count):
            recent, inner = self._step(ids, inner, memory)
            law = distribution(self.head(self.fuse(last, distant, recent, step)), sampling)
            choice = law.tokens
            if law.probs is not None:
                assert coins is not None
                choice = pick(law.probs, coins[:, step : step + 1])
                laws.append(law.probs)
            assert choice is not None
            ids = choice if self.vocab is None else self.vocab[choice]
            tokens.append(ids)
        return torch.cat(tokens, 1), torch.cat(laws, 1) if laws else None


@dataclass(slots=True)
class Fresh:
    """What `SemiDrafter.draft` reads; row b has ``count[b]`` states that it has not seen yet."""

    last: Tensor  # (B, 1) newest committed token
    following: Tensor  # (B, n) token after each fresh state
    positions: Tensor  # (B, n) their positions
    hidden: Tensor  # (B, n, F, H)
    count: Tensor  # (B,)
    lengths: Tensor  # (B,) committed tokens
    keys: list[Tensor]  # (B, heads, T, d) memory of each layer of a `context` h_q
    values: list[Tensor]
    visible: Tensor | None  # (B, 1, width) which slots of it a row may see
