"""Writing a drafter's steps down: what has a rule gives the same numbers, what has none is left to the drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.models import draft_settings, shake, target_of
from torch.nn import functional as F

from semiar.core.sampling import Sampling
from semiar.drafters.designs.medusa import MedusaDrafter
from semiar.drafters.engines.native import NativeDraft
from semiar.drafters.engines.program import CannotRecord
from semiar.drafters.engines.recorder import Recorder
from semiar.drafters.engines.tape import Tape, storage
from semiar.drafters.memory import Fresh
from semiar.targets.engines import kernels

pytestmark = pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")


class Strange(MedusaDrafter):
    """Does something else with its states than Medusa."""

    def __init__(self, *arguments: Any, how: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__(*arguments)
        self.how = how

    def step(self, ids: Any, inner: Any, index: int, memory: Any) -> Any:
        state, inner = super().step(ids, inner, index, memory)
        return self.how(state), inner


def strange(how: Callable[[torch.Tensor], torch.Tensor]) -> Strange:
    target = target_of("llama", torch.float32)
    drafter = Strange(draft_settings(architecture="medusa"), target, None, how=how)
    return shake(drafter).eval().bind(target)  # type: ignore[return-value]


UNKNOWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sort": lambda x: x.sort(-1).values,
    "_local_scalar_dense": lambda x: x if float(x.sum()) > 1e9 else x + 1,
    "div": lambda x: torch.div(x, 2.0, rounding_mode="floor"),
    "power": lambda x: 2**x,
    "writes into an argument": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "_foreach_add_": lambda x: torch._foreach_add_([x.clone()], 1.0) or x,
    "product of several rows": lambda x: (x.view(1, 2, -1) @ torch.ones(x.shape[-1] // 2, x.shape[-1])).sum(1, True),
    "product of {torch.float": lambda x: (x.double() @ torch.eye(x.shape[-1]).double()).float(),
    "product of two values": lambda x: torch.addmm(torch.ones(1), x[0], torch.eye(x.shape[-1]))[None],
}


@pytest.mark.parametrize("named", UNKNOWN)
def test_what_cannot_be_written_down_is_done_by_the_drafter(named: str) -> None:
    drafter = strange(UNKNOWN[named])
    with torch.no_grad(), pytest.raises(CannotRecord, match=named):
        NativeDraft(drafter)
    drafter.prepare("native")
    assert not drafter._ready


def stale(x: torch.Tensor) -> torch.Tensor:
    constant = torch.zeros(x.shape[-1])
    first = x + constant
    return first + constant.add_(0.5)


KNOWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a constant that changes": stale,
    "a value in a constant": lambda x: torch.ones_like(x).mul_(x).add_(1),
    "a part of a constant": lambda x: torch.arange(64.0).view(2, 32)[1].add_(x[0, 0]).view(1, 1, -1) / 40,
    "reduced": lambda x: x * x.sum((0, 2), keepdim=True).tanh() + x.mean(),
    "reordered": lambda x: (
        x.view(1, 1, 4, 8).transpose(2, 3).contiguous().flatten(2) - x.view(8, 4).t().reshape(1, 1, 32)
    ),
    "functions": lambda x: x.exp() * x.cos() - x.relu() + x.sin().square() / (1 + x.sigmoid()) + (3 - x).neg(),
    "gelu": lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "layer norm": lambda x: F.layer_norm(x, (32,)),
    "softmax": lambda x: x.view(1, 1, 4, 8).softmax(-1).flatten(2) + torch.stack([x, x[:, :, :]], -1).sum(-1),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_can_be_written_down_gives_the_same(name: str) -> None:
    drafter = strange(KNOWN[name])
    with torch.no_grad():
        assert NativeDraft(drafter).gap() < 1e-5


def test_a_kernel_that_drafts_otherwise_is_not_used() -> None:
    calls = []

    def changing(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x if len(calls) <= 4 else x.flip(-1) * 3  # the steps are recorded by the first four

    drafter = strange(changing)
    with pytest.warns(UserWarning, match="differ by"):
        drafter.prepare("native")
    assert not drafter._ready


def test_what_has_no_probability_is_not_drawn() -> None:
    drafter = strange(lambda x: x)
    head = drafter.head
    drafter.head = lambda state, step: head(state, step) + torch.tensor([-torch.inf] * 90 + [0.0] * 6)  # type: ignore[method-assign]
    with torch.no_grad():
        native = NativeDraft(drafter)
        lengths, hidden = torch.tensor([2]), torch.zeros(1, 1, 1, 32)
        fresh = Fresh(
            lengths[None], torch.zeros(1, 2).long(), lengths[None] - 1, hidden, lengths - 1, lengths, [], [], None
        )
        drafted = native(fresh, torch.zeros(1, 4, dtype=torch.float64), 4, Sampling(1.0))
    assert drafted is not None and drafted[1] is not None
    assert drafted[0].tolist() == [[90] * 4] and not drafted[1][..., :90].any()


def test_memory_is_told_apart_by_where_it_begins() -> None:
    """`storage` asks nothing private: views have the name of what they look at, other tensors have others."""
    base, other = torch.zeros(4, 6), torch.zeros(4, 6)
    views = [base[1:], base.t(), base.view(-1)[5:], base.expand(3, 4, 6), base.detach(), base.view(torch.int32)]
    assert {storage(one) for one in views} == {storage(base)} != {storage(other)}
    empty = [torch.empty(0), torch.empty(0, 3)]  # begin nowhere, and are not one because of that
    assert storage(empty[0]) != storage(empty[1]) and not {storage(one) for one in empty} & {storage(base), 0}


def test_what_pytorch_shows_of_its_operations_is_as_the_recorder_expects() -> None:
    """Not public: ``torch.utils._python_dispatch`` and an operator's ``_schema``; see `Recorder.__torch_dispatch__`."""
    tape, x = Tape(torch.zeros(2, 4)), torch.ones(1, 4)
    tape.make(x)
    with Recorder(tape):
        F.silu(x.mul_(2).add(x.view(4, 1)[:, 0]))
    found = [one.code for one in tape.operations]
    assert found == ["affine", "add", "silu"], (
        f"PyTorch {torch.__version__} shows other operations than the recorder was written for: {found}; look at "
        f"`Recorder.__torch_dispatch__`, which reads func._schema.is_mutable and func.overloadpacket.__name__"
    )
    schema = torch.ops.aten.mul_.Tensor._schema
    assert schema.is_mutable and not torch.ops.aten.mul.Tensor._schema.is_mutable
