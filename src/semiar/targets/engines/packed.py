"""Linear layers for few rows on a CPU: weights laid out once as the kernel reads them, one product for one input.

PyTorch's bfloat16 product of a few rows with a plainly stored matrix reads memory at about half its speed: oneDNN lays
the matrix out anew inside every call.  `pack` does that once, when a model is loaded for decoding, and drops the plain
copy.  Projections of the same input (query, key, value; gate, up) become one product.  Results agree with the plain
layer's up to the rounding of another summation order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from semiar.errors import TargetError
from semiar.targets.engines.onednn import available, lay_out, product

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names of projections that read one input
ROWS = 8  # the row count whose layout is asked for; any other works with it
PACKABLE = (torch.bfloat16, torch.float32)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this machine has the kernel for it."""
    return device.type == "cpu" and dtype in PACKABLE and available(dtype)


class Packed(nn.Module):
    """``x @ weight.T + bias`` for ``weight`` (out, in); inference only.  ``keep`` holds on to the plain weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, keep: bool = False):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = lay_out(weight.detach().contiguous(), ROWS)
        self.weight = weight if keep else None
        self.bias = bias

    def copies(self) -> list[Tensor]:
        """What decoding keeps beside the weights."""
        return [self.packed]

    def _save_to_state_dict(self, *arguments: Any, **options: Any) -> None:
        if self.weight is None:
            raise given_up()
        super()._save_to_state_dict(*arguments, **options)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.packed, self.bias)


class Together(nn.Module):
    """Several linear layers that are given the same input one after another."""

    def __init__(self, layers: list[nn.Linear]):
        super().__init__()
        biased = layers[0].bias is not None
        bias = torch.cat([layer.bias.detach() for layer in layers]) if biased else None
        self.product = plain_linear(torch.cat([layer.weight.detach() for layer in layers]), bias)
        self.sizes = [layer.out_features for layer in layers]
        self.parts: list[Tensor | None] = []

    def first(self, x: Tensor) -> Tensor:
        """Multiply; the result of the first layer."""
        self.parts = list(self.product(x).split(self.sizes, -1))
        return self.take(0)

    def take(self, index: int) -> Tensor:
        """The result of another layer, once."""
        part = self.parts[index]
        assert part is not None, "a projection was asked for twice with one input"
        self.parts[index] = None
        return part


class Part(nn.Module):
    """One of the layers of a `Together`; the first one does the work."""

    def __init__(self, group: Together, index: int):
        super().__init__()
        self.group, self.index = group, index

    def _save_to_state_dict(self, *arguments: Any, **options: Any) -> None:
        raise given_up()

    def forward(self, x: Tensor) -> Tensor:
        return self.group.take(self.index) if self.index else self.group.first(x)


def given_up() -> TargetError:
    """What to say to those who want the weights of a prepared model."""
    return TargetError(
        "this model was prepared for fast decoding and has given up its plain weights",
        "a model loaded with the engine eager, to save or to copy it",
        "semiar.load(..., engine='eager')",
    )


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer of this weight (out, in) and bias (out,)."""
    layer = skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    layer.requires_grad_(False)
    layer.weight.copy_(weight)
    if bias is not None:
        layer.bias.copy_(bias)
    return layer


def join(module: nn.Module) -> int:
    """Turn the projections of one input below `module` into one product; returns how many there were."""
    count = 0
    for parent in list(module.modules()):
        for names in TOGETHER:
            layers: Any = [getattr(parent, name, None) for name in names]
            if all(type(layer) is nn.Linear for layer in layers) and _alike(layers):
                group = Together(layers)
                for index, name in enumerate(names):
                    setattr(parent, name, Part(group, index))
                count += len(names)
    return count


def pack(module: nn.Module, *, keep: bool = False, spare: tuple[nn.Module, ...] = ()) -> int:
    """Replace every linear layer below `module` by a packed one; returns how many there were.

    Without ``keep`` the plain weights are given up, so that memory does not grow.  The layers of the modules in
    ``spare`` stay as they are.
    """
    count = 0
    for parent in list(module.modules()):
        if parent in spare:
            continue
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Packed(child.weight, child.bias, keep=keep))
                count += 1
    return count


def weight_bytes(module: nn.Module) -> int:
    """Memory of a module's weights and of what its parts name as their ``copies()``; shared ones count once."""
    found = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        found += part.copies() if hasattr(part, "copies") else []  # type: ignore[operator]
    return sum(one.numel() * one.element_size() for one in {id(one): one for one in found}.values())


def _alike(layers: list[nn.Linear]) -> bool:
    return len({(one.in_features, one.bias is None, one.weight.dtype) for one in layers}) == 1
