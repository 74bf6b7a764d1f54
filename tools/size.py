"""`make size`: lines per package and file, and how long functions are."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES, MOST_FUNCTION = 250, 50
KINDS = ("*.py", "*.cpp", "*.h")


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and lines of every function in a file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(n.name, (n.end_lineno or n.lineno) - n.lineno + 1) for n in nodes if isinstance(n, kinds)]


def main() -> None:
    """Print the table; files and functions over the house's limits are marked with `!`."""
    print(f"{'package':<28}{'files':>6}{'lines':>7}{'median f':>9}{'longest f':>10}")
    total = 0
    for package in sorted({p.parent for p in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")]}):
        files = sorted(package.glob("*.py"))
        lines = sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
        lengths = [length for f in files for _, length in functions(f)] or [0]
        total += lines
        name = str(package.relative_to(ROOT))
        print(f"{name:<28}{len(files):>6}{lines:>7}{median(lengths):>9.0f}{max(lengths):>10}")
    print(f"{'total':<34}{total:>7}")
    for path in sorted(path for kind in KINDS for path in ROOT.glob(f"src/**/{kind}")):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MOST_LINES:
            print(f"! {path.relative_to(ROOT)}: {count} lines")
        for name, length in functions(path) if path.suffix == ".py" else []:
            if length > MOST_FUNCTION:
                print(f"! {path.relative_to(ROOT)}: {name} has {length} lines")


if __name__ == "__main__":
    main()
