"""What an advice is for, how long it may take, and who is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from semiar.errors import ConfigError
from semiar.settings import DataSource, Decoding, Load, at_least

CANDIDATES: dict[str, dict[str, Any]] = yaml.safe_load(
    (files("semiar.advising") / "presets" / "candidates.yaml").read_text(encoding="utf-8")
)
LONGEST = 96  # tokens in an answer that is measured, unless said otherwise


@dataclass(frozen=True)
class AdviseSettings:
    """What the advice is for, and how long it may take."""

    target: str
    """Model (hub id, folder or .gguf file), pair, or PEFT adapter."""
    data: DataSource
    """Like what will be asked; some of its training rows are held out to measure on."""
    model: str = ""
    """Where the target is a PEFT adapter: the model that it belongs to; default: as the adapter says."""
    prompts: int = 8
    """Held-out prompts that each candidate is measured on."""
    minutes: float = 5.0
    """How long it may take; what is measured first says how long the candidates may train."""
    regenerate: bool = True
    """Learn from the target's own answers instead of the data's."""
    out: str = ""
    """Folder of the work; one that exists is continued.  Default: runs/advise-DATA."""
    load: Load = field(default_factory=Load)
    decoding: Decoding = field(default_factory=Decoding)

    def __post_init__(self) -> None:
        at_least(self, prompts=2, minutes=0)
        object.__setattr__(self, "data", DataSource.of(self.data).filled(split="train"))
        object.__setattr__(self, "decoding", self.decoding.filled(max_new_tokens=LONGEST))
        if not self.data.source:
            raise ConfigError("no data", "a task, file or hub id like what will be asked", "say it with --data")
        if self.decoding.seed is not None or self.decoding.longest < 1:
            raise ConfigError(
                f"seed {self.decoding.seed}, max_new_tokens {self.decoding.longest}", "no seed, 1 or more"
            )
        if not self.out:
            object.__setattr__(self, "out", f"runs/advise-{Path(self.data.source).stem}")
