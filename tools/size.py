"""`make size`: lines per package and file, and how long functions are."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES, MOST_FUNCTION = 250, 50
KINDS = ("*.py", "*.cpp", "*.h", "*.j2")


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and lines of every function in a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(n.name, (n.end_lineno or n.lineno) - n.lineno + 1) for n in nodes if isinstance(n, kinds)]


def main() -> int:
    """Print the table; files and functions over the house's limits are marked with `!`.  1 when there are any."""
    print(f"{'package':<28}{'files':>6}{'lines':>7}{'median f':>9}{'longest f':>10}")
    total = {"src": 0, "tests": 0}
    for package in sorted({path.parent for root in total for path in ROOT.glob(f"{root}/**/*.py")}):
        files = sorted(path for kind in KINDS for path in package.glob(kind))
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        lengths = [length for path in files if path.suffix == ".py" for _, length in functions(path)] or [0]
        total[package.relative_to(ROOT).parts[0]] += lines
        name = str(package.relative_to(ROOT))
        print(f"{name:<28}{len(files):>6}{lines:>7}{median(lengths):>9.0f}{max(lengths):>10}")
    for root, lines in total.items():
        print(f"{root:<34}{lines:>7}")
    over = []
    for path in sorted(path for kind in KINDS for path in ROOT.glob(f"src/**/{kind}")):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MOST_LINES:
            over.append(f"{path.relative_to(ROOT)}: {count} lines")
        for name, length in functions(path) if path.suffix == ".py" else ():
            if length > MOST_FUNCTION:
                over.append(f"{path.relative_to(ROOT)}: {name} has {length} lines")
    for line in over:
        print(f"! {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
