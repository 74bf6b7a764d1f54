"""`make check`: code that is written twice: the same lines, white space and comments aside, in two places of src."""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST = 7  # lines in a row that are one too many to write again
THIN = 4  # of which so many have to say something: brackets and names of arguments alone do not count


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Number and text of the lines that count."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = " ".join(line.split("#")[0].split("//")[0].split())
        if text and not text.startswith(("import ", "from ", '"""')):
            found.append((number, text))
    return found


def repeated() -> list[str]:
    """Places that share `LEAST` lines or more, the first of each pair of files and runs."""
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.cpp"), *ROOT.glob("src/**/*.h")]):
        lines = lines_of(path)
        for start in range(len(lines) - LEAST + 1):
            run = tuple(text for _, text in lines[start : start + LEAST])
            if sum(len(text) > 25 for text in run) >= THIN:
                places[run].append((path, lines[start][0]))
    told: dict[tuple[Path, Path], str] = {}
    for run, where in places.items():
        for (one, line), (other, again) in pairwise(where):
            names = (one.relative_to(ROOT), other.relative_to(ROOT))
            told.setdefault((one, other), f"{names[0]}:{line} and {names[1]}:{again}: {run[0]}")
    return list(told.values())


def main() -> int:
    """Print what is repeated; 1 when something is."""
    found = repeated()
    for line in found:
        print(f"! {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
