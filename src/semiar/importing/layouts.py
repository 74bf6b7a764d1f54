"""How the original projects lay out their drafters' tensors, and the same drafters here.

A reader gets the checkpoint's tensors by name and the target that they were trained for, and says what it found as an
`Original`.  Our drafters' embeddings are brought to unit scale, so what multiplies an original embedding is divided by
that scale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from semiar.drafters.chain import unit_scale
from semiar.errors import PairError
from semiar.targets import Target

Tensors = dict[str, Tensor]
PARTS = ("weight", "bias")
EAGLE = {
    **{f"fc.{part}": f"fc.{part}" for part in PARTS},
    **{f"layer.{name}_proj.weight": f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"layer.{name}_proj.weight": f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    "layer.norm.weight": "layers.0.post_attention_layernorm.weight",
}  # our names, and those of EAGLE-1


@dataclass(frozen=True, slots=True)
class Original:
    """A checkpoint in our terms."""

    count: int | None  # K, or None where any number of steps can be drafted
    options: dict[str, object]
    weights: Tensors  # by our names
    scale: float | None = None  # of the embeddings, where it is not the one that brings them to unit scale


def medusa(tensors: Tensors, target: Target) -> Original:
    """Medusa: ``K.L.linear`` is block L of head K, ``K.N.weight`` behind N blocks its output matrix (may be absent)."""
    tensors = stripped(tensors, "medusa_head.")
    count, blocks = _blocks(tensors, "", "0.0.linear.weight")
    weights = _residual(tensors, "", count, blocks)
    own = {f"own.{head}.weight": tensors[f"{head}.{blocks}.weight"] for head in _headed(tensors, count, blocks)}
    heads = "own" if len(own) == count else "shared"
    return Original(count, {"blocks": blocks, "heads": heads}, weights | own)


def hydra(tensors: Tensors, target: Target) -> Original:
    """Hydra: ``hydra_mlp.K.0`` reads [h; e(d_1)..e(d_K)], with ``res_connection`` past it; ``hydra_lm_head.K``."""
    tensors = stripped(tensors, "hydra_head.")
    scale = unit_scale(target)
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


def recurrent(tensors: Tensors, target: Target) -> Original:
    """ReDrafter: ``rnn_w`` reads the token, ``rnn_u`` (with bias) the state; ``lm_head`` is blocks, then a matrix."""
    tensors = stripped(tensors, "drafter.")
    blocks = len({name for name in tensors if re.fullmatch(r"lm_head\.\d+\.linear\.weight", name)})
    weights = {
        "token.weight": _take(tensors, "rnn_w.weight") / unit_scale(target),
        "token.bias": _take(tensors, "rnn_u.bias"),
        "state.weight": _take(tensors, "rnn_u.weight"),
        "own.0.weight": _take(tensors, f"lm_head.{blocks}.weight"),
    }
    for block in range(blocks):
        for part in PARTS:
            weights[f"blocks.{block}.linear.{part}"] = _take(tensors, f"lm_head.{block}.linear.{part}")
    return Original(None, {"blocks": blocks, "heads": "own", "first": "token"}, weights)


def eagle(tensors: Tensors, target: Target) -> Original:
    """EAGLE-1: ``fc`` reads [e(x); h], ``layers.0`` is a Llama layer without a norm before its attention; no more."""
    tensors = {name: value for name, value in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    embedding = tensors.pop("embed_tokens.weight", target.embedding)
    if embedding.shape != target.embedding.shape or not _alike(embedding, target.embedding):
        raise PairError("the checkpoint has other token embeddings than the model", "the model that it was trained for")
    if "fc.bias" not in tensors:  # some versions have none
        tensors["fc.bias"] = torch.zeros_like(_take(tensors, "fc.weight")[:, 0])
    weights = {ours: _take(tensors, theirs) for ours, theirs in EAGLE.items()}
    unknown = sorted(set(tensors) - set(EAGLE.values()))
    if unknown:
        raise PairError(f"the checkpoint has {', '.join(unknown[:3])}", "EAGLE-1's layout, of one layer")
    rope = getattr(target.config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "default":
        raise PairError(f"rotary positions {rope.get('rope_type')} in the model", "plain ones, as EAGLE-1 has them")
    inner, epsilon = len(weights["layer.gate_proj.weight"]), getattr(target.config, "rms_norm_eps", 1e-6)
    shape = {"inner_size": inner, "rope_theta": float(rope["rope_theta"]), "norm_epsilon": float(epsilon)}
    return Original(None, {"version": 1, **shape}, weights, scale=1.0)


LAYOUTS: dict[str, Callable[[Tensors, Target], Original]] = {
    "medusa": medusa, "hydra": hydra, "recurrent": recurrent, "eagle": eagle,
}  # fmt: skip


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


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether these are the same numbers, each rounded to its own precision."""
    return torch.allclose(one.float(), other.detach().float(), rtol=1e-2, atol=1e-6)


def _take(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise PairError(
            f"the checkpoint has no tensor '{name}' (but {', '.join(sorted(tensors)[:3])}, ...)",
            "the original project's layout",
            "check --architecture",
        )
    return tensors[name]
