"""The designs by name: how they become known, and what is asked of them without knowing any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from semiar.core.calibration import Calibration
from semiar.drafters.base import Drafter
from semiar.drafters.facts import Facts
from semiar.drafters.settings import DrafterSettings, from_mapping
from semiar.errors import ConfigError
from semiar.targets.target import Target

REGISTRY: dict[str, type[Drafter]] = {}


def register(name: str) -> Callable[[type[Drafter]], type[Drafter]]:
    """Class decorator: make a drafter known under this architecture name."""

    def add(cls: type[Drafter]) -> type[Drafter]:
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return add


def design(name: str) -> type[Drafter]:
    """The design of this name.  Raises ``ConfigError`` that lists them."""
    if name not in REGISTRY:
        raise ConfigError(f"drafter architecture '{name}'", f"one of {', '.join(sorted(REGISTRY))}")
    return REGISTRY[name]


def drafter_settings(given: Mapping[str, Any]) -> Any:
    """A design's settings: its name in ``architecture``, and what is not as by default."""
    names = {name: [field.name for field in fields(one.Settings)] for name, one in REGISTRY.items()}
    return from_mapping(design(given["architecture"]).Settings, given, names)


def shared(given: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Those of the given settings that this design knows."""
    known = {field.name for field in fields(design(architecture).Settings)}
    return {name: value for name, value in given.items() if name in known}


def names_of(test: Callable[[Facts], Any]) -> str:
    """The designs whose facts pass a test, for messages."""
    found = [name for name, one in REGISTRY.items() if test(one.FACTS)]
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else "".join(found)


def facts_of(settings: DrafterSettings) -> Facts:
    """What is known of the design with these settings."""
    return design(settings.architecture).facts(settings)


def build_drafter(
    settings: DrafterSettings, target: Target, vocab: Tensor | None, extra: dict[str, Any] | None = None
) -> Drafter:
    """A fresh drafter for `target`; ``vocab`` (V_draft,) are the target ids it may draft, None = all."""
    extra = dict(extra or {})
    known = extra.pop("calibration", None)
    make: Any = design(settings.architecture)
    drafter: Drafter = make(settings, target, vocab, **extra)
    if known:
        drafter.calibration = Calibration(**known)
    return drafter.bind(target)
