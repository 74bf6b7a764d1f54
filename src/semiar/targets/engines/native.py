"""Passes of Llama-like models by a kernel of our own (`native.cpp`), on a CPU.

A whole pass is one call: every weight is read once, at the speed of the memory, and nothing is dispatched in between.
What is computed for a token does not depend on how many others are in the pass, so a speculative pass gives the same
bits as plain decoding, also in bfloat16.  The kernel is compiled when it is first needed, for the machine it runs on.
"""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semiar.errors import TargetError
from semiar.targets.cache import Cache
from semiar.targets.engines.blocks import address, gather
from semiar.targets.engines.kernels import compiler, library
from semiar.targets.engines.layout import check_layout
from semiar.targets.engines.packed import Together, given_up

SOURCE = Path(__file__).with_suffix(".cpp")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPES = ("default", "linear", "llama3")  # whose angles depend on the position alone
PROJECTIONS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}

Pointer, Integer = ctypes.c_void_p, ctypes.c_int64
LAYER = ("input_norm", "qkv", "qkv_bias", "query_norm", "key_norm", "out", "post_norm", "gate_up", "down")
SIZES = ("layers", "hidden", "heads", "shared", "head_size", "inner", "vocab")


class Layer(ctypes.Structure):
    _fields_ = [(name, Pointer) for name in LAYER]


class Model(ctypes.Structure):
    _fields_ = [
        *((name, Integer) for name in SIZES),
        *((name, ctypes.c_float) for name in ("epsilon", "scaling")),
        *((name, Pointer) for name in ("layer", "embedding", "final_norm", "head", "cosines", "sines")),
    ]


class Pass(ctypes.Structure):
    _fields_ = [
        *((name, Integer) for name in ("rows", "count", "threads")),
        *((name, Pointer) for name in ("tokens", "lengths", "depths", "mask", "memory")),
        *((name, Integer) for name in ("row_stride", "head_stride")),
        ("wanted", Pointer),
        ("features", Integer),
        *((name, Pointer) for name in ("states", "logits")),
    ]


def kernel() -> Any:
    """The compiled passes.  Raises ``TargetError`` where they cannot be compiled or other structures are meant."""
    return check_layout(library(SOURCE), SOURCE, (Layer, Model, Pass))


def why_not(target: Any) -> str:
    """What keeps `target` from being run by the kernel; empty when nothing does."""
    config = target.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if target.device.type != "cpu" or target.dtype not in (torch.bfloat16, torch.float32):
        return f"{target.dtype} on {target.device.type}: bfloat16 or float32 on a CPU are supported"
    if config.model_type not in FAMILIES:
        return f"the architecture '{config.model_type}': {', '.join(FAMILIES)} are supported"
    if target.windows != {"": None}:
        return "a sliding window"
    if rope not in ROPES:
        return f"rotary positions of type '{rope}': {', '.join(ROPES)} are supported"
    if getattr(config, "hidden_act", "") != "silu":
        return f"the activation '{config.hidden_act}': silu is supported"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "biases in the output or feed-forward projections"
    for part, names in PROJECTIONS.items():
        layers = [getattr(getattr(block, part, None), name, None) for block in target.blocks for name in names]
        if any(type(layer) is not nn.Linear or layer.weight.dtype != target.dtype for layer in layers):
            return f"projections that are not plain linear layers of {target.dtype}"
    if any(layer.in_features % 2 for layer in target.decoder.modules() if isinstance(layer, nn.Linear)):
        return "a matrix with an odd number of inputs"
    if getattr(target.lm.get_output_embeddings(), "bias", None) is not None:
        return "a bias in the output head"
    return "" if compiler() else "no C++ compiler: g++, clang++ or the one that CXX names"


class Native:
    """The kernel with copies of one target's weights; its projections of one input must have been joined."""

    def __init__(self, target: Any):
        kernels = kernel()
        self.target, self.call, self.dtype = target, kernels.semiar_pass, target.dtype
        self.half = int(self.dtype == torch.bfloat16)
        head, last = target.lm.get_output_embeddings(), target.decoder.norm.weight
        weights = [layer_weights(block) for block in target.blocks]
        blocks, (last, output) = gather(weights, [last, head.weight], bool(kernels.semiar_in_blocks(self.half)))
        config = target.config
        attention = target.blocks[0].self_attn
        self.embedding = target.embedding.detach()
        self.kept = (blocks, last, output)
        rows = [Layer(*(address(block[name]) for name in LAYER)) for block in blocks]
        self.layers = (Layer * len(rows))(*rows)
        self.model = Model(
            len(blocks), target.hidden_size, config.num_attention_heads, config.num_key_value_heads,
            attention.head_dim, target.blocks[0].mlp.down_proj.in_features, head.out_features,
            config.rms_norm_eps, attention.scaling, ctypes.addressof(self.layers),
            address(self.embedding), address(last), address(output),
        )  # fmt: skip
        self.bytes = sum(one.nbytes for block in blocks for one in block.values() if one is not None) + output.nbytes
        self.known = 0  # positions whose angles are known
        self.angles: list[Tensor] = []  # old ones stay: another thread may be reading them
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Native:
        raise given_up()

    def first(self, count: int) -> Native:
        """The first ``count`` layers alone, with the same weights: for early exits."""
        other = copy.copy(self)
        other.angles = list(self.angles)
        other.model = Model.from_buffer_copy(self.model)
        other.model.layers = count
        return other

    def run(
        self, tokens: Tensor, cache: Cache, depths: Tensor | None, mask: Tensor | None, layers: Sequence[int],
        wants_logits: bool = True,
    ) -> tuple[Tensor | None, Tensor]:  # fmt: skip
        """Logits (B, n, V) in float32 and states (B, n, F, H); writes the cache's slots that `open` announces."""
        rows, count = tokens.shape
        cache.allocate(self.model.shared, self.model.head_size, self.dtype)
        cache.open(count)
        self._angles(cache.capacity)
        memory = [states for buffer in cache.buffers for states in (buffer.keys, buffer.values)]
        pointers = (Pointer * len(memory))(*(states.data_ptr() for states in memory))
        wanted = (Integer * len(layers))(*layers)
        ids = self._checked(tokens)
        depths = None if depths is None else depths.expand(rows, count).long().contiguous()
        mask = None if mask is None else mask.expand(rows, count, count).bool().contiguous()
        logits = torch.empty(rows, count, self.model.vocab, dtype=torch.float32) if wants_logits else None
        states = torch.empty(rows, count, len(layers), self.model.hidden, dtype=self.dtype)
        row, head, inner, one = memory[0].stride()
        assert inner == self.model.head_size and one == 1
        call = Pass(
            rows, count, torch.get_num_threads(), ids.data_ptr(), cache.lengths.data_ptr(), address(depths),
            address(mask), ctypes.addressof(pointers), row, head, ctypes.addressof(wanted), len(layers),
            states.data_ptr(), address(logits),
        )  # fmt: skip
        self.call(ctypes.byref(self.model), ctypes.byref(call), self.half)
        return logits, states

    def _checked(self, tokens: Tensor) -> Tensor:
        """Token ids as the kernel reads them, -1 (no token) as 0."""
        ids = tokens.clamp(min=0).long().contiguous()
        if ids.numel() and int(ids.max()) >= len(self.embedding):
            raise TargetError(
                f"token {int(ids.max())}",
                f"ids below {len(self.embedding)}",
                "use the tokenizer that the model came with",
            )
        return ids

    def _angles(self, positions: int) -> None:
        """Have the rotary cosines and sines of so many positions, rounded as the model rounds them."""
        with self.lock:
            if positions <= self.known:
                return
            like = torch.empty(1, dtype=self.dtype)
            found = self.target.decoder.rotary_emb(like, torch.arange(positions)[None])
            half = self.model.head_size // 2
            self.angles += [part[0, :, :half].float().contiguous() for part in found]
            self.model.cosines, self.model.sines = (part.data_ptr() for part in self.angles[-2:])
            self.known = positions


def layer_weights(block: Any) -> dict[str, Tensor | None]:
    """The weights of a decoder layer whose projections of one input were joined."""
    attention, feed = block.self_attn, block.mlp
    qkv, gate_up = (_joined(part) for part in (attention.q_proj, feed.gate_proj))
    norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    query_norm, key_norm = (None if one is None else one.weight for one in norms)
    return {
        "input_norm": block.input_layernorm.weight, "qkv": qkv.weight, "qkv_bias": qkv.bias,
        "query_norm": query_norm, "key_norm": key_norm, "out": attention.o_proj.weight,
        "post_norm": block.post_attention_layernorm.weight, "gate_up": gate_up.weight,
        "down": feed.down_proj.weight,
    }  # fmt: skip


def _joined(part: Any) -> nn.Linear:
    group: Together = part.group
    assert isinstance(group.product, nn.Linear), "packing gives the plain weights up"
    return group.product
