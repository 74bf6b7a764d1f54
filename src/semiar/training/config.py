"""Everything that can be set for a training run, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semiar.drafters import DefaultSettings, DrafterSettings, drafter_settings
from semiar.errors import ConfigError
from semiar.settings import DataSource, Place, Training, at_least
from semiar.targets.lora import LoraSettings
from semiar.training.objectives import parse_loss


@dataclass(frozen=True)
class LossSettings:
    """What is learned: ``(1 - lambda) * LM loss + lambda * sum_k step_decay^(k-1) * draft loss at step k``."""

    draft_weight: float = 0.5
    """lambda, in joint mode; after has the draft loss alone."""
    terms: str = "0.9*tv + 0.1*kl"
    """Weighted sum of ce, kl, reverse_kl, js and tv (1 - acceptance)."""
    step_decay: float = 0.8
    """Each further draft step counts this much of the one before."""
    detach_hidden: bool = True
    """Joint mode: keep the draft loss from shaping the target's adapter."""
    anchors_per_sample: int = 64
    """Random positions per sample and epoch from which drafts are learned; 0 = every position."""

    def __post_init__(self) -> None:
        parse_loss(self.terms)
        if not 0 < self.draft_weight <= 1:
            raise ConfigError(f"draft_weight {self.draft_weight}", "above 0 and at most 1")
        if not 0 < self.step_decay <= 1:
            raise ConfigError(f"step_decay {self.step_decay}", "above 0 and at most 1")
        at_least(self, anchors_per_sample=0)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    model: str
    """The target: hub id, local folder or .gguf file."""
    data: DataSource
    out: str
    """Folder of the pair that comes out."""
    mode: str = "joint"
    """joint: LoRA and drafter learn in one pass.  after: the target is frozen, only the drafter learns.
    lora: the adapter alone."""
    adapter: str = ""
    """An existing PEFT adapter of the target; in joint mode it goes on learning."""
    init_drafter: str = ""
    """Warm start: take the drafter's weights from this pair."""
    cache_states: bool = True
    """Mode after: compute the target's states once and keep them on disk in bfloat16."""
    states_folder: str = ""
    """Keep those states here, for other runs on the same target and data; default: with the run, removed after it."""
    load: Place = field(default_factory=Place)
    lora: LoraSettings = field(default_factory=LoraSettings)
    drafter: DrafterSettings = field(default_factory=DefaultSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        if self.mode not in ("joint", "after", "lora"):
            raise ConfigError(f"mode '{self.mode}'", "joint, after or lora")
        object.__setattr__(self, "data", DataSource.of(self.data))  # a name alone is enough in Python
        if isinstance(self.drafter, Mapping):
            object.__setattr__(self, "drafter", drafter_settings(self.drafter))
        if not self.data.source:
            raise ConfigError("no data", "a task, a file, a folder or a hub id", "say it with --data")
        if ":" in self.load.device:
            raise ConfigError(
                f"device '{self.load.device}'", "auto, cpu or cuda", "pick a GPU with CUDA_VISIBLE_DEVICES"
            )
