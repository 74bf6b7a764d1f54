"""A separate small causal LM with the target's tokenizer as drafter (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, distribution, pick, uniform
from semiar.drafters.base import Context, Drafter, DrafterSettings, State, register
from semiar.drafters.heads import DraftHead, limited_head
from semiar.drafters.lookup import only_chains
from semiar.drafters.settings import refuse_unused
from semiar.errors import ConfigError, PairError
from semiar.targets import engine as engines
from semiar.targets.cache import Cache
from semiar.targets.check import check_target
from semiar.targets.load import LoadSettings, load_model, load_tokenizer
from semiar.targets.packed import can_pack
from semiar.targets.target import LAST, Target

SAMPLE = 1024  # numbers of each weight that the fingerprint looks at


@dataclass(frozen=True)
class ModelOptions:
    """Which model drafts."""

    model: str = ""
    """Hub id or folder of a small causal LM with the target's tokenizer."""


class Memory(State):
    """A cache of the small model's own."""

    def __init__(self, cache: Cache):
        super().__init__()
        self.cache = cache

    def select(self, rows: Tensor) -> None:
        self.cache.select(rows)

    def join(self, other: State) -> None:
        assert isinstance(other, Memory)
        self.cache.join(other.cache)


@register("model")
class ModelDrafter(Drafter):
    """A chain of the small model's own tokens, drawn from its own law when sampling.

    It stays a reference: name and fingerprint are saved, not its weights.  Drafted are the ids that both heads have,
    or those of the draft vocabulary.  A step is one pass over what was committed since the last one, then one per
    further token.  When a text outgrows the small model's context, its batch goes on without drafts.
    """

    Options = ModelOptions

    def __init__(self, settings: DrafterSettings, target: Target, vocab: Tensor | None, fingerprint: str = ""):
        super().__init__(settings)
        refuse_unused(settings, self.name)
        name = self.options.model
        if not name:
            raise ConfigError("drafter model without a model", "--drafter.options.model with a hub id or folder")
        own = Target(load_model(name, LoadSettings(dtype="float32", device="cpu")))
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
        name = self.options.model
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

    def start(self, batch: int, capacity: int, device: torch.device) -> Memory:
        return Memory(self.own.start(batch, capacity))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        assert isinstance(state, Memory)
        only_chains(plan, self.name)
        count = min(plan.count, self.settings.num_speculative_tokens)
        batch, device = len(context.lengths), context.tokens.device
        if count == 0 or int(context.lengths.max()) + count > self.own.max_length:
            return Draft.empty(batch, device)  # what is missed now is read when it drafts again
        cache = state.cache
        logits = self._logits(self._catch_up(context, cache))
        committed = cache.lengths
        coins = None if sampling.greedy else uniform((batch, count), rng, device)
        tokens, laws = self._draft(logits, cache, coins, sampling, replace(plan, count=count))
        cache.rewind(committed)
        return Draft.chain(tokens, laws, self.vocab)

    def _catch_up(self, context: Context, cache: Cache) -> Tensor:
        """Run what was committed since the last call, at least the last step's; state (B, 1, H) of the newest token."""
        cache.rewind(torch.minimum(cache.lengths, context.lengths - context.fresh.clamp(min=1)))
        need = context.lengths - cache.lengths
        steps = torch.arange(int(need.max()), device=need.device)
        places = (cache.lengths[:, None] + steps).clamp(max=context.tokens.shape[1] - 1)
        hidden = self.own.prefill(self._known(context.tokens.gather(1, places)), need, cache, (LAST,))
        return hidden[torch.arange(len(need), device=need.device), need - 1, -1][:, None]

    def _draft(
        self, logits: Tensor, cache: Cache, coins: Tensor | None, sampling: Sampling, plan: Plan
    ) -> tuple[Tensor, Tensor | None]:
        """Ids (B, n) of at most ``plan.count`` tokens and, when sampling, their laws (B, n, V_draft)."""
        alive = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        for step in range(plan.count):
            law = distribution(logits, sampling)
            if law.probs is None:
                assert law.tokens is not None
                column = law.tokens
            else:
                assert coins is not None
                column = pick(law.probs, coins[:, step : step + 1])
                laws.append(law.probs)
            token = column if self.vocab is None else self.vocab[column]
            tokens.append(torch.where(alive, token, -1))
            if plan.stop_below:
                probs = logits.softmax(-1) if law.probs is None else law.probs
                alive = alive & (probs.gather(-1, column[..., None])[..., 0] >= plan.stop_below)
            if step + 1 == plan.count or (plan.stop_below and not bool(alive.any())):
                break
            logits = self._read(token, cache)
        return torch.cat(tokens, 1), torch.cat(laws, 1) if laws else None

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
