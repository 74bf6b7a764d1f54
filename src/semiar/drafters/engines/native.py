"""The K steps of a drafter as one call of a kernel of our own (`native.cpp`), on a CPU; see `program.py`."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semiar.core.sampling import COLDEST, Sampling
from semiar.drafters.engines.program import CODES, DIMS, CannotRecord, Operation, View
from semiar.drafters.engines.recorder import RecordedMemory, Recorder
from semiar.drafters.engines.steps import Drafted, Steps
from semiar.drafters.engines.tape import Tape
from semiar.drafters.layers.heads import DraftHead
from semiar.drafters.memory import Fresh
from semiar.targets.engines.blocks import address, gather
from semiar.targets.engines.kernels import library
from semiar.targets.engines.layout import check_layout
from semiar.targets.engines.native import Integer, Pointer
from semiar.targets.engines.packed import Packed

SOURCE = Path(__file__).with_suffix(".cpp")
SPARE = 16  # fresh states beyond those of a step; more come with a prompt, and are read by the ordinary way
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # of `NativeDraft.gap`


class Operand(ctypes.Structure):
    _fields_ = [*((name, Integer) for name in ("constant", "start", "row")), ("stride", Integer * DIMS)]


class Instruction(ctypes.Structure):
    _fields_ = [
        *((name, Integer) for name in ("code", "half")),
        ("size", Integer * DIMS),
        *((name, Operand) for name in ("out", "a", "b")),
        *((name, ctypes.c_float) for name in ("x", "y")),
        *((name, Pointer) for name in ("weight", "bias")),
        *((name, Integer) for name in ("inputs", "outs", "place", "index")),
    ]


class Program(ctypes.Structure):
    _fields_ = [
        *((name, Pointer) for name in ("reading", "steps")),
        *((name, Integer) for name in ("reading_count", "steps_count")),
        ("constants", Pointer),
        *((name, Integer) for name in ("values", "inputs", "hidden", "places", "place")),
        *((name, Integer) for name in ("head_rows", "heads", "size")),
        ("vocabulary", Pointer),
    ]


class Draft(ctypes.Structure):
    _fields_ = [
        *((name, Integer) for name in ("count", "fresh", "seen", "threads")),
        *((name, Pointer) for name in ("tokens", "hidden", "keys", "values")),
        ("head_stride", Integer),
        ("temperature", ctypes.c_float),
        *((name, Pointer) for name in ("coins", "ids", "laws", "room", "shared")),
    ]


def kernel() -> Any:
    """The compiled drafting.  Raises ``TargetError`` where it cannot be compiled or other structures are meant."""
    return check_layout(library(SOURCE), SOURCE, (Operand, Instruction, Program, Draft), CODES)


def native_draft(drafter: Steps) -> NativeDraft | None:
    """What drafts for this drafter by one call; None where the kernel has no operations for it."""
    kinds = {one.dtype for one in drafter.parameters()} | {drafter.embedding.dtype}
    if drafter.training:
        return None
    if len(kinds) > 1 or not kinds <= TOLERANCES.keys() or drafter.embedding.device.type != "cpu":
        return None
    try:
        made = NativeDraft(drafter)
    except CannotRecord:
        return None
    gap = made.gap()
    if gap <= TOLERANCES[made.dtype]:
        return made
    warnings.warn(
        f"the kernel's drafts of drafter {drafter.name} differ by {gap:.2g}; going on without it", stacklevel=2
    )
    return None


class NativeDraft:
    """Drafts for one row by one call; the drafter's weights are copied.

    Raises `CannotRecord` for a drafter whose steps cannot be written down.
    """

    def __init__(self, drafter: Steps):
        self.drafter, self.dtype = drafter, drafter.embedding.dtype
        self.half = int(self.dtype == torch.bfloat16)
        kernels = kernel()
        self.call, self.lock = kernels.semiar_draft, threading.Lock()
        self.most = drafter.settings.num_speculative_tokens + SPARE
        with torch.inference_mode(False), torch.no_grad():
            tape, reading, hidden, places, place = self._record()
        steps = tape.operations[reading:]
        weights = _unique(one.weight for one in tape.operations if one.code == "linear")
        biases = _unique(one.bias for one in tape.operations)
        copies, others = gather(
            [{str(index): one} for index, one in enumerate(weights)],
            biases,
            bool(kernels.semiar_in_blocks(self.half)),
        )
        found = {_key(one): next(iter(copy.values())) for one, copy in zip(weights, copies, strict=True)}
        found |= {_key(one): copy for one, copy in zip(biases, others, strict=True)}
        self.copies = list(found.values())
        found[_key(tape.table)] = tape.table
        self.reading, self.steps = (_instructions(part, found) for part in (tape.operations[:reading], steps))
        self.constants = torch.cat([torch.zeros(16), *tape.constants, torch.zeros(16)])
        self.shared = torch.empty(tape.shared + 16)
        self.room = torch.empty(0)
        self.kept = (found, tape.table, drafter.vocab)
        shape = drafter.memory_shape() or (0, 1, 1)
        self.program = Program(
            ctypes.addressof(self.reading), ctypes.addressof(self.steps), reading, len(steps),
            self.constants.data_ptr() + 64, tape.values, drafter.size * len(drafter.layers), hidden, places, place,
            drafter.rows, shape[1], shape[2], address(drafter.vocab),
        )  # fmt: skip

    def _record(self) -> tuple[Tape, int, int, int, int]:
        """The tape, how many operations read fresh states, and where its three inputs lie."""
        drafter, table = self.drafter, self.drafter.embedding
        shape = drafter.memory_shape()
        hidden = torch.zeros(1, 1, len(drafter.layers), drafter.size, dtype=self.dtype)
        places, place, pair = torch.zeros(1, 1).long(), torch.ones(1, 1).long(), torch.zeros(1, 2).long()
        ids = [torch.zeros(1, 1).long() for _ in range(drafter.settings.num_speculative_tokens)]
        tape = Tape(table, packed_weights(drafter))
        tape.rows = self.most
        inputs = [tape.make(one).start for one in (hidden, places, place)]
        tape.tokens(pair, -1)
        self.reads = shape is not None
        if shape is not None:
            try:
                with Recorder(tape):
                    drafter.remember(hidden, pair, places, RecordedMemory(tape, places, shape[0]))
            except CannotRecord:  # layers above the first: the drafter reads what is new itself
                self.reads, tape.operations = False, []
        reading = len(tape.operations)
        tape.rows = 1
        memory = None if shape is None else RecordedMemory(tape, place, shape[0])
        with Recorder(tape):
            inner = drafter.begin(hidden)
            for index, token in enumerate(ids):
                state, inner = drafter.step(tape.tokens(token, index), inner, index, memory)
                tape.choose(drafter.head(state, index), index)
        return tape, reading, inputs[0], inputs[1], inputs[2]

    @torch.no_grad()
    def gap(self) -> float:
        """What the logits differ by, relative to their spread, when something is drafted both ways."""
        drafter, count = self.drafter, self.drafter.settings.num_speculative_tokens
        source = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, 3, len(drafter.layers), drafter.size, generator=source).to(self.dtype)
        tokens, lengths = torch.arange(4)[None], torch.tensor([4])
        coins = torch.rand(1, count, generator=source, dtype=torch.float64)
        found: list[Any] = []
        for draft in (drafter.draft, self):
            state = drafter.start(1, 8 + count, torch.device("cpu")).values
            keys, values = state.get("keys", []), state.get("values", [])
            seen = torch.ones(1, 1, 3, dtype=torch.bool) if keys else None
            fresh = Fresh(
                tokens[:, -1:], tokens, torch.arange(3)[None], hidden, torch.tensor([3]), lengths, keys, values, seen
            )
            found += draft(fresh, coins, count, Sampling(1.0)) or ()
        ids, laws, own_ids, own = found
        alike = (ids == own_ids).cummin(-1).values.roll(1, -1)  # behind another token the laws are others
        alike[:, 0] = True
        logs = [law.clamp(min=1e-30).log()[alike] for law in (laws, own)]
        logs = [one - one.mean(-1, keepdim=True) for one in logs]
        spread = (logs[0] - logs[1]).square().mean() / logs[0].square().mean().clamp(min=1e-6)
        return float(spread.sqrt().nan_to_num(torch.inf))

    def __call__(self, fresh: Fresh, coins: Tensor | None, count: int, sampling: Sampling) -> Drafted | None:
        """What `ChainDrafter.draft` gives, or None for what it has to do itself: more rows, a cut law."""
        new, cut = int(fresh.count[0]), bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)
        if len(fresh.lengths) > 1 or (cut and coins is not None):
            return None
        if new > self.most or not self.reads:  # a prompt is read the ordinary way, its newest state once more here
            self.drafter.recall(fresh)
            last = slice(new - 1, new + 1)
            fresh, new = replace(fresh, hidden=fresh.hidden[:, last][:, :1], tokens=fresh.tokens[:, last]), 1
        ids = torch.empty(1, count, dtype=torch.long)
        laws = None if coins is None else torch.empty(1, count, self.drafter.rows)
        hidden, tokens, threads = fresh.hidden.contiguous(), fresh.tokens.contiguous(), torch.get_num_threads()
        keys, values = (_pointers(states) for states in (fresh.keys, fresh.values))
        with self.lock:
            if len(self.room) < threads * self.program.values + 16:
                self.room = torch.empty(threads * self.program.values + 16)
            draft = Draft(
                count, new, int(fresh.lengths[0]) - 1, threads, address(tokens), address(hidden),
                ctypes.addressof(keys), ctypes.addressof(values), fresh.keys[0].stride(1) if fresh.keys else 0,
                0.0 if coins is None else max(sampling.effective_temperature, COLDEST),
                address(coins), address(ids), address(laws), address(self.room), address(self.shared),
            )  # fmt: skip
            self.call(ctypes.byref(self.program), ctypes.byref(draft), self.half)
        return ids, laws


def packed_weights(drafter: Steps) -> dict[int, Tensor]:
    """The plain weights that packed layers have kept, by the id of the packed ones."""
    parts = [part for part in drafter.modules() if isinstance(part, Packed)]
    parts += [packed for part in drafter.modules() if isinstance(part, DraftHead) for packed in part.packed]
    return {id(part.packed): part.weight for part in parts if part.weight is not None}


def _instructions(operations: Sequence[Operation], found: dict[Any, Tensor]) -> Any:
    """The operations as the kernel reads them."""
    made = []
    for one in operations:
        views = [_operand(view) for view in (one.out, one.a, one.b)]
        weight, bias = (None if part is None else address(found[_key(part)]) for part in (one.weight, one.bias))
        made.append(
            Instruction(
                CODES.index(one.code), one.half, (Integer * DIMS)(*one.size), *views, one.x, one.y, weight, bias,
                one.inputs, one.outs, one.place, one.index,
            )
        )  # fmt: skip
    return (Instruction * len(made))(*made)


def _operand(view: View | None) -> Operand:
    view = view or View(0, [0] * DIMS)
    strides = (view.stride + [0] * DIMS)[:DIMS]
    return Operand(view.constant, view.start, view.row, (Integer * DIMS)(*strides))


def _pointers(states: Sequence[Tensor]) -> Any:
    return (Pointer * max(1, len(states)))(*(one.data_ptr() for one in states))


def _key(tensor: Tensor) -> tuple[int, ...]:
    return (tensor.data_ptr(), *tensor.shape, *tensor.stride())


def _unique(tensors: Any) -> list[Tensor]:
    return list({_key(one): one for one in tensors if one is not None}.values())
