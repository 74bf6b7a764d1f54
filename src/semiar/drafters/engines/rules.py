"""What becomes of each of PyTorch's operations: the tape's operations that give the same numbers.

A rule gets the tape, the result, and the operation's arguments.  What has no rule, or other arguments than its rule
knows, is left to the drafter's own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from semiar.drafters.engines.program import CannotRecord, Operation
from semiar.drafters.engines.tape import Tape, storage
from semiar.targets.engines import onednn

Rule = Callable[..., None]
RULES: dict[str, Rule] = {}  # by PyTorch's name of the operation, without the underscore of those that write in place


def rule(name: str) -> Callable[[Rule], Rule]:
    """Decorator: what becomes of this operation."""

    def add(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return add


@rule("gelu")
def gelu(tape: Tape, out: Tensor, x: Tensor, *, approximate: str = "none") -> None:
    tape.emit("gelu" if approximate == "none" else "gelu_tanh", out, x)


@rule("_to_copy")
def converted(tape: Tape, out: Tensor, x: Tensor, **changes: Any) -> None:
    if not out.is_floating_point():
        raise CannotRecord(f"a conversion to {out.dtype}")
    tape.emit("copy", out, x)


@rule("clone")
def cloned(tape: Tape, out: Tensor, x: Tensor, **changes: Any) -> None:
    tape.emit("copy", out, x)


@rule("copy")
def copied(tape: Tape, out: Tensor, goal: Tensor, x: Tensor, *rest: Any) -> None:
    tape.emit("copy", out, x)


@rule("pow")
def power(tape: Tape, out: Tensor, x: Tensor, exponent: Any) -> None:
    if not isinstance(exponent, (int, float)) or exponent != 2:
        raise CannotRecord(f"a power of {exponent}")
    tape.emit("square", out, x)


@rule("add")
def added(tape: Tape, out: Tensor, a: Tensor, b: Any, *, alpha: float = 1) -> None:
    if isinstance(b, Tensor):
        tape.emit("add", out, a, b, x=alpha)
    else:
        tape.emit("affine", out, a, y=b * alpha)


@rule("sub")
def subtracted(tape: Tape, out: Tensor, a: Tensor, b: Any, *, alpha: float = 1) -> None:
    added(tape, out, a, b, alpha=-alpha)


@rule("rsub")
def subtracted_from(tape: Tape, out: Tensor, a: Tensor, b: Any, *, alpha: float = 1) -> None:
    if isinstance(b, Tensor):
        tape.emit("add", out, b, a, x=-alpha)
    else:
        tape.emit("affine", out, a, x=-alpha, y=b)


@rule("mul")
def multiplied(tape: Tape, out: Tensor, a: Tensor, b: Any) -> None:
    if isinstance(b, Tensor):
        tape.emit("mul", out, a, b)
    else:
        tape.emit("affine", out, a, x=b)


@rule("div")
def divided(tape: Tape, out: Tensor, a: Tensor, b: Any) -> None:
    if isinstance(b, Tensor):
        tape.emit("div", out, a, b)
    else:
        tape.emit("affine", out, a, x=1 / b)


@rule("sum")
def summed(tape: Tape, out: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **changes: Any) -> None:
    _sum(tape, out, x, dim, keepdim, 1.0)


@rule("mean")
def averaged(tape: Tape, out: Tensor, x: Tensor, dim: Any = None, keepdim: bool = False, **changes: Any) -> None:
    _sum(tape, out, x, dim, keepdim, out.numel() / x.numel())


def _sum(tape: Tape, out: Tensor, x: Tensor, dim: Any, keepdim: bool, share: float) -> None:
    dims = [one % x.ndim for one in (dim if dim is not None else range(x.ndim))]
    stays = out
    if not keepdim:
        for one in sorted(dims):
            stays = stays.unsqueeze(one)
    tape.emit("sum", stays, x, x=share, shape=x.shape)
    tape.operations[-1].outs = out.numel()


@rule("_softmax")
def softmax(tape: Tape, out: Tensor, x: Tensor, dim: int, half_to_float: bool) -> None:
    if dim % x.ndim != x.ndim - 1:
        raise CannotRecord("a softmax over another than the last dimension")
    tape.emit("softmax", out, x)


@rule("cat")
def joined(tape: Tape, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    start = 0
    tape.target(out)
    for part in parts:
        size = part.shape[dim]
        if size:
            tape.emit("copy", out.narrow(dim, start, size), part)
        start += size


@rule("stack")
def stacked(tape: Tape, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    tape.target(out)
    for index, part in enumerate(parts):
        tape.emit("copy", out.select(dim, index), part)


@rule("native_layer_norm")
def layer_norm(
    tape: Tape, out: Sequence[Tensor], x: Tensor, shape: Sequence[int], weight: Any, bias: Any, epsilon: float
) -> None:
    dims = list(range(x.ndim - len(shape), x.ndim))
    wide = x.float()
    middle, square, scaled = torch.empty_like(wide), torch.empty_like(wide), torch.empty_like(wide)
    mean, spread = wide.mean(dims, keepdim=True), wide.mean(dims, keepdim=True)
    _sum(tape, mean, x, dims, True, mean.numel() / x.numel())
    tape.emit("add", middle, x, mean, x=-1)
    tape.emit("square", square, middle)
    _sum(tape, spread, square, dims, True, mean.numel() / x.numel())
    tape.emit("affine", spread, spread, y=epsilon)
    tape.emit("rsqrt", spread, spread)
    plain = weight is None and bias is None
    tape.emit("mul", out[0] if plain else scaled, middle, spread)
    if weight is not None:
        tape.emit("mul", out[0] if bias is None else scaled, scaled, weight)
    if bias is not None:
        tape.emit("add", out[0], scaled, bias)
    tape.kept += [*out, middle, square, scaled, mean, spread]
    tape.lost |= {storage(one) for one in out[1:]}


@rule("mm")
def product(tape: Tape, out: Tensor, x: Tensor, weight: Tensor) -> None:
    tape.linear(out, x, weight, None)


@rule("addmm")
def product_and_bias(
    tape: Tape, out: Tensor, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
) -> None:
    if beta != 1 or alpha != 1:
        raise CannotRecord("a scaled product")
    tape.linear(out, x, weight, bias)


@rule(onednn.LINEAR)
def packed_product(tape: Tape, out: Tensor, x: Tensor, packed: Tensor, bias: Any, *how: Any) -> None:
    if id(packed) not in tape.packed:
        raise CannotRecord("packed weights whose plain ones are gone")
    tape.linear(out, x.flatten(0, -2), tape.packed[id(packed)].t(), bias)


@rule("embedding")
def embedded(tape: Tape, out: Tensor, table: Tensor, ids: Tensor, *rest: Any) -> None:
    known = tape.ids.get(storage(ids))
    if known is None or storage(table) != storage(tape.table) or ids.numel() != 1:
        raise CannotRecord("a table that is not the target's")
    index = known if known >= 0 else -1 - int(ids.storage_offset())
    tape.operations.append(
        Operation("embed", out=tape.target(out), weight=tape.table, outs=table.shape[1], index=index)
    )
