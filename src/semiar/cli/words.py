"""The words of a command line and the keys of a recipe as the parser reads them; old names are told their new ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import fields
from typing import Any

import yaml

from semiar.cli.options import off, read_recipe
from semiar.drafters import REGISTRY
from semiar.errors import ConfigError

SHORT = {"data": "data.source", "test": "test.source"}  # what a group's own name stands for
OLD = {  # names of earlier versions, options and keys alike; a name that ends in a dot stands for all below it
    "task": "data", "folder": "data.folder", "split": "data.split", "limit": "data.limit",
    "max_length": "data.max_length", "samples.eval_samples": "training.eval_samples", "samples.": "data.",
    "optim.": "training.", "dtype": "load.dtype", "device": "load.device", "engine": "load.engine", "verify": "rule",
    "plan.": "", "batch_size": "max_batch", "drafter.options.": "drafter.", "budget.rows": "data.limit",
    "budget.steps": "training.max_steps", "budget.seconds": "training.max_seconds",
    "budget.batch_size": "training.per_device_train_batch_size",
    "budget.learning_rate": "training.drafter_learning_rate", "budget.eval_samples": "training.eval_samples",
    "budget.target_epochs": "training.num_train_epochs", "budget.target_learning_rate": "training.learning_rate",
    "budget.regenerate": "regenerate", "budget.base_rows": "base_rows", "measure.prompts": "test.limit",
    "measure.temperature": "temperature", "measure.own_count": "num_speculative_tokens auto",
    "measure.engine": "load.engine", "measure.drafting": "load.drafting",
}  # fmt: skip
PROMPTS = ("bench", "verify")  # verbs that had an option of their own for data.limit


def normalised(words: Sequence[str], verb: str, switches: Collection[str]) -> list[str]:
    """The words with dashes for underscores, switches with their value, and recipes read.

    Raises ``ConfigError`` for an old name, saying the new one.
    """
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            found.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        _refuse_old(name, verb, "--")
        if name == "config":
            found += ["--config", _recipe(value or (rest.pop(0) if rest else ""), verb)]
        elif name in switches or name in (offs := {off(one): one for one in switches}):
            _refuse_value(name, value or (rest[0] if rest else ""))
            found.append(f"--{name}=true" if name in switches else f"--{offs[name]}=false")
        else:
            found.append(f"--{SHORT.get(name, name)}{equals}{value}")
    return found


def _refuse_value(name: str, value: str) -> None:
    if value in ("true", "false"):
        new = f"--{name}" if value == "true" else f"--{off(name)}"
        raise ConfigError(f"--{name} {value}", new, "in YAML it is true or false")


def _refuse_old(name: str, verb: str, mark: str) -> None:
    """Raise ``ConfigError`` for a name of earlier versions."""
    new = OLD.get(name)
    if new is None:
        start = next((old for old in OLD if old.endswith(".") and name.startswith(old)), None)
        new = None if start is None else OLD[start] + name.removeprefix(start)
    if name == "prompts" and verb in PROMPTS:
        new = "data.limit"
    if new is not None:
        raise ConfigError(f"{mark}{name}, a name of an earlier version", f"{mark}{new}")


def _recipe(path: str, verb: str) -> str:
    """A recipe's content as YAML in today's form.  Raises ``ConfigError`` for old keys and for what is no mapping."""
    said = read_recipe(path)
    for name in _names(said, ""):
        if name not in ("tasks", "seeds"):
            _refuse_old(name, verb, "")
    for name in SHORT:
        if isinstance(said.get(name), str):
            said[name] = {"source": said[name]}
    return yaml.safe_dump(said, sort_keys=False)


def _names(said: Mapping[str, Any], before: str) -> list[str]:
    """All keys of a recipe, with those that they lie below."""
    found = []
    for name, value in said.items():
        found.append(f"{before}{name}")
        if isinstance(value, dict) and name != "drafters":
            found += _names(value, f"{before}{name}.")
    return found


def complaint(error: Exception, words: Sequence[str], verbs: Container[str]) -> str:
    """The parser's message in one line, in the words of the command line, and where to look."""
    verb = next((word for word in words if word in verbs), "")
    text = " ".join(str(error).split()).removesuffix(".")
    text = re.sub(r"<class '(\w+)'>", r"\1", text.replace('Parser key "', 'option "'))
    text = text.replace(f"{verb}.", "") if verb else text
    unknown = re.search(r"drafter\.(\w+)", text)
    if unknown:
        owners = [
            name for name, one in REGISTRY.items() if unknown[1] in {field.name for field in fields(one.Settings)}
        ]
        text += f"; {unknown[1]} is an option of drafter {', '.join(owners)}" if owners else ""
    return f"{text}; see semiar {verb + ' ' if verb else ''}--help"
