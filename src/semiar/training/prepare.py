"""From a configuration to everything a run needs: samples, draft vocabulary, target, drafter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from semiar.data.batches import Prepared, answers_of, fingerprint, prepare
from semiar.data.chat import ChatRenderer, end_of_turn_ids
from semiar.data.tasks.registry import load_any
from semiar.drafters import Drafter, NoDrafter, build_drafter
from semiar.drafters.layers.heads import choose_vocab, count_tokens
from semiar.drafters.saving import load_weights, read_config, saved_settings
from semiar.errors import ConfigError, DataError, PairError
from semiar.pair import Pair
from semiar.targets import Target, load_model
from semiar.targets.check import check_target
from semiar.targets.engines.prepare import use_flat_passes
from semiar.targets.lora import attach, load_adapter, merged
from semiar.training.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Samples:
    """Training and held-out examples."""

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    prepared: Prepared
    key: str  # changes with any id or label


def load_samples(config: TrainConfig, tokenizer: Any, console: Console) -> Samples:
    """Read, render and split the data; says on the console what was left out and why."""
    data, held = config.data, config.training.eval_samples
    wanted = None if data.limit is None else data.limit + held
    records = load_any(replace(data, limit=wanted).filled(split="train"), config.training.seed)
    ready = prepare(records.records, ChatRenderer(tokenizer), data.max_length)
    skipped = [*records.skipped, *ready.skipped]
    reasons: dict[str, int] = {}
    for skip in skipped:
        reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
    for reason, number in reasons.items():
        console.print(f"[yellow]skipped {number} samples: {reason}[/]")
    held = min(held, max(1, len(ready.examples) // 10)) if held else 0
    train, held_out = ready.examples[held:], ready.examples[:held]
    if not train:
        raise DataError(f"{len(ready.examples)} usable samples in '{data.source}'", "at least 2", "add data")
    console.print(
        f"{len(train)} samples to learn from, {held} held out; {ready.tokens:,} tokens, "
        f"{ready.target_tokens:,} of them answers; {ready.truncated} answers cut at {data.max_length}"
    )
    return Samples(train, held_out, ready, fingerprint(ready.examples))


def build_pair(config: TrainConfig, samples: Samples, tokenizer: Any, console: Console) -> Pair:
    """Target with its adapter, and a fresh or warm-started drafter."""
    torch.manual_seed(config.training.seed)  # the adapter's and the drafter's first weights
    model: Any = load_model(config.model, config.load)
    if config.adapter:
        model = load_adapter(model, config.adapter, trainable=config.mode != "after")
        model = merged(model) if config.mode == "after" else model
    elif config.mode != "after":
        model = attach(model, config.lora)
    if config.training.gradient_checkpointing and config.mode != "after":
        model.enable_input_require_grads()
    target = Target(model)
    check_target(target)
    if config.mode == "after":
        target.requires_grad_(False)
    drafter: Drafter = NoDrafter()
    if config.mode != "lora":
        vocab = draft_vocabulary(config, samples, tokenizer, target, console)
        settings = _saved(config)[0] if config.init_drafter else config.drafter
        drafter = build_drafter(settings, target, vocab).to(target.device)
        if not drafter.trainable:
            raise ConfigError(
                f"drafter {drafter.name} has nothing to learn in mode {config.mode}",
                "mode lora, which tunes the target alone",
                "semiar attach then puts this drafter beside it",
            )
        drafter.read_answers(answers_of(samples.train))
    pair = Pair(target, drafter, tokenizer, config.model, asdict(config))
    pair.adapter = Path(config.adapter) if config.adapter and config.mode == "after" else None
    return pair


def draft_vocabulary(
    config: TrainConfig, samples: Samples, tokenizer: Any, target: Target, console: Console
) -> Tensor | None:
    """The ids that can be drafted, or None for all; a warm start keeps the vocabulary of its drafter."""
    if config.init_drafter:
        return _saved(config)[1].get("d2t")
    counts = count_tokens(answers_of(samples.train), target.vocab_size)
    ends = end_of_turn_ids(tokenizer, target.lm.generation_config.eos_token_id)
    vocab = choose_vocab(counts, getattr(config.drafter, "draft_vocab_size", "full"), ends)
    if vocab is not None:
        covered = float(counts[vocab].sum() / counts.sum())
        console.print(f"draft vocabulary: {len(vocab)} tokens, {covered:.1%} of all answer tokens")
    return vocab


def choose_passes(config: TrainConfig, target: Target, samples: Samples, *, wrapped: bool) -> str:
    """Switch the target to padding-free passes where they change nothing; says which passes the run makes and why."""
    if not config.training.padding_free:
        return "padded passes"
    if wrapped:
        return "padded passes (the model is wrapped for several processes)"
    reason = use_flat_passes(target, max(len(e["input_ids"]) for e in [*samples.train, *samples.held_out]))
    return f"padded passes ({reason})" if reason else "padding-free passes"


def warm_start(config: TrainConfig, pair: Pair) -> None:
    """Fill the drafter from `init_drafter`."""
    if config.init_drafter:
        load_weights(pair.drafter, _saved(config)[1], config.init_drafter)
        pair.drafter.bind(pair.target)


def _saved(config: TrainConfig) -> tuple[Any, dict[str, Tensor]]:
    """Settings and tensors of the drafter that a warm start begins with."""
    folder = Path(config.init_drafter) / "drafter"
    settings = saved_settings(read_config(folder), folder)[0]
    made, asked = asdict(settings), asdict(config.drafter)
    other = {k: v for k, v in made.items() if asked.get(k) != v and k not in settings.inherited}
    if other:
        raise PairError(
            f"init_drafter '{config.init_drafter}' has other settings: {other}", "the same --drafter options"
        )
    return settings, load_file(folder / "model.safetensors")


def run_key(config: TrainConfig, samples: Samples) -> str:
    """Identity of a run: what must be the same for a checkpoint to be continued."""
    same = asdict(replace(config, out="", states_folder="", load=replace(config.load, device="auto")))
    same["training"] = {k: v for k, v in same["training"].items() if k not in RESUMABLE}
    return hashlib.sha256(json.dumps([same, samples.key], sort_keys=True).encode()).hexdigest()


RESUMABLE = {"max_steps", "max_seconds", "logging_steps", "save_steps", "save_total_limit", "report_to", "padding_free"}
