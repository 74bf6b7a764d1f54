"""What this project uses of PyTorch that is not public: each of it is as it was when it was written for.

A failure here is no bug of PyTorch's.  It says which function to look at before anything else.
"""

from __future__ import annotations

import inspect

import pytest
import torch

from semiar.errors import TargetError
from semiar.targets.engines import onednn
from semiar.targets.engines.compiled import frozen, let_grow
from semiar.targets.engines.packed import can_pack

ARGUMENTS = {
    onednn.LINEAR: "Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm",
    onednn.REORDER: "Tensor self, int? batch_size=None",
    onednn.BFLOAT16: "",
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")
def test_onednn_s_operators_take_what_they_took() -> None:
    assert set(onednn.operators()) == set(ARGUMENTS), "an operator is gone: nothing is packed; look at onednn.py"
    for name, wanted in ARGUMENTS.items():
        found = str(onednn.operators()[name].default._schema).split("(", 1)[1].split(") ->")[0]
        assert found.replace("SymInt", "int") == wanted, (
            f"{name} takes ({found}) in PyTorch {torch.__version__}; look at targets/engines/onednn.py"
        )


def test_a_build_without_the_operators_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "FOUND", {})
    assert not can_pack(torch.device("cpu"), torch.float32) and not can_pack(torch.device("cpu"), torch.bfloat16)


def test_the_compiler_s_private_ways_are_as_they_were() -> None:
    message = f"PyTorch {torch.__version__} changed it; look at {{}} in targets/engines/compiled.py"
    assert list(inspect.signature(torch._dynamo.mark_dynamic).parameters)[:2] == ["t", "index"], message.format(
        "let_grow"
    )
    config = torch._inductor.config
    before = (config.freezing, config.cpp_wrapper, config.joint_custom_post_pass)
    with frozen(True):
        inside = (config.freezing, config.cpp_wrapper, callable(config.joint_custom_post_pass))
    after = (config.freezing, config.cpp_wrapper, config.joint_custom_post_pass)
    assert inside == (True, True, True) and before == after == (False, False, None), message.format("frozen")


def test_a_private_way_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._dynamo, "mark_dynamic")
    with pytest.raises(TargetError, match="mark_dynamic"):
        let_grow(torch.zeros(2), 0)
    monkeypatch.setattr(torch._inductor, "config", object())
    with pytest.raises(TargetError, match=r"_inductor\.config\.freezing"):
        frozen(True)
