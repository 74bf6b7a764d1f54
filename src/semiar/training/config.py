"""Everything that can be set for a training run, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semiar.drafters.base import DrafterSettings
from semiar.errors import ConfigError
from semiar.targets.lora import LoraSettings
from semiar.training.objectives import parse_loss


def at_least(settings: Any, **bounds: float) -> None:
    """Raise ``ConfigError`` for a field below its bound."""
    for name, least in bounds.items():
        if not getattr(settings, name) >= least:
            raise ConfigError(f"{name} {getattr(settings, name)}", f"{least} or more")


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
class OptimSettings:
    """The schedule; names and meaning are Hugging Face TrainingArguments'."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_train_epochs: float = 1.0
    max_steps: int = -1
    max_seconds: float = 0.0
    """Above 0: as many steps as fit into so many seconds, by the timed batch; in place of epochs and max_steps."""
    learning_rate: float = 2e-4
    """Peak rate of the target's adapter."""
    drafter_learning_rate: float = 1e-3
    """Peak rate of the drafter."""
    weight_decay: float = 0.01
    warmup_steps: float = 0.05
    """Steps of linear warm-up; below 1 a share of the run."""
    lr_scheduler_type: str = "linear"
    max_grad_norm: float = 1.0
    gradient_checkpointing: bool = False
    padding_free: bool = True
    """Run the target over a batch's samples without their padding where that gives the same losses."""
    bf16: bool = True
    """Train in bfloat16 mixed precision (weights that learn stay float32)."""
    fp16: bool = False
    logging_steps: int = 20
    save_steps: int = 0
    """Save a checkpoint every so many steps (a multiple of eval_steps); 0 = whenever acceptance is measured."""
    save_total_limit: int = 2
    eval_steps: int = 0
    """Measure acceptance every so many steps; 0 = once per epoch."""
    load_best_model_at_end: bool = True
    """Keep the checkpoint with the highest measured acceptance."""
    seed: int = 0
    report_to: str = "none"

    def __post_init__(self) -> None:
        at_least(self, per_device_train_batch_size=1, gradient_accumulation_steps=1, logging_steps=1)
        at_least(self, learning_rate=0, drafter_learning_rate=0, weight_decay=0, warmup_steps=0, max_grad_norm=0)
        at_least(self, max_seconds=0, save_total_limit=1, eval_steps=0, save_steps=0, seed=0)
        if self.max_steps < 1 and not self.num_train_epochs > 0:
            raise ConfigError(f"num_train_epochs {self.num_train_epochs}", "above 0, or max_steps")


@dataclass(frozen=True)
class DataSettings:
    """Which samples are learned from."""

    folder: str = ""
    """Local folder of the named tasks (one subfolder each); default: SEMIAR_DATA, else the hub."""
    limit: int = 0
    """At most so many training samples; 0 = all."""
    max_length: int = 1024
    """Longest sample in tokens; longer answers are cut, longer prompts skipped."""
    eval_samples: int = 64
    """Samples held out of training to measure acceptance on."""

    def __post_init__(self) -> None:
        at_least(self, limit=0, max_length=2, eval_samples=0)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    model: str
    """The target: hub id, local folder or .gguf file."""
    data: str
    """A task (gsm8k, sql, samsum, dialogsum, chatdoctor, medquad), a .jsonl/.json/.csv/.parquet file or a hub id."""
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
    dtype: str = "auto"
    device: str = "auto"
    lora: LoraSettings = field(default_factory=LoraSettings)
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    samples: DataSettings = field(default_factory=DataSettings)

    def __post_init__(self) -> None:
        if self.mode not in ("joint", "after", "lora"):
            raise ConfigError(f"mode '{self.mode}'", "joint, after or lora")
        if ":" in self.device:
            raise ConfigError(f"device '{self.device}'", "auto, cpu or cuda", "pick a GPU with CUDA_VISIBLE_DEVICES")
