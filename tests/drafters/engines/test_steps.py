"""An engine sees of a drafter what `Steps` lists, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import semi_drafter, target_of

from semiar.core.sampling import Sampling
from semiar.drafters import engines
from semiar.drafters.engines import compiled
from semiar.drafters.engines.compiled import CompiledDraft
from semiar.drafters.engines.native import NativeDraft
from semiar.drafters.engines.steps import Steps
from semiar.drafters.memory import Fresh
from semiar.targets.engines import kernels

LISTED = {name for name in vars(Steps) if not name.startswith("_")}
CASES: list[dict[str, Any]] = [{"small_lm": "context"}, {"small_lm": "lstm"}, {"architecture": "eagle"}]


class Narrow:
    """A drafter of which nothing can be asked but what `Steps` lists."""

    def __init__(self, drafter: Any):
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        if name not in LISTED:
            raise AssertionError(f"an engine asks a drafter for '{name}', which `Steps` does not list")
        return getattr(self._drafter, name)


def fresh_of(drafter: Any) -> Fresh:
    """What a step leaves: K + 1 new states behind nothing."""
    count = drafter.settings.num_speculative_tokens + 1
    state = drafter.start(1, 16, torch.device("cpu")).values
    keys, values = state.get("keys", []), state.get("values", [])
    hidden = torch.randn(1, count, len(drafter.layers), drafter.size, generator=torch.Generator().manual_seed(3))
    tokens = torch.arange(count + 1)[None]
    seen = torch.ones(1, 1, count, dtype=torch.bool) if keys else None
    return Fresh(
        tokens[:, -1:], tokens, tokens[:, :-1], hidden, torch.tensor([count]), torch.tensor([count + 1]), keys, values,
        seen,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")
@torch.no_grad()
def test_the_kernel_is_made_of_what_the_protocol_lists(case: dict[str, Any]) -> None:
    drafter: Any = semi_drafter(target_of("llama", torch.float32), **case)
    native = NativeDraft(Narrow(drafter))
    assert native.gap() < 1e-4
    drafted = native(fresh_of(drafter), None, 4, Sampling(0.0))
    assert drafted is not None
    assert torch.equal(drafted[0], drafter.draft(fresh_of(drafter), None, 4, Sampling(0.0))[0])


@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_a_graph_is_made_of_what_the_protocol_lists(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compile_graph", lambda function, *_: function)
    drafter: Any = semi_drafter(target_of("llama", torch.float32), **case)
    graph = CompiledDraft(Narrow(drafter))
    drafted = [graph(fresh_of(drafter), None, 4, Sampling(0.0)) for _ in range(compiled.RARE + 1)][-1]
    assert drafted is not None and not graph.broken
    assert torch.equal(drafted[0], drafter.draft(fresh_of(drafter), None, 4, Sampling(0.0))[0])


def test_no_engine_imports_a_design() -> None:
    for file in Path(engines.__path__[0]).glob("*.py"):
        imported = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in imported if "designs" in str(node.module)], file.name
