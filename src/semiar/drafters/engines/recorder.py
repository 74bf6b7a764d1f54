"""Running a drafter's hooks while every tensor operation below them is written down."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semiar.drafters.engines.program import SAME, CannotRecord
from semiar.drafters.engines.rules import RULES
from semiar.drafters.engines.tape import Tape, flat, storage
from semiar.drafters.memory import Memory

EMPTY = ("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty", "new_full", "full_like")


class Recorder(TorchDispatchMode):
    """Notes operations on tensors that come from an input; the recorded code must not ask for their values."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, tape = kwargs or {}, self.tape
        given, name = _tensors((args, kwargs)), func.overloadpacket.__name__
        written = args[0] if func._schema.is_mutable else None
        before = None
        if isinstance(written, Tensor) and not tape.live(written):  # a constant changes
            before = flat(written).clone()
            tape.buffers.pop(storage(written), None)
        out = func(*args, **kwargs)
        made = _tensors(out)
        tape.kept += made
        if not any(tape.live(one) for one in given) or name in EMPTY:
            return out
        if any(storage(one) in tape.lost for one in given):
            raise CannotRecord(f"{name} of a second result")
        if func._schema.is_mutable:
            if not isinstance(written, Tensor) or not name.endswith("_"):
                raise CannotRecord(f"{name} writes into an argument")
            if before is not None:
                tape.emit("copy", flat(written), before)
        elif made and {storage(one) for one in made} <= {storage(one) for one in given}:
            return out  # another look at the same numbers
        try:
            self._record(name.rstrip("_"), out, args, kwargs)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise CannotRecord(f"the operation {func}: {error}") from error
        return out

    def _record(self, name: str, out: Any, args: Any, kwargs: Any) -> None:
        if name in SAME:
            self.tape.emit(name, out, args[0])
        elif name in RULES:
            RULES[name](self.tape, out, *args, **kwargs)
        else:
            raise CannotRecord(f"the operation {name}")


class Unread(list[Tensor]):
    """Keys and values that are only there when the program runs."""

    def __getitem__(self, index: Any) -> Any:
        raise CannotRecord("reading the memory otherwise than by `Memory.attend`")


class RecordedMemory(Memory):
    """Stands for the memory while a drafter is recorded."""

    def __init__(self, tape: Tape, positions: Tensor, layers: int):
        super().__init__(Unread(), Unread(), None, positions)
        self.tape, self.layers = tape, layers
        self.owned: list[list[Tensor]] = [[] for _ in range(layers)]

    def write(self, layer: int, key: Tensor, value: Tensor, positions: Tensor) -> None:
        if positions is not self.positions:
            raise CannotRecord("keys and values of other positions")
        self.tape.keep(layer, key, value, -1)

    def attend(self, layer: int, query: Tensor, own_keys: list[Tensor], own_values: list[Tensor]) -> Tensor:
        owned = self.owned[layer]
        for index, (key, value) in enumerate(zip(own_keys, own_values, strict=True)):
            if index == len(owned):
                self.tape.keep(layer, key, value, index)
                owned.append(key)
            elif owned[index] is not key:
                raise CannotRecord("a drafted token whose key changes")
        return self.tape.attend(layer, query, len(own_keys))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in _tensors(part)] if isinstance(value, list | tuple) else []
