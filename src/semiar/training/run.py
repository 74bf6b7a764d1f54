"""`semiar train`: one configuration in, one pair out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from torch import nn
from transformers import TrainingArguments

from semiar.errors import ConfigError, TrainingError
from semiar.pair import Pair
from semiar.targets import load_tokenizer
from semiar.targets.engines.prepare import leave_flat_passes
from semiar.training.config import TrainConfig
from semiar.training.estimate import estimate
from semiar.training.failures import enough_memory, refused_options
from semiar.training.learner import DraftLearner
from semiar.training.parallel import is_main, own_device, wait
from semiar.training.prepare import Samples, build_pair, choose_passes, load_samples, run_key, warm_start
from semiar.training.progress import Interruptible, Progress
from semiar.training.states import Examples, StatesCollator, cache_states
from semiar.training.trainers import AfterTrainer, BaseTrainer, JointTrainer, LoraTrainer, complete_checkpoints

WORK = "checkpoints"  # subfolder of the output where a run in progress lives
UNMEASURED_SAVE_STEPS = 200  # without held-out samples a checkpoint is written this often


def train(
    config: TrainConfig, *, resume: bool = False, dry_run: bool = False, console: Console | None = None
) -> Pair | None:
    """Train as configured and save the pair in ``config.out``; a dry run stops after the estimate.

    Ctrl-C saves a checkpoint at the end of the step and returns None; ``resume`` continues from the newest whole one.
    Started by ``torchrun`` or ``accelerate launch``, the processes share the work and the first one prints and saves.
    """
    console = console if console and is_main() else Console(stderr=True, quiet=not is_main())
    with enough_memory(config.training):
        return _train(config, resume, dry_run, console)


def _train(config: TrainConfig, resume: bool, dry_run: bool, console: Console) -> Pair | None:
    own_device()
    tokenizer = load_tokenizer(config.model)
    samples = load_samples(config, tokenizer, console)
    pair = build_pair(config, samples, tokenizer, console)
    warm_start(config, pair)
    if dry_run:
        with TemporaryDirectory() as spare:  # trainers make their folder
            args = arguments(config, Path(spare), bool(samples.held_out))
            estimate(make_trainer(config, pair, samples, args), config, pair, samples, console)
        return None
    work = Path(config.out) / WORK
    args = arguments(config, work, bool(samples.held_out))  # from here on the processes know of each other
    newest = _resume_point(work, run_key(config, samples), resume)
    trainer = make_trainer(config, pair, samples, args)
    cost = estimate(trainer, config, pair, samples, console)
    if config.training.max_seconds:
        trainer.args.max_steps = max(1, int(config.training.max_seconds / cost["step_seconds"]))
        console.print(f"{trainer.args.max_steps} steps fit into {config.training.max_seconds:g} s")
    if isinstance(trainer, AfterTrainer) and config.cache_states:
        folder = Path(config.states_folder) if config.states_folder else work
        _use_cached_states(trainer, config, pair, samples, folder)
    stop = Interruptible()
    trainer.add_callback(stop)
    with stop:
        result = trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    if stop.asked:
        console.print(
            f"stopped at step {trainer.state.global_step}; go on with the same command and --resume", soft_wrap=True
        )
        return None
    pair.metrics = _metrics(trainer, result.metrics)
    _detach(pair, trainer)
    wait()  # another process may still be reading the best checkpoint, which goes now
    if is_main():
        pair.save(config.out)
        shutil.rmtree(work, ignore_errors=True)
    wait()
    console.print(f"saved the pair in {config.out}", soft_wrap=True)
    return pair


def make_trainer(config: TrainConfig, pair: Pair, samples: Samples, args: TrainingArguments) -> BaseTrainer:
    """The trainer of the mode, ready to run."""
    learner = DraftLearner(pair.drafter, config.loss) if pair.drafter.drafts else None
    kinds: dict[str, Any] = {"joint": JointTrainer, "after": AfterTrainer, "lora": LoraTrainer}
    model: nn.Module = learner if config.mode == "after" and learner else pair.target.model
    pad = pair.tokenizer.pad_token_id
    with refused_options():
        trainer = kinds[config.mode](
            model=model,
            args=args,
            train_dataset=Examples(samples.train),
            eval_dataset=Examples(samples.held_out) if samples.held_out else None,
            data_collator=StatesCollator(0 if pad is None else pad, lengths=True),
        )
    trainer.remove_callback(next((c for c in trainer.callback_handler.callbacks if "Print" in type(c).__name__), None))
    trainer.add_callback(Progress())
    trainer.target = pair.target
    shared = args.world_size > 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    trainer.passes = choose_passes(config, pair.target, samples, wrapped=shared and config.mode != "after")
    if learner is not None:
        trainer.attach_drafter(pair.target, learner, config.training.drafter_learning_rate)
    return trainer


def arguments(config: TrainConfig, work: Path, has_eval: bool) -> TrainingArguments:
    """Our settings as Hugging Face's."""
    optim = config.training
    gpu = torch.cuda.is_available() and config.load.device != "cpu"
    measure = optim.eval_steps or optim.save_steps  # a checkpoint that can become the best one has been measured
    strategy = "no" if not has_eval else ("steps" if measure else "epoch")
    best = has_eval and optim.load_best_model_at_end
    save = "epoch" if strategy == "epoch" else "steps"
    make = refused_options()(TrainingArguments)
    args = make(
        output_dir=str(work),
        per_device_train_batch_size=optim.per_device_train_batch_size,
        gradient_accumulation_steps=optim.gradient_accumulation_steps,
        num_train_epochs=optim.num_train_epochs,
        max_steps=optim.max_steps,
        learning_rate=optim.drafter_learning_rate if config.mode == "after" else optim.learning_rate,
        weight_decay=optim.weight_decay,
        warmup_steps=optim.warmup_steps,
        lr_scheduler_type=optim.lr_scheduler_type,
        max_grad_norm=optim.max_grad_norm,
        gradient_checkpointing=optim.gradient_checkpointing and config.mode != "after",
        gradient_checkpointing_kwargs={"use_reentrant": False} if optim.gradient_checkpointing else None,
        bf16=optim.bf16 and not optim.fp16,
        fp16=optim.fp16,
        use_cpu=not gpu,
        logging_steps=optim.logging_steps,
        eval_strategy=strategy,
        eval_steps=measure or None,
        save_strategy=save,
        save_steps=optim.save_steps or optim.eval_steps or UNMEASURED_SAVE_STEPS,
        save_total_limit=optim.save_total_limit,
        load_best_model_at_end=best,
        metric_for_best_model=("eval_lm_loss" if config.mode == "lora" else "eval_acceptance_length") if best else None,
        greater_is_better=config.mode != "lora" if best else None,
        seed=optim.seed,
        report_to=optim.report_to,
        remove_unused_columns=False,
        dataloader_pin_memory=gpu,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        ddp_timeout=6 * 3600,  # the first process may compute the states of a large data set alone
    )
    args._n_gpu = min(1, args.n_gpu)  # nn.DataParallel would copy the model without its hooks
    return args


def _resume_point(work: Path, key: str, resume: bool) -> Path | None:
    """The newest whole checkpoint of this very run; refuses to mix two runs in one folder."""
    if is_main():
        complete_checkpoints(work)
    wait()  # until the half-written ones are gone
    note = work / "run.json"
    known = json.loads(note.read_text())["key"] if note.is_file() else None
    checkpoints = complete_checkpoints(work)
    if resume and known is not None and known != key:
        raise TrainingError(
            f"'{work}' holds a run with other data, template or settings",
            "the configuration it was started with",
            "restore the options, or choose another --out",
        )
    if not resume and checkpoints:
        raise ConfigError(
            f"'{work}' holds an unfinished run ({checkpoints[-1].name})",
            "--resume or an empty folder",
            "add --resume to go on, or choose another --out",
        )
    wait()  # until everyone has read it
    if is_main():
        work.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"key": key}))
    return checkpoints[-1] if resume and checkpoints else None


def _use_cached_states(trainer: Any, config: TrainConfig, pair: Pair, samples: Samples, folder: Path) -> None:
    examples = [*samples.train, *samples.held_out]
    key = f"{samples.key}-{config.model}-{config.adapter}-{config.load.dtype}-{pair.target.fingerprint()}"
    layers = pair.drafter.layers
    if is_main():
        cache_states(pair.target, examples, layers, folder, key)
    wait()
    states = cache_states(pair.target, examples, layers, folder, key)  # everyone maps the file of the first
    split = sum(len(e["input_ids"]) for e in samples.train)
    trainer.train_dataset = Examples(samples.train, [one[:split] for one in states])
    if trainer.eval_dataset is not None:
        trainer.eval_dataset = Examples(samples.held_out, [one[split:] for one in states])


def _metrics(trainer: Any, train_metrics: dict[str, float]) -> dict[str, Any]:
    best = trainer.measure(trainer.eval_dataset) if trainer.eval_dataset is not None else {}
    return {"train": train_metrics, "held_out": best, "log": trainer.state.log_history}


def _detach(pair: Pair, trainer: Any) -> None:
    """Take the drafter off the model again, which the adapter is saved without, and the attention of training."""
    leave_flat_passes(pair.target)
    model: Any = pair.target.model
    if hasattr(model, "draft_learner"):
        del model.draft_learner
    model.eval()
    pair.drafter.eval()
