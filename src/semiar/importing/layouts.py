"""How the original projects lay out their drafters' tensors, and the same drafters here.

A reader gets the checkpoint's tensors by name and the scale of the drafter's embeddings (ours are brought to unit
scale, so what multiplies an original embedding is divided by it), and says what it found as an `Original`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from semiar.errors import PairError

Tensors = dict[str, Tensor]
PARTS = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class Original:
    """A checkpoint in our terms."""

    count: int | None  # K, or None where any number of steps can be drafted
    options: dict[str, object]
    weights: Tensors  # by our names


def medusa(tensors: Tensors, scale: float) -> Original:
    """Medusa: ``K.L.linear`` is block L of head K, ``K.N.weight`` behind N blocks its output matrix (may be absent)."""
    tensors = stripped(tensors, "medusa_head.")
    count, blocks = _blocks(tensors, "", "0.0.linear.weight")
    weights = _residual(tensors, "", count, blocks)
    own = {f"own.{head}.weight": tensors[f"{head}.{blocks}.weight"] for head in _headed(tensors, count, blocks)}
    heads = "own" if len(own) == count else "shared"
    return Original(count, {"blocks": blocks, "heads": heads}, weights | own)


def hydra(tensors: Tensors, scale: float) -> Original:
    """Hydra: ``hydra_mlp.K.0`` reads [h; e(d_1)..e(d_K)], with ``res_connection`` past it; ``hydra_lm_head.K``."""
    tensors = stripped(tensors, "hydra_head.")
    count, blocks = _blocks(tensors, "hydra_mlp.", "hydra_mlp.0.0.res_connection.weight")
    weights = _residual(tensors, "hydra_mlp.", count, blocks)
    for head in range(count):
        for part in PARTS:
            name = f"{head}.0.res_connection.{part}"
            weights[f"steps.{name}"] = _take(tensors, f"hydra_mlp.{name}")
        for part in ("linear", "res_connection"):
            name = f"steps.{head}.0.{part}.weight"
            size = weights[name].shape[0]
            weights[name] = torch.cat([weights[name][:, :size], weights[name][:, size:] / scale], 1)
    own = {f"own.{i}.weight": t for i in range(count) if (t := tensors.get(f"hydra_lm_head.{i}.weight")) is not None}
    heads = "own" if len(own) == count else "shared"
    return Original(count, {"blocks": blocks, "heads": heads, "skip": "linear"}, weights | own)


def recurrent(tensors: Tensors, scale: float) -> Original:
    """ReDrafter: ``rnn_w`` reads the token, ``rnn_u`` (with bias) the state; ``lm_head`` is blocks, then a matrix."""
    tensors = stripped(tensors, "drafter.")
    blocks = len({name for name in tensors if re.fullmatch(r"lm_head\.\d+\.linear\.weight", name)})
    weights = {
        "token.weight": _take(tensors, "rnn_w.weight") / scale,
        "token.bias": _take(tensors, "rnn_u.bias"),
        "state.weight": _take(tensors, "rnn_u.weight"),
        "own.0.weight": _take(tensors, f"lm_head.{blocks}.weight"),
    }
    for block in range(blocks):
        for part in PARTS:
            weights[f"blocks.{block}.linear.{part}"] = _take(tensors, f"lm_head.{block}.linear.{part}")
    return Original(None, {"blocks": blocks, "heads": "own", "first": "token"}, weights)


LAYOUTS: dict[str, Callable[[Tensors, float], Original]] = {"medusa": medusa, "hydra": hydra, "recurrent": recurrent}


def stripped(tensors: Tensors, prefix: str) -> Tensors:
    """The names without a prefix that some versions of a checkpoint have."""
    return {name.removeprefix(prefix): value for name, value in tensors.items()}


def _blocks(tensors: Tensors, prefix: str, first: str) -> tuple[int, int]:
    """How many heads there are, and blocks in each."""
    _take(tensors, first)
    found = [re.fullmatch(re.escape(prefix) + r"(\d+)\.(\d+)\.linear\.weight", name) for name in tensors]
    places = {(int(m[1]), int(m[2])) for m in found if m}
    return 1 + max(head for head, _ in places), 1 + max(block for _, block in places)


def _residual(tensors: Tensors, prefix: str, count: int, blocks: int) -> Tensors:
    """The blocks ``silu(linear(x))`` of every head."""
    names = [f"{head}.{block}.linear.{part}" for head in range(count) for block in range(blocks) for part in PARTS]
    return {f"steps.{name}": _take(tensors, prefix + name) for name in names}


def _headed(tensors: Tensors, count: int, blocks: int) -> list[int]:
    """Heads that come with an output matrix."""
    return [head for head in range(count) if f"{head}.{blocks}.weight" in tensors]


def _take(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise PairError(
            f"the checkpoint has no tensor '{name}' (but {', '.join(sorted(tensors)[:3])}, ...)",
            "the original project's layout",
            "check --architecture",
        )
    return tensors[name]
