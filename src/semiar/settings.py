"""The shared words: what to read, how to load, how to decode, how to train; the same for every verb and in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from semiar.core.draft import Plan, Shape
from semiar.core.sampling import Sampling
from semiar.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
ENGINES = ("auto", "eager", "packed", "compiled", "native")
RULES = ("exact", "block", "none")
AUTO = "auto"


def at_least(settings: Any, **bounds: float) -> None:
    """Raise ``ConfigError`` for a field below its bound, or not a number."""
    for name, least in bounds.items():
        if not getattr(settings, name) >= least:
            raise ConfigError(f"{name} {getattr(settings, name)}", f"{least} or more")


def one_of(settings: Any, **choices: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a field that is none of its choices."""
    for name, known in choices.items():
        if getattr(settings, name) not in known:
            raise ConfigError(f"{name} '{getattr(settings, name)}'", f"{', '.join(known[:-1])} or {known[-1]}")


@dataclass(frozen=True)
class DataSource:
    """What to read."""

    source: str = ""
    """A task (gsm8k, sql, samsum, dialogsum, chatdoctor, medquad), a .jsonl, .json, .csv or .parquet file, a folder or
    a hub id; --data SOURCE for short.  Left out: what the pair was trained on."""
    split: str = ""
    """Which split; left out: train to learn from, test to measure on."""
    folder: str = ""
    """Local folder of the named tasks, one subfolder each; left out: the variable SEMIAR_DATA, else the hub."""
    limit: int | None = None
    """At most so many samples; left out: all to learn from, few to measure on (see the verb)."""
    max_length: int = 1024
    """Longest sample in tokens; longer answers are cut, longer prompts skipped."""

    def __post_init__(self) -> None:
        at_least(self, max_length=2)
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit {self.limit}", "1 or more", "leave it out for all samples")

    @classmethod
    def of(cls, said: DataSource | str | Mapping[str, Any]) -> DataSource:
        """A source from its name alone, or from what a file says of it."""
        if isinstance(said, DataSource):
            return said
        return cls(said) if isinstance(said, str) else cls(**said)

    def filled(self, other: DataSource | None = None, *, split: str = "", limit: int | None = None) -> DataSource:
        """The same with what was left out: source and folder of another one, split and limit of the verb."""
        same = other if other is not None and not self.source else None
        return replace(
            self,
            source=same.source if same else self.source,
            folder=self.folder or (same.folder if same else ""),
            split=self.split or split,
            limit=limit if self.limit is None else self.limit,
        )


@dataclass(frozen=True)
class Place:
    """Where a model is put, and how precise it is there."""

    dtype: str = AUTO
    """float32, bfloat16, float16, float64, or auto: bfloat16 (verify: float32)."""
    device: str = AUTO
    """cpu, cuda, cuda:1, ..., or auto: a GPU when there is one."""

    def __post_init__(self) -> None:
        one_of(self, dtype=(AUTO, *DTYPES))

    def torch_dtype(self) -> torch.dtype:
        """What the weights are loaded as."""
        return torch.bfloat16 if self.dtype == AUTO else DTYPES[self.dtype]

    def torch_device(self) -> torch.device:
        """Where they are loaded to.  Raises ``ConfigError`` for a name that is no device."""
        if self.device == AUTO:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.device(self.device)
        except RuntimeError as error:
            raise ConfigError(f"device '{self.device}'", "auto, cpu, cuda or cuda:N") from error


@dataclass(frozen=True)
class Load(Place):
    """How a model is put into memory to decode."""

    merge: bool = True
    """Fold a LoRA adapter into the weights for decoding (faster; the merged model is then the reference)."""
    engine: str = AUTO
    """eager: as transformers runs it.  packed: weights laid out for the CPU's kernels, projections of one input joined.
    compiled: packed, and whole passes of one row as graphs, up to a minute each to compile.  native: a kernel of
    semiar's own for Llama-like models.  All but eager keep the output head twice.  auto: native or
    packed for bfloat16 on a CPU, else eager."""
    drafting: str = AUTO
    """The same for the drafter: eager, packed, compiled (its steps as one graph) or native (its steps as a program of
    the kernel; what cannot be written down runs packed).  auto: as the engine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, engine=ENGINES, drafting=ENGINES)


@dataclass(frozen=True)
class Decoding(Shape, Sampling):
    """How the next tokens are drafted, judged and picked."""

    num_speculative_tokens: int | str | None = None
    """K, tokens drafted per target pass: a number (0 decodes plainly), auto (chosen by measuring this machine), or left
    out: the pair's own (regenerate: 0, as many rows at once are mostly faster plainly)."""
    rule: str = "exact"
    """exact, block (block verification, sampling only), or none (LOSSY: drafts unverified)."""
    max_new_tokens: int | None = None
    """Longest answer in tokens; left out: 256 (verify 64, regenerate 512, advise 96)."""
    seed: int | None = None
    """Of all random numbers; left out: another one each time, 0 where something is measured."""

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        Shape.__post_init__(self)
        one_of(self, rule=RULES)
        count = self.num_speculative_tokens
        if (isinstance(count, str) and count != AUTO) or (isinstance(count, int) and count < 0):
            raise ConfigError(f"num_speculative_tokens {count}", "0 or more, or auto", "0 decodes plainly")
        if self.max_new_tokens is not None:
            at_least(self, max_new_tokens=0)
        usual = Sampling(self.temperature)
        idle = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) != getattr(usual, name)]
        if self.temperature == 0 and idle:
            raise ConfigError(f"{', '.join(idle)} with temperature 0", "a temperature above 0, or to leave them out")
        for name in ("nodes", "branch"):
            if self.tree == "none" and getattr(self, name) != getattr(Plan(), name):
                raise ConfigError(f"{name} {getattr(self, name)} without a tree", "tree best, beam or sampled")

    @property
    def sampling(self) -> Sampling:
        """How a token is picked."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def plan(self) -> Plan:
        """How to draft; its count is not used."""
        return Plan(tree=self.tree, nodes=self.nodes, branch=self.branch, stop_below=self.stop_below)

    @property
    def lossless(self) -> bool:
        """Whether the output is what the target alone would write."""
        return self.rule != "none"

    def filled(self, *, max_new_tokens: int = 256, seed: int | None = None) -> Decoding:
        """The same with what was left out."""
        longest = max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        return replace(self, max_new_tokens=longest, seed=seed if self.seed is None else self.seed)

    @property
    def longest(self) -> int:
        """Longest answer of settings that are `filled`."""
        assert self.max_new_tokens is not None, "not filled"
        return self.max_new_tokens


@dataclass(frozen=True)
class Training:
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
    eval_samples: int = 64
    """Samples held out of training to measure acceptance on."""
    load_best_model_at_end: bool = True
    """Keep the checkpoint with the highest measured acceptance."""
    seed: int = 0
    report_to: str = "none"

    def __post_init__(self) -> None:
        at_least(self, per_device_train_batch_size=1, gradient_accumulation_steps=1, logging_steps=1, eval_samples=0)
        at_least(self, learning_rate=0, drafter_learning_rate=0, weight_decay=0, warmup_steps=0, max_grad_norm=0)
        at_least(self, max_seconds=0, save_total_limit=1, eval_steps=0, save_steps=0, seed=0)
        if self.max_steps < 1 and not (self.num_train_epochs > 0 and math.isfinite(self.num_train_epochs)):
            raise ConfigError(f"num_train_epochs {self.num_train_epochs}", "above 0, or max_steps")
