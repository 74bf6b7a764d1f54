"""LoRA adapters on a target, through PEFT."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from peft.utils import load_peft_weights, set_peft_model_state_dict
from torch import nn

from semiar.errors import ConfigError, PairError, SourceNotFound

LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraSettings:
    """The adapter on the target; names and meaning are PEFT's."""

    r: int = 16
    """Rank."""
    lora_alpha: int = 32
    """Scale: the update is multiplied by lora_alpha / r."""
    lora_dropout: float = 0.0
    """Dropout on the adapter's input while training."""
    target_modules: str | list[str] = LINEAR
    """Module names to adapt, or all-linear (every linear layer but the output head)."""
    bias: str = "none"
    """Which biases learn: none, all or lora_only."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead."""
    modules_to_save: list[str] = field(default_factory=list)
    """Modules that are trained in full and saved beside the adapter."""


def attach(model: nn.Module, settings: LoraSettings) -> PeftModel:
    """Wrap `model` with a fresh adapter; every base weight is frozen.  Raises ``ConfigError``."""
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=settings.target_modules,
        bias=settings.bias,  # type: ignore[arg-type]
        use_rslora=settings.use_rslora,
        modules_to_save=settings.modules_to_save or None,
    )
    try:
        return get_peft_model(model, config)  # type: ignore[return-value,arg-type]
    except ValueError as error:
        raise ConfigError(
            f"LoRA does not fit this model: {str(error).splitlines()[0]}", "matching target_modules"
        ) from error


def load_adapter(model: nn.Module, folder: str | Path, *, trainable: bool = False) -> PeftModel:
    """Put the adapter in `folder` on `model`; every tensor must find its place.  Raises ``PairError``."""
    folder = Path(folder).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise SourceNotFound(f"'{folder}' has no adapter_config.json", "a folder saved by PEFT or semiar")
    config: Any = LoraConfig.from_pretrained(str(folder))
    config.inference_mode = not trainable
    try:
        weights = load_peft_weights(str(folder), device="cpu")
        adapted: Any = get_peft_model(model, config)  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise PairError(
            f"the adapter '{folder}' does not fit: {str(error).splitlines()[0]}", "weights for this model"
        ) from error
    _fill(adapted, weights, folder)
    return adapted.train(trainable)


def _fill(adapted: Any, weights: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        report: Any = set_peft_model_state_dict(adapted, weights)
    except RuntimeError as error:
        raise PairError(
            f"the adapter '{folder}' was made for another model: {str(error).splitlines()[-1].strip()}",
            "tensors of the shapes that this model has",
        ) from error
    missing = [name for name in report.missing_keys if "lora_" in name or "modules_to_save" in name]
    problems = [f"missing {name}" for name in missing] + [f"unknown {name}" for name in report.unexpected_keys]
    if problems:
        raise PairError(
            f"the adapter '{folder}' does not fit: {', '.join(problems[:3])}"
            + (f" and {len(problems) - 3} more" if len(problems) > 3 else ""),
            "exactly the tensors that its adapter_config.json describes",
            "check that adapter and base model belong together",
        )


def merged(model: nn.Module) -> nn.Module:
    """The plain model with the adapter folded in; a model without an adapter comes back as it is."""
    if not isinstance(model, PeftModel):
        return model
    return model.merge_and_unload(safe_merge=True)  # type: ignore[operator]


def is_adapted(model: nn.Module) -> bool:
    """True when the model carries a PEFT adapter."""
    return isinstance(model, PeftModel)
