"""The decision of a speculative step: which drafted tokens stay, and which token the target adds.

The emitted tokens follow the target's law exactly, whatever the draft, as long as ``draft.probs`` is the law that the
tokens were sampled from (or None where they were chosen without looking at their future).

* Rejection rule (Leviathan et al. 2023, Chen et al. 2023): keep x with probability min(1, t(x) / d(x)); at the first
  rejection emit from norm(max(t - d, 0)); after the last node emit from t.
* A chosen token is the same rule with d a point mass: keep with t(x), else emit from t without x.
* A greedy target is the same rule with t a point mass: keep what equals it.  No randomness is used.
* Block verification (Sun et al. 2024) judges the chain as a whole and keeps a few per cent more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semiar.core.accept_tree import accept_tree
from semiar.core.draft import Draft, Verdict
from semiar.core.proposal import check_fit, leftover, own_probs
from semiar.core.sampling import Law, draw, uniform
from semiar.errors import ConfigError


def accept(draft: Draft, target: Law, rng: torch.Generator | None, *, block: bool = False) -> Verdict:
    """Judge ``draft`` (N nodes) by the target's law at its N + 1 slots; slot i holds the law of what follows slot i.

    A node of -1, or one to which its own law gives probability 0, counts as no node: it is never kept, and the token
    emitted in its place comes from the target's law itself.  D of the verdict is N for a chain, the deepest node for
    a tree.  Chains need no loop over positions and no host synchronisation.

    ``block`` asks for block verification of a chain.  With a greedy target or chosen tokens its acceptance is that of
    the ordinary rule (all P_i are 0 or 1, or the plain product of t), so the ordinary rule is used; for a tree it is
    a ConfigError.  ConfigError also if something must be drawn and ``rng`` is None; PairError if the vocabularies of
    draft and target differ.
    """
    check_fit(draft, target)
    if not draft.is_chain:
        if block:
            raise ConfigError("block verification of a tree", "a chain", "switch block verification off")
        return accept_tree(draft, target, rng)
    if target.tokens is not None:
        counts = _run_length(draft.tokens == target.tokens[:, :-1])
        return _chain_verdict(draft, counts, target.tokens.gather(1, counts.unsqueeze(1)))
    if block and draft.probs is not None and draft.count > 0:
        return _accept_block(draft, target, rng)
    return _accept_each(draft, target, rng)


def _accept_each(draft: Draft, target: Law, rng: torch.Generator | None) -> Verdict:
    """Sampled target, token by token."""
    given = own_probs(draft, target)
    coins = uniform(given.shape, rng, given.device)
    counts = _run_length((coins * given < target.at(draft.tokens)) & (given > 0))
    law = target.row(counts)
    return _chain_verdict(draft, counts, draw(_corrected(law, law, draft, counts, given), rng).unsqueeze(1))


def _accept_block(draft: Draft, target: Law, rng: torch.Generator | None) -> Verdict:
    """Sampled target and sampled chain, judged as a whole; K is counted per row, where its nodes end.

    P_i = min(P_{i-1} t(x_i) / d(x_i), 1) is a walk reflected at log P = 0, hence a cumulative sum and maximum.  With
    D_i = sum max(P_i t - d, 0), the chain is kept up to the largest i whose own uniform is below
    h_i = D_i / (D_i + 1 - P_i), or h_K = P_K at the end of the row's chain.
    """
    given = own_probs(draft, target)
    last = _run_length(given > 0)  # (B,) K of each row
    ratio = target.at(draft.tokens) / torch.where(given > 0, given, 1.0)
    walk = ratio.log().cumsum(1)
    keep = (walk - walk.cummax(1).values.clamp(min=0)).exp()  # (B, N) P_1..P_N
    slots = torch.arange(1, draft.count + 1, device=given.device)
    bar = torch.where(slots == last.unsqueeze(1), keep, _block_bars(keep, draft, target))
    passed = (uniform(bar.shape, rng, bar.device) < bar) & (slots <= last.unsqueeze(1))
    counts = (passed * slots).amax(1)
    scale = torch.cat((torch.ones_like(keep[:, :1]), keep), 1).gather(1, counts.unsqueeze(1))
    law = target.row(counts)
    token = draw(_corrected(law, scale * law, draft, counts, given), rng)
    return _chain_verdict(draft, counts, token.unsqueeze(1))


def _block_bars(keep: Tensor, draft: Draft, target: Law) -> Tensor:
    """h_i (B, N) of the nodes that have another one after them; the last column is not used."""
    assert draft.probs is not None, "block verification of chosen tokens"
    ahead = target.dense[:, 1:-1]  # (B, N - 1, V) what follows nodes 1..N-1
    weight = keep[:, :-1].unsqueeze(-1)
    guess = draft.probs[:, 1:]
    outside = torch.zeros_like(weight)
    if draft.vocab is not None:
        inside = ahead[..., draft.vocab]
        outside = weight * (ahead.double().sum(-1, keepdim=True) - inside.double().sum(-1, keepdim=True)).clamp(min=0)
        ahead = inside
    excess = (weight * ahead - guess).clamp(min=0).sum(-1) + outside.squeeze(-1)
    whole = excess + 1 - keep[:, :-1]
    bars = torch.where(whole > 0, excess / whole, 1.0)  # 0 / 0: P = 1 and t equals d, nothing to lose
    return torch.cat((bars, keep[:, -1:]), 1)


def _corrected(law: Tensor, scaled: Tensor, draft: Draft, counts: Tensor, given: Tensor) -> Tensor:
    """Law (B, V), not normalised, of the emitted token: what the draft left of ``scaled`` where a node was rejected."""
    if draft.count == 0:
        return law
    node = counts.clamp(max=draft.count - 1)
    rejected = (counts < draft.count) & (given.gather(1, node.unsqueeze(1)).squeeze(1) > 0)
    left = leftover(scaled, draft, node)
    usable = rejected & (left.sum(-1) > 0)  # nothing left: t equals d up to rounding, so t itself is right
    return torch.where(usable.unsqueeze(1), left, law)


def _run_length(kept: Tensor) -> Tensor:
    """Number of leading True values of each row of ``kept`` (B, N)."""
    return kept.long().cumprod(1).sum(1)


def _chain_verdict(draft: Draft, counts: Tensor, emitted: Tensor) -> Verdict:
    """Pack ``counts`` (B,) kept nodes and the ``emitted`` token (B, 1) of each row."""
    slots = torch.arange(draft.count + 1, device=counts.device)
    end = counts.unsqueeze(1)
    padded = torch.cat((draft.tokens, emitted), 1)
    tokens = torch.where(slots < end, padded, torch.where(slots == end, emitted, -1))
    return Verdict(tokens, torch.where(slots <= end, slots, -1), counts)
