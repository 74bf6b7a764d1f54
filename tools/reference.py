"""`make docs`: the pages of `docs/reference` that follow from the code, and each design's table of settings.

With --check nothing is written, and the exit code says whether something is stale.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstring_parser import parse_from_object

import semiar
from semiar.cli.main import GROUPS, VERBS, parser
from semiar.cli.options import Parser, off
from semiar.drafters import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OWN = {"--help", "--config", "--print_config"}  # of the parser; told once, above
EMPTY = "<!-- settings -->\n<!-- /settings -->"
BLOCK = re.compile(r"(<!-- settings -->\n).*?(<!-- /settings -->)", re.S)
CLI = """
Every verb takes a recipe (`--config FILE.yaml`, whose keys are the options' names with groups nested), shows its
settings with `--print_config` and its options with `--help`. Later words override earlier ones. A switch is on by its
name and off by `no_` before it; dashes may stand for underscores. `--data SOURCE` is short for `--data.source SOURCE`,
and `--test SOURCE` for `--test.source SOURCE`. `--debug` shows tracebacks. What `train` and `attach` take below
`--drafter.` depends on the design: each has its table on [its page](../drafters/index.md).
"""
MADE = "<!-- written by `make docs` from the code; change the code instead -->\n\n"


def table(rows: list[tuple[str, ...]], *heads: str) -> list[str]:
    """A Markdown table."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return ["| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in line) + " |" for line in lines]


def options_of(verb: str, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Any]]]:
    """The verb's options by group; the title of the first is empty."""
    one: Parser = parser([verb, *words]).verbs[verb]
    groups = {action.option_strings[0] for action in one._actions if action.dest in _parents(one)}
    for group in one._action_groups:
        rows = [action for action in group._group_actions if _shown(action) and not groups & set(action.option_strings)]
        if rows:
            yield ("" if group.title in ("options", "positional arguments") else str(group.title)), rows


def _parents(one: Parser) -> set[str]:
    return {action.dest.rpartition(".")[0] for action in one._actions if "." in action.dest} - {""}


def _shown(action: Any) -> bool:
    return not OWN & set(action.option_strings) and not action.dest.endswith(".help") and action.dest != "help"


def row(action: Any) -> tuple[str, str, str]:
    """Name, default and meaning of an option."""
    name = action.option_strings[0] if action.option_strings else action.dest.upper()
    names = f"`{name}`"
    if getattr(action, "_typehint", None) is bool:
        names += f", `--{off(name.removeprefix('--'))}`"
    told = " ".join(str(action.help or "").replace("%%", "%").split())
    told = re.sub(r" ?\((type: .*|required.*)\)$", "", told)
    return names, default_of(action), told


def default_of(action: Any) -> str:
    """What holds when the option is left out."""
    if action.required or (not action.option_strings and action.default is None):
        return "required"
    value = action.default
    if (isinstance(value, dict) and len(value) > 1) or (isinstance(value, list) and value and _nested(value[0])):
        return "see `--print_config`"
    return "" if value in (None, "", [], {}) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _nested(value: Any) -> bool:
    return dataclasses.is_dataclass(value)


def cli_page() -> str:
    """Every verb with its options."""
    lines = ["# The command line", "", MADE.strip(), ""]
    lines += [*CLI.strip().splitlines(), ""]
    for group, verbs in GROUPS.items():
        for module in verbs:
            verb = next(name for name, one in VERBS.items() if one is module)
            lines += [f"## semiar {verb}", "", f"*{group}.* {module.HELP}", ""]
            for title, actions in options_of(verb):
                lines += [f"**{title.rstrip(':')}**", ""] if title else []
                lines += [*table([row(action) for action in actions], "option", "default", "meaning"), ""]
    return "\n".join(lines).rstrip() + "\n"


def settings_table(name: str) -> list[str]:
    """The settings of one design, as `semiar train` and `attach` take them."""
    groups = dict(options_of("attach", ("--drafter.architecture", name)))
    rows = [row(action) for actions in groups.values() for action in actions if action.dest.startswith("drafter.")]
    return table([one for one in rows if one[0] != "`--drafter.architecture`"], "option", "default", "meaning")


def python_page() -> str:
    """What `import semiar` offers."""
    lines = ["# Python", "", MADE.strip(), "", "What `import semiar` offers, with its contracts.", ""]
    for name in sorted(semiar.__all__, key=lambda one: (one[0].isupper(), one)):
        thing = getattr(semiar, name)
        if not name.startswith("_"):
            lines += [f"## {name}", "", *described(name, thing), ""]
    return "\n".join(lines).rstrip() + "\n"


def described(name: str, thing: Any) -> Iterator[str]:
    """Signature or fields, contract, and a class's public methods."""
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        yield f"`{name}({', '.join(base.__name__ for base in thing.__bases__)})`"
    elif not inspect.isclass(thing):
        yield from ("```python", f"{name}{signature(thing)}", "```")
    yield from ("", inspect.getdoc(thing) or "")
    if dataclasses.is_dataclass(thing) and isinstance(thing, type):
        yield from ("", *fields_of(thing))
    bases = [base for base in thing.__mro__ if base.__module__.startswith("semiar")] if inspect.isclass(thing) else []
    for method, made in ((name, made) for base in reversed(bases) for name, made in vars(base).items()):
        inner = made.__func__ if isinstance(made, classmethod | staticmethod) else made
        if not method.startswith("_") and inspect.isfunction(inner) and inspect.getdoc(inner):
            yield from ("", f"### {name}.{method}", "", "```python", f"{method}{signature(inner)}", "```", "")
            yield inspect.getdoc(inner) or ""


def fields_of(kind: type) -> list[str]:
    """A table of a dataclass's fields."""
    told = {one.arg_name: one.description or "" for one in parse_from_object(kind).params}
    for base in kind.__mro__[1:-1]:
        told = {one.arg_name: one.description or "" for one in parse_from_object(base).params} | told
    rows = []
    for field in dataclasses.fields(kind):
        made = field.default_factory() if callable(field.default_factory) else field.default
        default = f"`{type(made).__name__}()`" if _nested(made) else f"`{made!r}`"
        default = "required" if made is dataclasses.MISSING else default
        rows.append((f"`{field.name}`", f"`{field.type}`", default, told.get(field.name, "")))
    return table(rows, "field", "type", "default", "meaning")


def signature(thing: Any) -> str:
    """As it is written, one parameter a line when it is long."""
    found = inspect.signature(thing)
    parts, starred = [], False
    for one in found.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts, starred = [*parts, "*"], True
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{one.name}: {one.annotation}{default}")
    short = f"({', '.join(parts)}) -> {found.return_annotation}"
    return short if len(short) < 90 else "(\n    " + ",\n    ".join(parts) + f",\n) -> {found.return_annotation}"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page, as it should be."""
    yield DOCS / "reference" / "cli.md", cli_page()
    yield DOCS / "reference" / "python.md", python_page()
    for name in REGISTRY:
        page = DOCS / "drafters" / f"{name}.md"
        made = "\n".join(settings_table(name))
        text = (
            page.read_text(encoding="utf-8")
            if page.is_file()
            else f"# {name}\n\n<!-- settings -->\n<!-- /settings -->\n"
        )
        yield page, BLOCK.sub(lambda found, made=made: f"{found[1]}\n{made}\n\n{found[2]}", text)  # type: ignore[misc]


def stale() -> list[str]:
    """Names of the pages that are not as the code says."""
    return [
        str(path.relative_to(ROOT))
        for path, text in pages()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write them, or say which are stale."""
    if "--check" in sys.argv[1:]:
        for name in (found := stale()):
            print(f"{name} is stale: run make docs")
        return 1 if found else 0
    for path, text in pages():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
