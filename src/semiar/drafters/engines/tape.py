"""The program as it is being written: its operations, and where the numbers of every tensor lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semiar.drafters.engines.program import CannotRecord, Operation, View, merge


@dataclass
class Buffer:
    """Where a tensor's storage lies: among the values (``rows`` times, one behind the other) or the constants."""

    start: int
    row: int
    constant: bool = False


class Tape:
    """Operations on tensors that come from an input, and the layout of a thread's values and of the constants."""

    def __init__(self, table: Tensor, packed: dict[int, Tensor] | None = None):
        self.table = table  # the target's embeddings, which are read in place
        self.packed = packed or {}  # plain weights of packed ones, by id
        self.operations: list[Operation] = []
        self.rows = 1  # how many rows the operations now recorded are run for
        self.values = 0  # floats of a thread
        self.shared = 0  # floats that the threads share
        self.constants: list[Tensor] = []
        self.constant_size = 0
        self.buffers: dict[int, Buffer] = {}  # by storage
        self.ids: dict[int, int] = {}  # storage of token ids -> what `embed` reads
        self.lost: set[int] = set()
        self.kept: list[Tensor] = []  # so that no storage's number is given away again

    # -- inputs ------------------------------------------------------------------------------------------------------

    def tokens(self, tensor: Tensor, index: int) -> Tensor:
        """Register token ids: ``index`` of a draft, or -1 for those from a fresh row's position on."""
        self.kept.append(tensor)
        self.ids[storage(tensor)] = index
        return tensor

    def make(self, tensor: Tensor) -> Buffer:
        """Give a tensor room among the values: an input, filled in before the program runs, or a result."""
        if tensor.untyped_storage().nbytes() % tensor.element_size():
            raise CannotRecord("a tensor of another type on the same memory")
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        buffer = Buffer(self.values, size)
        self.values += -(-size * self.rows // 16) * 16
        self.kept.append(tensor)
        self.buffers[storage(tensor)] = buffer
        return buffer

    def room(self, size: int) -> int:
        """Where so many floats per row lie that the threads share."""
        self.shared += size * self.rows
        return self.shared - size * self.rows

    # -- where numbers are ------------------------------------------------------------------------------------------

    def live(self, tensor: Tensor) -> bool:
        """Whether its numbers are known only when the program runs."""
        place = storage(tensor)
        known = self.buffers.get(place)
        return place in self.ids or place in self.lost or (known is not None and not known.constant)

    def _buffer(self, tensor: Tensor) -> Buffer:
        place = storage(tensor)
        if place in self.ids:
            raise CannotRecord("arithmetic with token ids")
        if place not in self.buffers:  # a constant
            self.kept.append(tensor)
            self.buffers[place] = Buffer(self.constant_size, 0, constant=True)
            self.constants.append(flat(tensor).to(torch.float32, copy=True))
            self.constant_size += len(self.constants[-1])
        return self.buffers[place]

    def view(self, tensor: Tensor) -> View:
        """Where the numbers of a tensor are, dimension by dimension."""
        buffer = self._buffer(tensor)
        return View(buffer.start + int(tensor.storage_offset()), list(tensor.stride()), buffer.row, buffer.constant)

    def target(self, out: Tensor) -> View:
        """Where a result goes."""
        if storage(out) not in self.buffers:
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

    def linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """A product with a weight (in, out)."""
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


def flat(tensor: Tensor) -> Tensor:
    """All that is in a tensor's memory."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def storage(tensor: Tensor) -> int:
    """What names a tensor's memory as long as it is kept: where it begins; views of it have the same."""
    if tensor.is_mkldnn:  # packed weights have no memory that can be asked for
        return -id(tensor)
    return int(tensor.untyped_storage().data_ptr()) or -id(tensor)  # nothing is in an empty one
