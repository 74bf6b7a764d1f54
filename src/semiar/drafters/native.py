"""The K steps of a semi-autoregressive drafter as one call of a kernel of our own (`native.cpp`), on a CPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semiar.core.sampling import COLDEST, Sampling
from semiar.drafters.context_lm import ContextLM
from semiar.drafters.fusion import Fusion
from semiar.drafters.norm import EPSILON
from semiar.targets.blocks import address, gather
from semiar.targets.kernels import library
from semiar.targets.native import Integer, Pointer

SOURCE = Path(__file__).with_suffix(".cpp")
MOST = 64  # fresh states; more come with a prompt, and are read by the ordinary way
WEIGHTS = (
    "join", "read", "places", "norm", "qkv", "out", "fuse_norm", "wide", "wide_bias", "narrow", "narrow_bias", "head",
    "head_bias",
)  # fmt: skip


class Drafter(ctypes.Structure):
    _fields_ = [
        *((name, Integer) for name in ("hidden", "heads", "features", "rows", "steps")),
        *((name, ctypes.c_float) for name in ("scale", "epsilon")),
        *((name, Pointer) for name in ("embedding", "norms", *WEIGHTS, "vocabulary", "cosines", "sines")),
    ]


class Draft(ctypes.Structure):
    _fields_ = [
        *((name, Integer) for name in ("count", "fresh", "position", "threads")),
        *((name, Pointer) for name in ("tokens", "hidden", "keys", "values")),
        ("head_stride", Integer),
        ("temperature", ctypes.c_float),
        *((name, Pointer) for name in ("coins", "ids", "laws")),
    ]


def why_not(drafter: Any) -> str:
    """What keeps this drafter from being run by the kernel; empty when nothing does."""
    if not isinstance(drafter.lm, ContextLM) or len(drafter.lm.blocks) != 1 or type(drafter.fuse) is not Fusion:
        return "it is made for small_lm context with one layer and fusion concat"
    if not drafter.draft_head.plain:
        return "the architecture scales or caps its logits"
    kinds = {one.dtype for one in drafter.parameters()} | {drafter._embedding[0].dtype}
    if len(kinds) > 1 or not kinds <= {torch.bfloat16, torch.float32}:
        return "it takes bfloat16 or float32"
    return ""


class NativeDraft:
    """Drafts for one row by one call; the drafter's weights are copied."""

    def __init__(self, drafter: Any):
        kernels, half = library(SOURCE), int(drafter._embedding[0].dtype == torch.bfloat16)
        self.drafter, self.call, grouped = drafter, kernels.semiar_draft, bool(kernels.semiar_in_blocks(half))
        block, fuse, features = drafter.lm.blocks[0], drafter.fuse, drafter.features
        found = {
            "join": None if features.join is None else features.join.weight, "read": drafter.lm.read.weight,
            "places": drafter.lm.steps.weight, "norm": block.norm.weight, "qkv": block.qkv.weight,
            "out": block.out.weight, "fuse_norm": fuse.norm.weight, "wide": fuse.wide.weight,
            "wide_bias": fuse.wide.bias, "narrow": fuse.narrow.weight, "narrow_bias": fuse.narrow.bias,
            "head": drafter.draft_head.fused(), "head_bias": drafter.draft_head.bias,
        }  # fmt: skip
        (copies,), norms = gather([found], [norm.weight for norm in features.norms], grouped, ("places",))
        self.norms = (Pointer * len(norms))(*(address(one) for one in norms))
        embedding = drafter._embedding[0]
        self.kept = (copies, norms, embedding, drafter.vocab)
        self.known = 0  # positions whose angles are known
        self.shape = Drafter(
            drafter.size, drafter.lm.heads, len(norms), drafter.rows, drafter.settings.num_speculative_tokens,
            drafter.scale, EPSILON, address(embedding), ctypes.addressof(self.norms),
            *(address(copies[name]) for name in WEIGHTS), address(drafter.vocab),
        )  # fmt: skip

    def __call__(
        self, fresh: Any, coins: Tensor | None, count: int, sampling: Sampling
    ) -> tuple[Tensor, Tensor | None] | None:
        """What `ChainDrafter.draft` gives, or None for what it has to do itself: more rows, a cut law."""
        new, cut = int(fresh.count[0]), bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)
        if len(fresh.lengths) > 1 or (cut and coins is not None):
            return None
        if new > MOST:  # a prompt: read the ordinary way, and its newest state once more by the kernel
            self.drafter.recall(fresh)
            last = slice(new - 1, new + 1)
            fresh, new = replace(fresh, hidden=fresh.hidden[:, last][:, :1], tokens=fresh.tokens[:, last]), 1
        keys, values = fresh.keys[0], fresh.values[0]
        self._angles(keys.shape[2])
        ids = torch.empty(1, count, dtype=torch.long)
        laws = None if coins is None else torch.empty(1, count, self.drafter.rows)
        hidden, tokens = fresh.hidden.contiguous(), fresh.tokens.contiguous()
        draft = Draft(
            count, new, int(fresh.lengths[0]) - 2, torch.get_num_threads(), address(tokens), address(hidden),
            keys.data_ptr(), values.data_ptr(), keys.stride(1),
            0.0 if coins is None else max(sampling.effective_temperature, COLDEST),
            address(coins), address(ids), address(laws),
        )  # fmt: skip
        self.call(ctypes.byref(self.shape), ctypes.byref(draft), int(hidden.dtype == torch.bfloat16))
        return ids, laws

    def _angles(self, positions: int) -> None:
        """Have the rotary cosines and sines of so many positions."""
        if positions > self.known:
            found = self.drafter.lm.rotary(torch.arange(positions), self.drafter._embedding[0].dtype)
            self.angles = [part[:, 0].float().contiguous() for part in found]
            self.shape.cosines, self.shape.sines = (address(part) for part in self.angles)
            self.known = positions
