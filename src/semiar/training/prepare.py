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
from semiar.drafters import Drafter, DrafterSettings, NoDrafter, build_drafter
from semiar.drafters.base import REGISTRY
from semiar.drafters.heads import choose_vocab, count_tokens
from semiar.drafters.saving import load_weights, read_config
from semiar.errors import ConfigError, DataError, PairError
from semiar.pair import Pair
from semiar.targets import LoadSettings, Target, load_model
from semiar.targets.check import check_target
from semiar.targets.engine import use_flat_passes
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
    settings = config.samples
    wanted = settings.limit + settings.eval_samples if settings.limit else None
    records = load_any(config.data, "train", settings.folder or None, wanted, config.optim.seed)
    ready = prepare(records.records, ChatRenderer(tokenizer), settings.max_length)
    skipped = [*records.skipped, *ready.skipped]
    reasons: dict[str, int] = {}
    for skip in skipped:
        reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
    for reason, number in reasons.items():
        console.print(f"[yellow]skipped {number} samples: {reason}[/]")
    held = min(settings.eval_samples, max(1, len(ready.examples) // 10)) if settings.eval_samples else 0
    train, held_out = ready.examples[held:], ready.examples[:held]
    if not train:
        raise DataError(f"{len(ready.examples)} usable samples in '{config.data}'", "at least 2", "add data")
    console.print(
        f"{len(train)} samples to learn from, {held} held out; {ready.tokens:,} tokens, "
        f"{ready.target_tokens:,} of them answers; {ready.truncated} answers cut at {settings.max_length}"
    )
    return Samples(train, held_out, ready, fingerprint(ready.examples))


def build_pair(config: TrainConfig, samples: Samples, tokenizer: Any, console: Console) -> Pair:
    """Target with its adapter, and a fresh or warm-started drafter."""
    torch.manual_seed(config.optim.seed)  # the adapter's and the drafter's first weights
    model: Any = load_model(config.model, LoadSettings(config.dtype, config.device))
    if config.adapter:
        model = load_adapter(model, config.adapter, trainable=config.mode != "after")
        model = merged(model) if config.mode == "after" else model
    elif config.mode != "after":
        model = attach(model, config.lora)
    if config.optim.gradient_checkpointing and config.mode != "after":
        model.enable_input_require_grads()
    target = Target(model)
    check_target(target)
    if config.mode == "after":
        target.requires_grad_(False)
    drafter: Drafter = NoDrafter()
    if config.mode != "lora":
        vocab = draft_vocabulary(config, samples, tokenizer, target, console)
        drafter = build_drafter(config.drafter, target, vocab, _structure(config)).to(target.device)
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
    vocab = choose_vocab(counts, config.drafter.draft_vocab_size, ends)
    if vocab is not None:
        covered = float(counts[vocab].sum() / counts.sum())
        console.print(f"draft vocabulary: {len(vocab)} tokens, {covered:.1%} of all answer tokens")
    return vocab


def choose_passes(config: TrainConfig, target: Target, samples: Samples, *, wrapped: bool) -> str:
    """Switch the target to padding-free passes where they change nothing; says which passes the run makes and why."""
    if not config.optim.padding_free:
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


def _structure(config: TrainConfig) -> dict[str, Any]:
    """What the drafter of a warm start has beside its settings: older ones lack some weights."""
    if not config.init_drafter:
        return {}
    extra = read_config(Path(config.init_drafter) / "drafter")["extra"]
    return REGISTRY[config.drafter.architecture].structure(config.drafter, extra)


def _saved(config: TrainConfig) -> tuple[dict[str, Any], dict[str, Tensor]]:
    folder = Path(config.init_drafter) / "drafter"
    saved = read_config(folder)
    made, asked = asdict(DrafterSettings(**saved["settings"])), asdict(config.drafter)
    if made != asked:
        other = {k: v for k, v in made.items() if asked[k] != v}
        raise PairError(
            f"init_drafter '{config.init_drafter}' has other settings: {other}", "the same --drafter options"
        )
    return saved, load_file(folder / "model.safetensors")


def run_key(config: TrainConfig, samples: Samples) -> str:
    """Identity of a run: what must be the same for a checkpoint to be continued."""
    same = asdict(replace(config, out="", states_folder="", device="auto"))
    same["optim"] = {k: v for k, v in same["optim"].items() if k not in RESUMABLE}
    return hashlib.sha256(json.dumps([same, samples.key], sort_keys=True).encode()).hexdigest()


RESUMABLE = {"max_steps", "max_seconds", "logging_steps", "save_steps", "save_total_limit", "report_to", "padding_free"}
