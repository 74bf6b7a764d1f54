"""Kernels of our own, compiled with the machine's C++ compiler when they are first needed."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache as once
from pathlib import Path
from typing import Any

from rich.console import Console

from semiar.errors import TargetError

HEADERS = Path(__file__).parent  # the folder of the headers that all kernels share
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++20")


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    found = (os.environ.get("CXX"), "g++", "clang++")
    return next((name for name in found if name and shutil.which(name)), None)


def headers(source: Path) -> list[Path]:
    """What a file may include: the headers that all kernels share, and those beside it."""
    return sorted({*HEADERS.glob("*.h"), *source.parent.glob("*.h")})


@once
def library(source: Path) -> Any:
    """The compiled kernels of a file; kept on disk for the next process.  Raises ``TargetError`` when that fails."""
    name = compiler()
    text = b"".join(file.read_bytes() for file in (source, *headers(source)))
    about = f"{name} {FLAGS} {platform.machine()} {processor()}".encode()
    path = _folder() / f"native-{hashlib.sha256(text + about).hexdigest()[:16]}.so"
    try:
        if not path.is_file():
            _compile(str(name), source, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise TargetError(
            f"the native engine in '{path.parent}' cannot be written or loaded: {error}",
            "a folder that programs can be run from",
            "set XDG_CACHE_HOME, or choose another engine: --load.engine packed",
        ) from error


def _folder() -> Path:
    """Where compiled kernels are kept: the user's cache, or a folder of this process where that cannot be written."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semiar"
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except (OSError, RuntimeError):  # no home, no rights
        pass
    spare = Path(tempfile.mkdtemp(prefix="semiar-"))
    atexit.register(shutil.rmtree, spare, ignore_errors=True)
    return spare


def _compile(name: str, source: Path, path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as spare,
        Console(stderr=True).status("compiling the native engine (once for this machine; some seconds)"),
    ):
        made = Path(spare) / path.name
        command = [name, *FLAGS, f"-I{HEADERS}", "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TargetError(
                f"{name} could not compile the native engine: {done.stderr.strip()[:300]}",
                "a C++20 compiler with OpenMP",
                "install g++, or choose another engine: --load.engine packed",
            )
        os.replace(made, path)  # another process may have been quicker


def processor() -> str:
    """What -march=native stands for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(
        next((line for line in lines if line.startswith(key)), "")
        for key in ("model name", "flags", "CPU part", "Features")
    )
