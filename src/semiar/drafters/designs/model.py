"""A separate small causal LM with the target's tokenizer as drafter (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, uniform
from semiar.drafters.base import Context, Drafter, State
from semiar.drafters.cached import CacheState, Paths, unread
from semiar.drafters.drawing import draw_chain
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.layers.heads import DraftHead, limited_head
from semiar.drafters.memory import newest
from semiar.drafters.registry import register
from semiar.drafters.settings import HeadSettings
from semiar.errors import ConfigError, PairError
from semiar.settings import Load
from semiar.targets.cache import Cache
from semiar.targets.check import check_target
from semiar.targets.engines import prepare as engines
from semiar.targets.engines.packed import can_pack
from semiar.targets.load import load_model, load_tokenizer
from semiar.targets.target import LAST, Target

SAMPLE = 1024  # numbers of each weight that the fingerprint looks at


@dataclass(frozen=True)
class ModelSettings(HeadSettings):
    """Which model drafts."""

    architecture: str = "model"
    model: str = ""
    """Hub id or folder of a small causal LM with the target's tokenizer."""


@register("model")
class ModelDrafter(Drafter):
    """Chains and trees of the small model's own tokens, drawn from its own law when sampling.

    It stays a reference: name and fingerprint are saved, not its weights.  Drafted are the ids that both heads have,
    or those of the draft vocabulary.  A step is one pass over what was committed since the last one, then one per
    further token.  When a text outgrows the small model's context, its batch goes on without drafts.
    """

    Settings = ModelSettings
    FACTS = Facts(
        "draft model", "a separate small LM with the target's tokenizer",
        "Fast Inference from Transformers via Speculative Decoding (Leviathan et al. 2023)",
        Distant.OWN, Recent.SAME, learns=False, attach="alone",
    )  # fmt: skip

    def __init__(self, settings: ModelSettings, target: Target, vocab: Tensor | None, fingerprint: str = ""):
        super().__init__(settings)
        name = settings.model
        if not name:
            raise ConfigError("drafter model without a model", "--drafter.model with a hub id or folder")
        own = Target(load_model(name, Load(dtype="float32", device="cpu")))
        check_target(own)
        self.fingerprint = fingerprint_of(own)
        if fingerprint and fingerprint != self.fingerprint:
            raise PairError(f"'{name}' is not the model that this drafter was made of", "the same weights")
        common = min(own.vocab_size, target.vocab_size)
        if vocab is None and common < target.vocab_size:
            vocab = torch.arange(common)
        if vocab is not None and int(vocab.max()) >= common:
            raise PairError(f"a draft vocabulary with token {int(vocab.max())}", f"ids below {common}")
        self.common = common
        self.register_buffer("d2t", vocab)
        self._own = [own.requires_grad_(False)]  # in lists: they are not ours to save
        self._head: list[DraftHead] = []

    @property
    def own(self) -> Target:
        """The small model."""
        return self._own[0]

    def bind(self, target: Target) -> ModelDrafter:
        self.own.to(device=target.device, dtype=target.dtype)
        head = limited_head(self.own, self.vocab)
        self._head = [head] if head else []
        return self

    def prepare(self, engine: str = "packed") -> None:
        if can_pack(self.own.device, self.own.dtype):
            engines.prepare(self.own, engine)
        for head in self._head:
            head.prepare()

    def extra_config(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint}

    def check_tokenizer(self, tokenizer: Any) -> None:
        name = self.settings.model
        known, own = tokenizer.get_vocab(), load_tokenizer(name).get_vocab()
        other = next((word for word in sorted(known, key=known.get) if own.get(word) != known[word]), None)
        if other is not None:
            raise PairError(
                f"{other!r} is token {known[other]} of the target and {own.get(other, 'none')} of '{name}'",
                "a model with the target's tokenizer",
            )
        if len(tokenizer) > self.own.vocab_size:
            raise PairError(f"'{name}' has {self.own.vocab_size} rows", f"one for each of {len(tokenizer)} tokens")

    # -- drafting ----------------------------------------------------------------------------------------------------

    def start(self, batch: int, capacity: int, device: torch.device) -> CacheState:
        return CacheState(self.own.start(batch, capacity))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        assert isinstance(state, CacheState)
        count = min(plan.count, self.settings.num_speculative_tokens)
        batch, device, cache = len(context.lengths), context.tokens.device, state.cache
        if count == 0 or int(context.lengths.max()) + count > self.own.max_length:
            return Draft.empty(batch, device)  # what is missed now is read when it drafts again
        tokens, need = unread(context, cache)
        first = newest(self.own.prefill(self._known(tokens), need, cache, (LAST,)), need)[:, :, -1]
        if plan.tree != "none":

            def run(tokens: Tensor, depths: Tensor, mask: Tensor) -> Tensor:
                return self.own(self._known(tokens), cache, depths=depths, mask=mask, logits=False).hidden[:, :, -1]

            paths = Paths(first, run, self._logits, self.vocab)
            return paths.tree(context.last(), plan, count, sampling, rng)
        committed = cache.lengths
        coins = None if sampling.greedy else uniform((batch, count), rng, device)

        def following(ids: Tensor, step: int) -> Tensor:
            return self._read(ids, cache) if step else self._logits(first)

        drafted, laws = draw_chain(following, context.last(), coins, count, sampling, self.vocab, plan.stop_below)
        cache.rewind(committed)
        return Draft.chain(drafted, laws, self.vocab)

    def _read(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Run one more drafted token (B, 1) of each row; logits (B, 1, V_draft)."""
        out = self.own(self._known(tokens), cache, logits=not self._head)
        cache.keep(torch.zeros_like(tokens), chain=True)
        return self._logits(out.hidden[:, :, -1]) if out.logits is None else out.logits[..., : self.common]

    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits (B, n, V_draft) of states (B, n, H)."""
        return self._head[0](hidden) if self._head else self.own.head(hidden)[..., : self.common]

    def _known(self, tokens: Tensor) -> Tensor:
        """Ids with a row of their own; only one that pads the target's head, which no text has, can be without."""
        return tokens.clamp(max=self.own.embedding.shape[0] - 1)


def fingerprint_of(model: Target) -> str:
    """Identity of the weights, from the first numbers of each; the same on every machine."""
    seen = hashlib.sha256()
    for name, value in model.lm.named_parameters():
        sample = value.detach().flatten()[:SAMPLE].float().cpu().numpy().tobytes()
        seen.update(f"{name} {tuple(value.shape)} ".encode() + sample)
    return seen.hexdigest()
