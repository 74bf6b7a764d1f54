"""semiar's own trainers: LoRA and drafter in one pass, LoRA alone, and a drafter on a frozen target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from semiar.core.calibration import calibrate
from semiar.targets.target import LAST, Target
from semiar.training.learner import IGNORED
from semiar.training.lm_loss import answer_loss, argmax_after
from semiar.training.mixin import DraftLossMixin
from semiar.training.parallel import Order, wait

COMPLETE = "complete.json"  # written last: a checkpoint without it was broken off while it was being saved


class BaseTrainer(Trainer):
    """What all of them share: measured acceptance instead of a loss, and saves that are whole or not there."""

    target: Target
    model: Any
    args: Any
    loss_is_scaled_for_ga = True
    eval_batch = 8
    passes = "padded passes"  # how the target is run, for the summary before the run

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # have the Trainer count the answer tokens of a global batch

    def _get_train_sampler(self, train_dataset: Any = None) -> Order:
        data: Any = train_dataset or self.train_dataset
        processes = self.args.world_size
        whole = self.args.train_batch_size * processes if processes > 1 else 1
        return Order(len(data), whole, self.args.seed, lambda: int(self.state.epoch or 0))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        (folder / COMPLETE).unlink(missing_ok=True)
        super()._save_checkpoint(model, trial)
        wait()
        if self.args.should_save:
            sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
            (folder / COMPLETE).write_text(json.dumps(sizes, indent=1))

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Acceptance of greedy drafts on held-out samples, teacher-forced, and the language-model loss."""
        self.model.eval()
        metrics = {f"{metric_key_prefix}_{k}": v for k, v in self.measure(eval_dataset or self.eval_dataset).items()}
        self.model.train()
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measure(self, dataset: Any) -> dict[str, float]:
        """What `evaluate` reports, without the prefix."""
        raise NotImplementedError

    def batches(self, dataset: Any) -> Iterator[dict[str, Tensor]]:
        """The evaluation samples in order."""
        collate: Any = self.data_collator
        for start in range(0, len(dataset), self.eval_batch):
            batch = collate([dataset[i] for i in range(start, min(start + self.eval_batch, len(dataset)))])
            yield {name: value.to(self.args.device) for name, value in batch.items()}


class LoraTrainer(BaseTrainer):
    """The adapter alone, with the loss on answer tokens only."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = None
        if model is self.model and not self.is_fsdp_enabled:
            with self.accelerator.autocast():  # the wrapped forward would also run the output head
                self.target.run(inputs["input_ids"], inputs.get("lengths"))
        else:  # data-parallel wrappers must see a call of the model to take part in the backward pass
            outputs = model(input_ids=inputs["input_ids"], logits_to_keep=1, use_cache=False)
        with self.accelerator.autocast():
            summed = answer_loss(self.target, self.target.peek(LAST), inputs["labels"])
        loss = DraftLossMixin.per_token(self, summed, inputs["labels"], num_items_in_batch)  # type: ignore[arg-type]
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def measure(self, dataset: Any) -> dict[str, float]:
        total, count = 0.0, 0
        for batch in self.batches(dataset):
            with self.accelerator.autocast():
                hidden = self.target.states(batch["input_ids"], batch.get("lengths"), (LAST,))[:, :, -1]
                total += float(answer_loss(self.target, hidden, batch["labels"]))
            count += int((batch["labels"][:, 1:] != IGNORED).sum())
        return {"lm_loss": total / max(1, count)}


class JointTrainer(DraftLossMixin, LoraTrainer):
    """LoRA and drafter in one pass."""

    def measure(self, dataset: Any) -> dict[str, float]:
        return {**LoraTrainer.measure(self, dataset), **acceptance(self, dataset)}


class AfterTrainer(DraftLossMixin, BaseTrainer):
    """Only the drafter learns; the frozen target's states are computed online or come with the batch."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        hidden = self.states(inputs)
        with self.accelerator.autocast():
            summed = model(hidden, inputs["input_ids"], inputs["labels"])
        loss = self.per_token(summed, inputs["labels"], num_items_in_batch)
        self.note(draft_loss=loss)
        return (loss, None) if return_outputs else loss

    def states(self, inputs: dict[str, Tensor]) -> Tensor:
        """Hidden states (B, T, F, H) of the batch."""
        if "hidden" in inputs:
            return inputs["hidden"]
        assert self.learner is not None
        with torch.no_grad():
            return self.target.states(inputs["input_ids"], inputs.get("lengths"), self.learner.drafter.layers)

    def measure(self, dataset: Any) -> dict[str, float]:
        return acceptance(self, dataset)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.save_drafter(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.restore_drafter(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint
        self.restore_drafter(Path(self.state.best_model_checkpoint))


@torch.no_grad()
def acceptance(trainer: Any, dataset: Any) -> dict[str, float]:
    """Greedy acceptance per position on held-out samples, teacher-forced, and the tokens per pass it amounts to.

    The drafter is left knowing how often tokens were accepted to which it gave some probability.
    """
    learner, target = trainer.learner, trainer.target
    hits = reached = None
    for batch in trainer.batches(dataset):
        with trainer.accelerator.autocast():
            hidden = batch.get("hidden")
            if hidden is None:
                hidden = target.states(batch["input_ids"], batch.get("lengths"), learner.drafter.layers)
            choices = argmax_after(target, hidden[:, :, -1])
            found = learner.agreement(hidden, batch["input_ids"], batch["labels"], choices)
        hits = found[0] if hits is None else hits + found[0]
        reached = found[1] if reached is None else reached + found[1]
    if hits is None or reached is None:
        return {}
    learner.drafter.take_calibration(calibrate(hits, reached))
    rates = (hits.sum(1) / reached.sum(1).clamp(min=1)).tolist()
    return {
        "acceptance_length": round(1 + sum(torch.tensor(rates).cumprod(0).tolist()), 4),
        **{f"acceptance_{k + 1}": round(rate, 4) for k, rate in enumerate(rates)},
    }


def complete_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints below `folder`, oldest first; half-written ones are removed."""
    whole = []
    for path in folder.glob("checkpoint-*"):
        if (path / COMPLETE).is_file():
            whole.append(path)
        else:
            shutil.rmtree(path)
    return sorted(whole, key=lambda p: int(p.name.rsplit("-", 1)[1]))
