"""What draft vocabularies of several sizes cover and cost, without training a drafter for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from semiar.advising.choice import Heads
from semiar.data.batches import answers_of
from semiar.decoding.calibrate import interleaved
from semiar.drafters.layers.heads import DraftHead, choose_vocab, count_tokens
from semiar.pair import Pair
from semiar.targets import Target
from semiar.targets.engines.packed import can_pack

SIZES = (2048, 4096, 8192)
Examples = Sequence[Mapping[str, Sequence[int]]]


def measure_heads(pair: Pair, examples: Examples, learned: int, trained: int | str) -> Heads:
    """Milliseconds of the head on this machine, and coverage of answers that the vocabulary was not counted in.

    The candidates have the vocabulary of size ``trained`` of the first ``learned`` examples.
    """
    target, ends = pair.target, pair.end_ids()
    sizes: list[int | str] = [size for size in SIZES if size < target.vocab_size]
    sizes.append("full")
    everything = torch.arange(target.vocab_size)
    known, other = (_counts(part, target.vocab_size) for part in (examples[:learned], examples[learned:]))
    ids = [choose_vocab(known + other, size, ends) for size in sizes]
    used = choose_vocab(known, trained, ends)
    rows = [everything if one is None else one for one in (*ids, used)]
    distinct = {len(one): one for one in rows}  # of one length are the same, or cost the same
    times = dict(zip(distinct, interleaved([_head(target, one) for one in distinct.values()]), strict=True))
    covered = [coverage(examples, size, ends, target.vocab_size) for size in sizes]
    seen = _share(other, used) if other.sum() else coverage(examples, trained, ends, target.vocab_size)
    names = [str(size) for size in sizes]
    spent = [times[len(one)] for one in rows]
    return Heads(dict(zip(names, spent[:-1], strict=True)), dict(zip(names, covered, strict=True)), (spent[-1], seen))


def coverage(examples: Examples, size: int | str, ends: list[int], vocab_size: int) -> float:
    """Share of one half's answer tokens that are in the vocabulary counted in the other half, both ways."""
    halves = [_counts(part, vocab_size) for part in (examples[::2], examples[1::2])]
    shares = [_share(asked, choose_vocab(seen, size, ends)) for seen, asked in (halves, halves[::-1])]
    return sum(shares) / len(shares)


def _share(counts: Tensor, vocab: Tensor | None) -> float:
    return 1.0 if vocab is None or not counts.sum() else float(counts[vocab].sum() / counts.sum())


def _counts(examples: Examples, vocab_size: int) -> Tensor:
    return count_tokens(answers_of(examples), vocab_size)


def _head(target: Target, ids: Tensor) -> Callable[[], None]:
    """One position through the target's rows for these ids, as a drafter's head runs it."""
    head = DraftHead(target.hidden_size, len(ids), 0).eval()
    head.bind(target, ids)
    if can_pack(target.device, target.dtype):
        head.prepare()
    state = torch.zeros(1, 1, target.hidden_size, dtype=target.dtype, device=target.device)

    @torch.inference_mode()
    def run() -> None:
        head(state).argmax(-1)

    return run
