"""The semi-autoregressive drafter ("Semi-autoregressive Decoding for Efficient LLM Inference").

The target's own state h_p, computed when the last verified token was, carries the distant past; a small language model
h_q over the tokens drafted since carries the recent ones; a fusion gives the vector that the draft head reads:
``q(x_{t+1+k} | x_1..x_t, d_1..d_k) = softmax(Head(Fuse(h_p, h_q(d_1..d_k))))``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from semiar.core.draft import Draft
from semiar.core.sampling import Sampling, distribution, draw
from semiar.drafters.base import Context, Drafter, DrafterSettings, State, register, resolve_layers
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

    def bind(self, target: Target) -> SemiDrafter:
        ids = torch.arange(target.vocab_size) if self.vocab is None else self.vocab
        self.draft_head.bind(target, ids)
        self._embedding = [target.embedding.detach()]
        return self

    def prepare(self) -> None:
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
        self, context: Context, state: State, count: int, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        count = min(count, self.settings.num_speculative_tokens)
        rows = torch.arange(len(context.lengths), device=context.tokens.device)
        if context.hidden.shape[1] == 0:
            return Draft.empty(len(rows), context.tokens.device)
        memory = self._read_fresh(context, state) if isinstance(self.lm, ContextLM) else None  # now or never
        if count == 0 or bool((context.fresh == 0).any()):
            return Draft.empty(len(rows), context.tokens.device)  # one-token prompts have no state yet
        newest = context.hidden[rows, context.fresh - 1][:, None]  # (B, 1, F, H)
        last, distant = newest[:, :, -1], self.distant(newest)
        inner = self.lm.begin(distant) if self.lm is not None else None
        ids, tokens, laws = context.last(), [], []
        for step in range(count):
            recent, inner = self._step(ids, inner, memory)
            logits = self.head(self.fuse(last, distant, recent, step))
            law = distribution(logits, sampling)
            choice = law.tokens if law.probs is None else draw(law.probs, rng)
            assert choice is not None
            ids = choice if self.vocab is None else self.vocab[choice]
            tokens.append(ids)
            laws.append(law.probs)
        probs = None if laws[0] is None else torch.cat(laws, 1)  # type: ignore[arg-type]
        return Draft.chain(torch.cat(tokens, 1), probs, self.vocab)

    def _read_fresh(self, context: Context, state: State) -> Memory:
        """Add the pairs that the last step completed; rejected ones were never written."""
        start = context.lengths - 1 - context.fresh  # (B,) position of the first fresh state
        steps = torch.arange(context.hidden.shape[1], device=start.device)
        positions = start[:, None] + steps  # rows that are shorter write rubbish behind their end, unseen
        keys, values = state.values["keys"], state.values["values"]
        positions = positions.clamp(max=keys[0].shape[2] - 1)
        following = context.tokens.gather(1, (positions + 1).clamp(max=context.tokens.shape[1] - 1)).clamp(min=0)
        self.lm.remember(
            self.distant(context.hidden), self.embed(following), positions, Memory(keys, values, None, positions)
        )
        seen = context.lengths - 1
        width = int(seen.max())
        visible = None
        if len(seen) > 1:
            visible = (torch.arange(width, device=seen.device) < seen[:, None])[:, None]
        return Memory([k[:, :, :width] for k in keys], [v[:, :, :width] for v in values], visible, seen[:, None])
