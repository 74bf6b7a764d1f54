"""What can be set about a drafter: the part that designs share, and how a mapping becomes a design's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from semiar.errors import ConfigError
from semiar.settings import at_least

LAYERS = ("last", "low_mid_high")


@dataclass(frozen=True)
class DrafterSettings:
    """What every drafter has; saved with it.  Each design adds its own in a subclass beside its code."""

    architecture: str = ""
    """Which design; `semiar designs` lists them, and --help shows the options of the one that is named here."""
    num_speculative_tokens: int = 5
    """K: tokens drafted per target pass."""

    inherited: ClassVar[tuple[str, ...]] = ()  # what a warm start takes over from the drafter that it starts with

    def __post_init__(self) -> None:
        at_least(self, num_speculative_tokens=1)


@dataclass(frozen=True)
class HeadSettings(DrafterSettings):
    """Of a drafter with an output head."""

    draft_vocab_size: int | str = 4096
    """Most frequent answer tokens that can be drafted, or full."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.draft_vocab_size
        if size != "full" and (isinstance(size, str) or size < 1):
            raise ConfigError(f"draft_vocab_size '{size}'", "a number above 0, or full")


@dataclass(frozen=True)
class LearnedSettings(HeadSettings):
    """Of a drafter whose head learns."""

    lora_r: int = 64
    """Rank of the low-rank update on the draft head; 0 = the target's own rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, lora_r=0)


def from_mapping(kind: type[Any], given: Mapping[str, Any], others: Mapping[str, Sequence[str]]) -> Any:
    """Settings of this kind.  Raises ``ConfigError`` for other types, and for unknown names, saying whose they are.

    ``others`` are the names that each of the designs knows.
    """
    known = {field.name: field for field in fields(kind)}
    name = given.get("architecture", kind.architecture)
    for key, value in given.items():
        if key not in known:
            if key == "options" and isinstance(value, Mapping):
                own = f"its own settings beside the others: {', '.join(known)}"
                raise ConfigError(f"options of drafter {name}", own, "write drafter.NAME for drafter.options.NAME")
            owners = [other for other, names in others.items() if key in names]
            hint = f"it is an option of {', '.join(owners)}" if owners else ""
            raise ConfigError(f"option '{key}' with drafter {name}", ", ".join(known), hint)
        default = known[key].default
        wanted = dict if default is MISSING else type(default)
        fitting: Any = (int, float) if wanted is float else (int, str) if key == "draft_vocab_size" else wanted
        if not isinstance(value, fitting) or (value is True and wanted is not bool):
            raise ConfigError(f"option {key} {value!r} of drafter {name}", f"a value of type {wanted.__name__}")
    return kind(**given)
