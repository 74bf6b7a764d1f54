"""Virtual environments for peers: made once, below one folder; a file in each says that it is complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from semiar.errors import SemiarError

NEEDS = """
import json, sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
found = [Requirement(line) for line in requires(sys.argv[1]) or []]
print(json.dumps([str(need).split(";")[0] for need in found
                  if need.name not in sys.argv[2:] and (need.marker is None or need.marker.evaluate({"extra": ""}))]))
"""
OWN = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS")  # without bytecode vLLM takes 90 s to start


class PeerError(SemiarError, RuntimeError):
    """A peer cannot be set up, started or asked."""


@dataclass(frozen=True)
class Environment:
    """What is installed into one."""

    folder: str  # its name
    package: str  # what pip installs first, without its needs
    without: tuple[str, ...] = ()  # needs of the package that stay away
    building: dict[str, str] = field(default_factory=dict)  # variables for pip, where it compiles


def tail(text: str, lines: int = 25) -> str:
    """The last lines, where a log says what went wrong."""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def clean(extra: dict[str, str], environment: Path) -> dict[str, str]:
    """This process's variables without those that belong to its own Python and threads."""
    own = {key: value for key, value in os.environ.items() if key not in OWN}
    return own | {"PATH": f"{environment.absolute() / 'bin'}{os.pathsep}{own.get('PATH', '')}"} | extra


def call(name: str, words: Sequence[str], variables: dict[str, str]) -> str:
    """What this command prints; ``PeerError`` with the end of its words when it fails."""
    done = subprocess.run(words, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise PeerError(
            f"the environment of {name} cannot be set up: {' '.join(words[:5])} ended with {done.returncode}",
            "a complete installation",
            f"mend what it reports or leave {name} out of --peers:\n{tail(done.stdout)}",
        )
    return done.stdout


def prepare(name: str, wanted: Environment, environments: Path, console: Console) -> Path:
    """The folder of this environment, made when it is missing, half made, or made with something else in it."""
    folder = (environments / wanted.folder).absolute()
    stamp, content = folder / "complete.txt", f"{wanted.package} without {', '.join(wanted.without) or 'nothing'}\n"
    if stamp.is_file() and stamp.read_text() == content:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    variables = clean(wanted.building, folder)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    package = wanted.package.split("==")[0]
    with console.status(f"{name}: making {folder}, installing {wanted.package} (minutes)"):
        call(name, [sys.executable, "-m", "venv", str(folder)], variables)
        call(name, [*pip, "--no-deps", wanted.package], variables)
        needs = json.loads(call(name, [python, "-c", NEEDS, package, *wanted.without], variables))
        call(name, [*pip, *(need.replace("+cpu", "") for need in needs)], variables)
    stamp.write_text(content)
    return folder
