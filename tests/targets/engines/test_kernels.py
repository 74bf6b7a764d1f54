"""Compiling kernels of our own: when it is done again, and when it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import tiny

from semiar.errors import TargetError
from semiar.targets import Target
from semiar.targets.engines import kernels
from semiar.targets.engines import prepare as engine
from semiar.targets.engines.packed import can_pack
from semiar.targets.engines.prepare import choose_engine, prepare

pytestmark = pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder of compiled kernels, of which this process knows none either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernels.library.cache_clear()
    yield tmp_path
    kernels.library.cache_clear()


def test_a_kernel_is_compiled_again_when_a_header_beside_it_changes(nothing_loaded: Path) -> None:
    source, header = nothing_loaded / "one.cpp", nothing_loaded / "value.h"
    source.write_text('#include "lanes.h"\n#include "value.h"\nextern "C" int value() { return VALUE; }\n')
    found = []
    for value in (3, 4):
        header.write_text(f"#define VALUE {value}\n")
        kernels.library.cache_clear()
        found.append(kernels.library(source).value())
    assert found == [3, 4]


def test_every_file_that_a_kernel_includes_decides_whether_it_is_compiled_again() -> None:
    for name in ("targets", "drafters"):
        source = kernels.HEADERS.parents[1] / name / "engines" / "native.cpp"
        command = [str(kernels.compiler()), "-MM", "-std=c++20", f"-I{kernels.HEADERS}", str(source)]
        rules = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = {Path(word).resolve() for word in rules.replace("\\\n", " ").split(":", 1)[1].split()}
        assert used > {source} and used <= {source, *kernels.headers(source)}


def test_a_compiler_that_fails_is_named_and_another_engine_taken(
    monkeypatch: pytest.MonkeyPatch, nothing_loaded: Path
) -> None:
    def fail(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "no such header")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(engine, "processor", lambda: "avx512_bf16")  # whatever this one is
    with pytest.raises(TargetError, match="no such header"):
        prepare(Target(tiny("llama", torch.float32)), "native")
    if can_pack(torch.device("cpu"), torch.bfloat16):
        with pytest.warns(UserWarning, match="no such header"):
            assert choose_engine("auto", Target(tiny("llama", torch.bfloat16))) == "packed"


def test_a_cache_folder_that_cannot_be_written_is_no_hindrance(
    monkeypatch: pytest.MonkeyPatch, nothing_loaded: Path
) -> None:
    (nothing_loaded / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(nothing_loaded / "file"))
    target = Target(tiny("llama", torch.float32))
    prepare(target, "native")
    assert target.engine == "native"
