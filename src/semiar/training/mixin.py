"""`DraftLossMixin`: a drafter that learns inside somebody else's Trainer.

Mix it into ``transformers.Trainer`` or TRL's ``SFTTrainer``; the drafter is attached to the model, learns in the same
pass, and is saved in ``drafter/`` of every checkpoint beside whatever the trainer saves itself::

    class JointSFT(DraftLossMixin, SFTTrainer): ...
    trainer = JointSFT(model=peft_model, args=args, train_dataset=data)
    trainer.attach_drafter(Target(trainer.model), DraftLearner(drafter, LossSettings()), learning_rate=1e-3)
    trainer.train()
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from semiar.drafters.saving import load_weights
from semiar.errors import ConfigError, TrainingError
from semiar.targets.target import Target
from semiar.training.learner import IGNORED, DraftLearner

DRAFTER_FILE = "drafter.safetensors"


class DraftLossMixin:
    """Adds the draft loss to a Trainer's own loss; put it before the trainer class in the bases."""

    target: Target
    learner: DraftLearner | None = None
    drafter_learning_rate: float = 1e-3
    sums: dict[str, float]

    def attach_drafter(self, target: Target, learner: DraftLearner, learning_rate: float) -> None:
        """Make a drafter part of the model, to be trained with its own learning rate.  Call before ``train``."""
        trainer: Any = self
        if getattr(trainer.args, "packing", False) or getattr(trainer.args, "padding_free", False):
            raise ConfigError(
                "packing or padding_free", "one sample per row", "drafts must not run on into the next sample"
            )
        self.target, self.learner, self.drafter_learning_rate, self.sums = target, learner, learning_rate, {}
        if trainer.model is not learner:
            trainer.model.draft_learner = learner
        learner.drafter.bind(target)

    # -- the loss ----------------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        assert self.learner is not None, "attach_drafter() comes first"
        trainer: Any = self
        tokens, labels = inputs["input_ids"], inputs["labels"]
        self.target.watch(self.learner.drafter.layers)
        loss = super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        loss, outputs = loss if return_outputs else (loss, None)
        hidden = self.target.read(self.learner.drafter.layers)
        if self.learner.settings.detach_hidden:
            hidden = hidden.detach()
        with trainer.accelerator.autocast():
            draft = self.per_token(self.learner(hidden, tokens, labels), labels, num_items_in_batch)
        share = self.learner.settings.draft_weight
        total = (1 - share) * loss + share * draft
        self.note(lm_loss=loss, draft_loss=draft, loss=total)
        return (total, outputs) if return_outputs else total

    def per_token(self, summed: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """A sum over answer tokens divided as the Trainer divides its own: by the tokens of the global batch."""
        trainer: Any = self
        if items is None:
            return summed / (labels[:, 1:] != IGNORED).sum().clamp(min=1)
        processes = trainer.accelerator.num_processes if trainer.args.average_tokens_across_devices else 1
        return summed * processes / items

    def note(self, **values: Tensor) -> None:
        """Remember losses for the log; stop the run when one is not finite."""
        trainer: Any = self
        for name, value in values.items():
            number = float(value.detach())
            if number != number or abs(number) == float("inf"):
                raise TrainingError(
                    f"{name} is {number} at step {trainer.state.global_step + 1}",
                    "a finite loss",
                    "lower the learning rate, or train in bfloat16 instead of float16; the last checkpoint is intact",
                )
            if trainer.model.training:
                self.sums[name] = self.sums.get(name, 0.0) + number
        if trainer.model.training:
            self.sums["passes"] = self.sums.get("passes", 0.0) + 1

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the parts of the loss to what the Trainer logs."""
        trainer: Any = self
        if "loss" in logs and self.sums.get("passes"):
            updates = self.sums.pop("passes") / max(1, trainer.args.gradient_accumulation_steps)
            parts = {name: value / updates for name, value in self.sums.items() if name != "loss"}
            means = trainer.accelerator.reduce(torch.tensor(list(parts.values()), device=trainer.args.device), "mean")
            logs |= {name: round(float(value), 4) for name, value in zip(parts, means, strict=True)}
            self.sums.clear()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    # -- its own learning rate ---------------------------------------------------------------------------------------

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The Trainer's optimizer, with the drafter's parameters in groups of their own."""
        trainer: Any = self
        optimizer = super().create_optimizer(model)  # type: ignore[misc]
        if self.learner is None or getattr(trainer, "_drafter_grouped", False):
            return optimizer
        own = {id(p) for p in self.learner.parameters()}
        groups = []
        for group in optimizer.param_groups:
            mine = [p for p in group["params"] if id(p) in own]
            group["params"] = [p for p in group["params"] if id(p) not in own]
            if mine:
                groups.append({**group, "params": mine, "lr": self.drafter_learning_rate})
        for group in groups:
            optimizer.add_param_group(group)
        trainer._drafter_grouped = True
        return optimizer

    # -- saving ------------------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        trainer: Any = self
        folder = Path(output_dir or trainer.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if state_dict is not None:
            state_dict = without(state_dict, "draft_learner.")
        super()._save(str(folder), state_dict)  # type: ignore[misc]
        self.save_drafter(folder)

    def save_drafter(self, folder: Path) -> None:
        """Write the drafter's weights into a checkpoint folder."""
        assert self.learner is not None
        tensors = {n: t.detach().cpu().contiguous() for n, t in self.learner.drafter.state_dict().items()}
        save_file(tensors, folder / DRAFTER_FILE)

    def restore_drafter(self, folder: Path) -> None:
        """Read the drafter's weights back from a checkpoint folder."""
        assert self.learner is not None
        load_weights(self.learner.drafter, load_file(folder / DRAFTER_FILE), str(folder))
        self.learner.drafter.bind(self.target)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        self.restore_drafter(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        super()._load_best_model()  # type: ignore[misc]
        trainer: Any = self
        self.restore_drafter(Path(trainer.state.best_model_checkpoint))


def without(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Entries of a state dict that do not lie below `prefix`."""
    return {name: value for name, value in state.items() if prefix not in name}


def count(parameters: Iterable[nn.Parameter]) -> int:
    """How many numbers the parameters that learn hold."""
    return sum(p.numel() for p in parameters if p.requires_grad)
