"""From settings to options, and from parsed options back to settings; the same for every verb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from jsonargparse import ArgumentParser, Namespace

from semiar.drafters import DefaultSettings, DrafterSettings, design, drafter_settings
from semiar.errors import ConfigError, SourceNotFound
from semiar.records import check
from semiar.settings import Decoding


class Parser(ArgumentParser):
    """A parser that knows which of its options are switches."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.verbs: dict[str, Parser] = {}

    def switches_of(self, verb: str) -> set[str]:
        """The switches of one of its verbs; none of a verb that there is not."""
        return self.verbs[verb].switches() if verb in self.verbs else set()

    def switches(self) -> set[str]:
        """Options that are switched on by their name, and off by `off` of it."""
        found = {name for action in self._actions for name in action.option_strings if _is_switch(action)}
        return {name.removeprefix("--") for name in found}


def _is_switch(action: Any) -> bool:
    return getattr(action, "_typehint", None) is bool


def add_settings(one: Parser, kind: type[Any], words: Sequence[str], skip: Sequence[str] = ()) -> None:
    """Options of a settings class, and a recipe that may say them: how to decode stands beside the others, what to
    read, how to load and the like in groups; of a drafter's, those of the design that the words name.
    """
    one.add_argument("--config", action="config", help="YAML recipe; options after it override it")
    hints = get_type_hints(kind)
    flat = [name for name, hint in hints.items() if hint is Decoding]
    drafters = [name for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, DrafterSettings)]
    one.add_class_arguments(kind, None, skip={*flat, *drafters, *skip})
    for _ in flat:
        one.add_class_arguments(Decoding, None)
    for name in drafters:
        one.add_class_arguments(design(architecture(words)).Settings, name)
    for action in one._actions:
        if _is_switch(action):
            action.metavar = f"(or --{off(action.dest)})"


def off(name: str) -> str:
    """The option that switches this one off: no_profile of profile, load.no_merge of load.merge."""
    group, dot, own = name.rpartition(".")
    return f"{group}{dot}no_{own}"


def architecture(words: Sequence[str]) -> str:
    """The design that these words, or a recipe among them, ask for; the usual one where they say nothing.

    Raises ``ConfigError`` for one that there is not.
    """
    name = value_of(words, "--drafter.architecture")
    for path in values_of(words, "--config"):
        drafter = {} if name else read_recipe(path).get("drafter")
        name = name or str((drafter if isinstance(drafter, dict) else {}).get("architecture") or "")
    return design(name).name if name else DefaultSettings.architecture


def read_recipe(path: str) -> dict[str, Any]:
    """What a recipe says.  Raises ``ConfigError`` for what is no YAML mapping, ``SourceNotFound`` for no file."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise SourceNotFound(f"there is no recipe '{path}'", "a YAML file")
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"parsing config '{path}' failed: {' '.join(str(error).split())}", "a YAML file") from error
    if not isinstance(said, dict):
        raise ConfigError(f"'{path}' holds a {type(said).__name__}", "names with values")
    return check(said, f"'{path}'")  # the run.yaml of a pair is a recipe too


def values_of(words: Sequence[str], option: str) -> Iterator[str]:
    """What every such option on the command line says, the last one first."""
    following = [*words[1:], ""]
    for word, value in reversed(list(zip(words, following, strict=True))):
        if word == option:
            yield value
        elif word.startswith(f"{option}="):
            yield word.partition("=")[2]


def value_of(words: Sequence[str], option: str) -> str:
    """What the last such option says; empty when there is none."""
    return next(values_of(words, option), "")


def settings_of(kind: type[Any], options: Namespace, **given: Any) -> Any:
    """A settings object from parsed options; ``given`` are values that the verb knows itself."""
    values = dict(given)
    for name, hint in get_type_hints(kind).items():
        if name in given or name not in {field.name for field in fields(kind)}:
            continue
        if hint is Decoding:
            values[name] = settings_of(Decoding, options)
        elif name in options:
            values[name] = _value(hint, options[name])
    return kind(**values)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, Namespace) and isinstance(hint, type) and issubclass(hint, DrafterSettings):
        return drafter_settings(vars(value))
    if isinstance(value, Namespace) and is_dataclass(hint):
        return settings_of(hint, value)  # type: ignore[arg-type]
    if isinstance(value, list) and get_args(hint) and is_dataclass(get_args(hint)[0]):
        return [_value(get_args(hint)[0], one) for one in value]
    return value


def add_switch(one: Parser, name: str, told: str) -> None:
    """A switch that is no setting."""
    one.add_argument(f"--{name}", type=bool, default=False, metavar=f"(or --{off(name)})", help=told)


def add_pair(one: Parser, more: str = "") -> None:
    """What to open, as the first word, and how to load it."""
    one.add_argument("run", type=str, help=f"folder that semiar train wrote, or a hub id of one{more}")


def results_folder(run: str) -> Path:
    """Where findings about a pair go: its own folder; for a pair on the hub, a folder here that is named like it."""
    folder = Path(run).expanduser()
    return folder if folder.is_dir() else Path(run.replace("/", "--"))
