"""What a drafter computes for one row, written down as a program of small operations for the kernel of `native.cpp`.

The drafter's own hooks are run once, on one position, while `Recorder` sees every tensor operation below them.  What
depends on nothing but weights is a constant; what only looks at a tensor in another way (view, slice, transpose) is not
an operation: a `View` says where the numbers lie.  So a drafter needs no kernel, and nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semiar.drafters.memory import Memory

DIMS = 4
SAME = ("neg", "silu", "sigmoid", "tanh", "cos", "sin", "rsqrt", "exp", "relu")  # operations of PyTorch's names
OTHERS = (
    "copy", "gelu", "gelu_tanh", "square", "affine", "add", "mul", "div", "sum", "softmax", "linear", "embed", "keep",
    "attend", "choose",
)  # fmt: skip
CODES = SAME + OTHERS
EMPTY = ("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty", "new_full", "full_like")


class CannotRecord(ValueError):
    """What the drafter does cannot be written down; says what it is."""


@dataclass
class View:
    """Numbers of a buffer: where the first one lies, and how far it is to the next one along each dimension."""

    start: int
    stride: list[int]
    row: int = 0  # from one row's numbers to the next row's
    constant: bool = False


@dataclass
class Operation:
    """One instruction; ``index``, ``place`` and so on mean what `native.cpp` says."""

    code: str
    size: list[int] = field(default_factory=lambda: [1] * DIMS)
    out: View | None = None
    a: View | None = None
    b: View | None = None
    x: float = 1.0
    y: float = 0.0
    weight: Tensor | None = None
    bias: Tensor | None = None
    inputs: int = 0
    outs: int = 0
    place: int = 0
    index: int = 0
    half: bool = False


@dataclass
class Buffer:
    """Where a tensor's storage lies: among the values (``rows`` times, one behind the other) or the constants."""

    start: int
    row: int
    constant: bool = False


class Recorder(TorchDispatchMode):
    """Notes operations on tensors that come from an input; the recorded code must not ask for their values."""

    def __init__(self, table: Tensor, packed: dict[int, Tensor] | None = None):
        super().__init__()
        self.table = table  # the target's embeddings, which are read in place
        self.packed = packed or {}  # plain weights of packed ones, by id
        self.operations: list[Operation] = []
        self.rows = 1  # how many rows the operations now recorded are run for
        self.values = 0  # floats of a thread
        self.shared = 0  # floats that the threads share
        self.constants: list[Tensor] = []
        self.constant_size = 0
        self._buffers: dict[int, Buffer] = {}  # by storage
        self._tokens: dict[int, int] = {}  # storage of token ids -> what `embed` reads
        self._lost: set[int] = set()
        self._kept: list[Tensor] = []  # so that no storage's number is given away again

    # -- inputs ------------------------------------------------------------------------------------------------------

    def tokens(self, tensor: Tensor, index: int) -> Tensor:
        """Register token ids: ``index`` of a draft, or -1 for those from a fresh row's position on."""
        self._kept.append(tensor)
        self._tokens[_storage(tensor)] = index
        return tensor

    def make(self, tensor: Tensor) -> Buffer:
        """Give a tensor room among the values: an input, filled in before the program runs, or a result."""
        if tensor.untyped_storage().nbytes() % tensor.element_size():
            raise CannotRecord("a tensor of another type on the same memory")
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        buffer = Buffer(self.values, size)
        self.values += -(-size * self.rows // 16) * 16
        self._kept.append(tensor)
        self._buffers[_storage(tensor)] = buffer
        return buffer

    def room(self, size: int) -> int:
        """Where so many floats per row lie that the threads share."""
        self.shared += size * self.rows
        return self.shared - size * self.rows

    # -- recording ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, name = _tensors((args, kwargs)), func.overloadpacket.__name__
        written = args[0] if func._schema.is_mutable else None
        before = None
        if isinstance(written, Tensor) and not self.live(written):  # a constant changes
            before = _flat(written).clone()
            self._buffers.pop(_storage(written), None)
        out = func(*args, **kwargs)
        made = _tensors(out)
        self._kept += made
        if not any(self.live(one) for one in given) or name in EMPTY:
            return out
        if any(_storage(one) in self._lost for one in given):
            raise CannotRecord(f"{name} of a second result")
        if func._schema.is_mutable:
            if not isinstance(written, Tensor) or not name.endswith("_"):
                raise CannotRecord(f"{name} writes into an argument")
            if before is not None:
                self.emit("copy", _flat(written), before)
        elif made and {_storage(one) for one in made} <= {_storage(one) for one in given}:
            return out  # another look at the same numbers
        try:
            self._record(name.rstrip("_"), out, args, kwargs)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise CannotRecord(f"the operation {func}: {error}") from error
        return out

    def _record(self, name: str, out: Any, args: Any, kwargs: Any) -> None:
        rule: Callable[..., None] | None = getattr(self, f"_on_{name}", None)
        if name in SAME:
            self.emit(name, out, args[0])
        elif rule is not None:
            rule(out, *args, **kwargs)
        else:
            raise CannotRecord(f"the operation {name}")

    def live(self, tensor: Tensor) -> bool:
        """Whether its numbers are known only when the program runs."""
        place = _storage(tensor)
        known = self._buffers.get(place)
        return place in self._tokens or place in self._lost or (known is not None and not known.constant)

    def _buffer(self, tensor: Tensor) -> Buffer:
        place = _storage(tensor)
        if place in self._tokens:
            raise CannotRecord("arithmetic with token ids")
        if place not in self._buffers:  # a constant
            self._kept.append(tensor)
            self._buffers[place] = Buffer(self.constant_size, 0, constant=True)
            self.constants.append(_flat(tensor).to(torch.float32, copy=True))
            self.constant_size += len(self.constants[-1])
        return self._buffers[place]

    def view(self, tensor: Tensor) -> View:
        """Where the numbers of a tensor are, dimension by dimension."""
        buffer = self._buffer(tensor)
        return View(buffer.start + int(tensor.storage_offset()), list(tensor.stride()), buffer.row, buffer.constant)

    def target(self, out: Tensor) -> View:
        """Where a result goes."""
        if _storage(out) not in self._buffers:
            self.make(out)
        return self.view(out)

    def emit(self, code: str, out: Tensor, *read: Tensor, x: float = 1.0, y: float = 0.0, shape: Any = None) -> None:
        """An operation on every element of ``out``, or of ``shape``, to which everything is stretched."""
        shape = tuple(out.shape if shape is None else shape)
        views = [self.target(out), *(self.view(one.expand(shape)) for one in read)]
        views[0].stride = [s if n > 1 else 0 for s, n in zip(out.expand(shape).stride(), shape, strict=True)]
        size = merge(list(shape), views, keep_last=code == "softmax")
        half = out.dtype == torch.bfloat16
        two = views[2] if len(views) > 2 else views[1]
        self.operations.append(Operation(code, size, views[0], views[1], two, x, y, half=half))

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The same numbers one behind the other, copied if they are not."""
        if tensor.is_contiguous():
            return tensor
        copy = tensor.contiguous()
        self.emit("copy", copy, tensor)
        return copy

    # -- rules: what becomes of an operation; ``out`` is its result ---------------------------------------------------

    def _on_gelu(self, out: Tensor, x: Tensor, *, approximate: str = "none") -> None:
        self.emit("gelu" if approximate == "none" else "gelu_tanh", out, x)

    def _on__to_copy(self, out: Tensor, x: Tensor, **changes: Any) -> None:
        if not out.is_floating_point():
            raise CannotRecord(f"a conversion to {out.dtype}")
        self.emit("copy", out, x)

    def _on_clone(self, out: Tensor, x: Tensor, **changes: Any) -> None:
        self.emit("copy", out, x)

    def _on_copy(self, out: Tensor, goal: Tensor, x: Tensor, *rest: Any) -> None:
        self.emit("copy", out, x)

    def _on_pow(self, out: Tensor, x: Tensor, power: Any) -> None:
        if not isinstance(power, (int, float)) or power != 2:
            raise CannotRecord(f"a power of {power}")
        self.emit("square", out, x)

    def _on_add(self, out: Tensor, a: Tensor, b: Any, *, alpha: float = 1) -> None:
        if isinstance(b, Tensor):
            self.emit("add", out, a, b, x=alpha)
        else:
            self.emit("affine", out, a, y=b * alpha)

    def _on_sub(self, out: Tensor, a: Tensor, b: Any, *, alpha: float = 1) -> None:
        self._on_add(out, a, b, alpha=-alpha)

    def _on_rsub(self, out: Tensor, a: Tensor, b: Any, *, alpha: float = 1) -> None:
        if isinstance(b, Tensor):
            self.emit("add", out, b, a, x=-alpha)
        else:
            self.emit("affine", out, a, x=-alpha, y=b)

    def _on_mul(self, out: Tensor, a: Tensor, b: Any) -> None:
        if isinstance(b, Tensor):
            self.emit("mul", out, a, b)
        else:
            self.emit("affine", out, a, x=b)

    def _on_div(self, out: Tensor, a: Tensor, b: Any) -> None:
        if isinstance(b, Tensor):
            self.emit("div", out, a, b)
        else:
            self.emit("affine", out, a, x=1 / b)

    def _on_sum(self, out: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **changes: Any) -> None:
        self._sum(out, x, dim, keepdim, 1.0)

    def _on_mean(self, out: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **changes: Any) -> None:
        self._sum(out, x, dim, keepdim, out.numel() / x.numel())

    def _sum(self, out: Tensor, x: Tensor, dim: Any, keepdim: bool, share: float) -> None:
        dims = [one % x.ndim for one in (dim if dim is not None else range(x.ndim))]
        stays = out
        if not keepdim:
            for one in sorted(dims):
                stays = stays.unsqueeze(one)
        self.emit("sum", stays, x, x=share, shape=x.shape)
        self.operations[-1].outs = out.numel()

    def _on__softmax(self, out: Tensor, x: Tensor, dim: int, half_to_float: bool) -> None:
        if dim % x.ndim != x.ndim - 1:
            raise CannotRecord("a softmax over another than the last dimension")
        self.emit("softmax", out, x)

    def _on_cat(self, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
        start = 0
        self.target(out)
        for part in parts:
            size = part.shape[dim]
            if size:
                self.emit("copy", out.narrow(dim, start, size), part)
            start += size

    def _on_stack(self, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
        self.target(out)
        for index, part in enumerate(parts):
            self.emit("copy", out.select(dim, index), part)

    def _on_native_layer_norm(
        self, out: Sequence[Tensor], x: Tensor, shape: Sequence[int], weight: Any, bias: Any, epsilon: float
    ) -> None:
        dims = list(range(x.ndim - len(shape), x.ndim))
        wide = x.float()
        middle, square, scaled = torch.empty_like(wide), torch.empty_like(wide), torch.empty_like(wide)
        mean, spread = wide.mean(dims, keepdim=True), wide.mean(dims, keepdim=True)
        self._sum(mean, x, dims, True, mean.numel() / x.numel())
        self.emit("add", middle, x, mean, x=-1)
        self.emit("square", square, middle)
        self._sum(spread, square, dims, True, mean.numel() / x.numel())
        self.emit("affine", spread, spread, y=epsilon)
        self.emit("rsqrt", spread, spread)
        plain = weight is None and bias is None
        self.emit("mul", out[0] if plain else scaled, middle, spread)
        if weight is not None:
            self.emit("mul", out[0] if bias is None else scaled, scaled, weight)
        if bias is not None:
            self.emit("add", out[0], scaled, bias)
        self._kept += [*out, middle, square, scaled, mean, spread]
        self._lost |= {_storage(one) for one in out[1:]}

    def _on_mm(self, out: Tensor, x: Tensor, weight: Tensor) -> None:
        self._linear(out, x, weight, None)

    def _on_addmm(
        self, out: Tensor, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> None:
        if beta != 1 or alpha != 1:
            raise CannotRecord("a scaled product")
        self._linear(out, x, weight, bias)

    def _linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if self.live(weight) or (bias is not None and (self.live(bias) or bias.numel() != weight.shape[1])):
            raise CannotRecord("a product of two values")
        kinds = {one.dtype for one in (x, weight, bias) if one is not None}
        if kinds != {self.table.dtype}:
            raise CannotRecord(f"a product of {kinds} beside {self.table.dtype}")
        if x.numel() != x.shape[-1] or weight.shape[0] % 2:
            raise CannotRecord("a product of several rows, or with an odd number of inputs")
        x = self.contiguous(x)
        self.operations.append(
            Operation(
                "linear", out=self.target(out), a=self.view(x), weight=weight.t(), bias=bias,
                inputs=weight.shape[0], outs=weight.shape[1], place=self.room(weight.shape[1]),
                half=out.dtype == torch.bfloat16,
            )
        )  # fmt: skip

    def _on__linear_pointwise(self, out: Tensor, x: Tensor, packed: Tensor, bias: Any, *how: Any) -> None:
        if id(packed) not in self.packed:
            raise CannotRecord("packed weights whose plain ones are gone")
        self._linear(out, x.flatten(0, -2), self.packed[id(packed)].t(), bias)

    def _on_embedding(self, out: Tensor, table: Tensor, ids: Tensor, *rest: Any) -> None:
        known = self._tokens.get(_storage(ids))
        if known is None or _storage(table) != _storage(self.table) or ids.numel() != 1:
            raise CannotRecord("a table that is not the target's")
        index = known if known >= 0 else -1 - int(ids.storage_offset())
        self.operations.append(
            Operation("embed", out=self.target(out), weight=self.table, outs=table.shape[1], index=index)
        )

    # -- what is no tensor operation -----------------------------------------------------------------------------------

    def keep(self, layer: int, key: Tensor, value: Tensor, index: int) -> None:
        """Put keys and values (1, 1, heads, d) into the memory: behind what is verified, or a fresh row's own (-1)."""
        self.operations.append(Operation("keep", a=self.view(key), b=self.view(value), place=layer, index=index))

    def attend(self, layer: int, query: Tensor, own: int) -> Tensor:
        """What a query (1, 1, heads, d) finds in the memory and among ``own`` drafts kept behind it."""
        out = torch.empty(1, 1, query[0, 0].numel(), dtype=query.dtype)
        goal, room = self.target(out), self.room(out.numel())
        self.operations.append(Operation("attend", out=goal, a=self.view(query), place=layer, index=own, inputs=room))
        return out

    def choose(self, logits: Tensor, step: int) -> None:
        """Take the next token from its logits."""
        logits = self.contiguous(logits)
        self.operations.append(Operation("choose", a=self.view(logits), index=step))


class Unread(list[Tensor]):
    """Keys and values that are only there when the program runs."""

    def __getitem__(self, index: Any) -> Any:
        raise CannotRecord("reading the memory otherwise than by `Memory.attend`")


class RecordedMemory(Memory):
    """Stands for the memory while a drafter is recorded."""

    def __init__(self, recorder: Recorder, positions: Tensor, layers: int):
        super().__init__(Unread(), Unread(), None, positions)
        self.recorder, self.layers = recorder, layers
        self.owned: list[list[Tensor]] = [[] for _ in range(layers)]

    def write(self, layer: int, key: Tensor, value: Tensor, positions: Tensor) -> None:
        if positions is not self.positions:
            raise CannotRecord("keys and values of other positions")
        self.recorder.keep(layer, key, value, -1)

    def attend(self, layer: int, query: Tensor, own_keys: list[Tensor], own_values: list[Tensor]) -> Tensor:
        owned = self.owned[layer]
        for index, (key, value) in enumerate(zip(own_keys, own_values, strict=True)):
            if index == len(owned):
                self.recorder.keep(layer, key, value, index)
                owned.append(key)
            elif owned[index] is not key:
                raise CannotRecord("a drafted token whose key changes")
        return self.recorder.attend(layer, query, len(own_keys))


def merge(size: list[int], views: list[View], keep_last: bool = False) -> list[int]:
    """Put dimensions together where all views allow it; sizes of at most four, the strides changed in place."""
    last = len(size) - 1
    for dim in range(last, -1, -1):
        if size[dim] == 1 and len(size) > 1 and not (keep_last and dim == len(size) - 1):
            del size[dim]
            for view in views:
                del view.stride[dim]
    dim = len(size) - 1 - keep_last
    while dim > 0:
        if all(view.stride[dim - 1] == view.stride[dim] * size[dim] for view in views):
            outer = size.pop(dim - 1)
            size[dim - 1] *= outer
            for view in views:
                del view.stride[dim - 1]
        dim -= 1
    if len(size) > DIMS:
        raise CannotRecord(f"a tensor of {len(size)} dimensions")
    missing = DIMS - len(size)
    for view in views:
        view.stride = [0] * missing + view.stride
    return [1] * missing + size


def _flat(tensor: Tensor) -> Tensor:
    """All that is in a tensor's memory."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def _storage(tensor: Tensor) -> int:
    return -id(tensor) if tensor.is_mkldnn else int(tensor.untyped_storage()._cdata)  # packed weights have none


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in _tensors(part)] if isinstance(value, list | tuple) else []
