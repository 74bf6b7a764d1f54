"""A target, its drafter and its tokenizer: loaded in one way from whatever names them, and asked for text."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from semiar.drafters import Drafter, NoDrafter, load_drafter
from semiar.drafters.saving import read_config, save_drafter
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.pair.files import (
    ADAPTER_FILES,
    adapter_hash,
    fingerprint,
    move_in,
    read_metrics,
    read_run,
    source_of,
    write_records,
)
from semiar.pair.places import is_pair, local_folder
from semiar.pair.text import Speaker
from semiar.settings import DataSource, Load
from semiar.targets import Target, load_model, load_tokenizer
from semiar.targets.check import check_target
from semiar.targets.engines.packed import can_pack
from semiar.targets.engines.prepare import choose_engine, prepare
from semiar.targets.lora import is_adapted, load_adapter, merged

FORMAT = 1


@dataclass
class Pair(Speaker):
    """A fine-tuned target with its drafter: ``semiar.load("runs/sql")``."""

    target: Target
    drafter: Drafter
    tokenizer: Any
    base: str  # what the target was loaded from
    run: dict[str, Any] = field(default_factory=dict)  # the configuration of the training run
    metrics: dict[str, Any] = field(default_factory=dict)
    adapter: Path | None = None  # where the adapter that has been merged into the target lies

    # -- from a folder and to one --------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls, name: str | Path, load: Load | None = None, *, adapter: str | Path = "", drafter: str | Path = "",
        trainable: bool = False,
    ) -> Pair:  # fmt: skip
        """The pair that ``name`` is: a folder that semiar train wrote or one on the hub; or a model (hub id, folder or
        .gguf file) with the PEFT adapter and the drafter's folder that are given beside it, both of which may be left
        out: without a drafter it decodes plainly.

        Raises ``PairError`` when the parts do not fit, ``SourceNotFound`` when there are none.
        """
        load = load or Load()
        if not is_pair(name):
            _refuse_neither(Path(name).expanduser())
            return cls._of_parts(str(name), load, adapter, drafter)
        if adapter or drafter:
            given = f"adapter '{adapter}'" if adapter else f"drafter '{drafter}'"
            raise ConfigError(f"{given} for the pair '{name}'", "a model", f"a pair has its own {given.split()[0]}")
        return cls._of_run(local_folder(name), load, trainable)

    @classmethod
    def _of_run(cls, folder: Path, load: Load, trainable: bool) -> Pair:
        run, config = read_run(folder), read_config(folder / "drafter")
        model: Any = load_model(config["base_model_name_or_path"], load)
        adapter = folder if (folder / ADAPTER_FILES[0]).is_file() else None
        if adapter:
            model = load_adapter(model, folder, trainable=trainable)
            model = merged(model) if load.merge and not trainable else model
        elif config.get("adapted"):
            raise PairError(f"'{folder}' has no adapter_config.json", "the adapter that the drafter was trained with")
        target = Target(model.eval())
        check_target(target)
        tokenizer = load_tokenizer(str(folder))
        _same_tokens(config, tokenizer, target, str(folder))
        made = _drafter_in(folder / "drafter", target)
        made.check_tokenizer(tokenizer)
        if not trainable:
            _make_fast(target, made, load)
        return cls(target, made, tokenizer, config["base_model_name_or_path"], run, read_metrics(folder), adapter)

    @classmethod
    def _of_parts(cls, name: str, load: Load, adapter: str | Path, drafter: str | Path) -> Pair:
        """A drafter that was made for another adapter of the same model is taken too: to see how it fares."""
        model: Any = load_model(name, load)
        target = Target(merged(load_adapter(model, adapter)) if adapter else model)
        check_target(target)
        made = _drafter_in(Path(drafter), target) if drafter else NoDrafter()
        _make_fast(target, made, load)
        return cls(target, made, load_tokenizer(name), name, adapter=Path(adapter) if adapter else None)

    def with_drafter(self, drafter: Drafter) -> Pair:
        """The same target with another drafter."""
        return replace(self, drafter=drafter, run={**self.run, "drafter": asdict(drafter.settings)})

    def save(self, folder: str | Path) -> None:
        """Write the folder beside its final place and move it there, so that a broken-off save leaves the old one."""
        folder = Path(folder).expanduser().resolve()
        fresh = folder.with_name(folder.name + ".saving")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        if is_adapted(self.target.model):
            model: Any = self.target.model
            model.save_pretrained(fresh)
        elif self.adapter:
            for name in ADAPTER_FILES:
                shutil.copyfile(self.adapter / name, fresh / name)
        save_drafter(self.drafter, fresh / "drafter", self.about())
        self.tokenizer.save_pretrained(fresh)
        write_records(fresh, self.run, self.metrics)
        move_in(fresh, folder)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def source(self) -> DataSource:
        """What it was trained on."""
        return source_of(self.run)

    def identity(self) -> str:
        """Which target this is: the base model's name and a hash of its adapter."""
        weights = adapter_hash(self.adapter) if self.adapter else ""
        return f"{self.base} {weights}" if weights else self.base

    def about(self) -> dict[str, Any]:
        """What the drafter's config records of the target it belongs to."""
        return {
            "format": FORMAT,
            "base_model_name_or_path": self.base,
            "base_model_archs": [type(self.target.lm).__name__],
            "hidden_size": self.target.hidden_size,
            "adapted": is_adapted(self.target.model) or self.adapter is not None,
            "tokenizer_sha256": fingerprint(self.tokenizer),
        }


def _refuse_neither(folder: Path) -> None:
    """Raise ``SourceNotFound`` for a folder that is neither a pair nor a model."""
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise SourceNotFound(
            f"'{folder}' has no run.yaml and no config.json", "a folder that semiar train wrote, or one of a model"
        )


def _drafter_in(folder: Path, target: Target) -> Drafter:
    """The drafter in `folder`, where and as precise as its target is."""
    return load_drafter(folder, target).to(device=target.device, dtype=target.dtype).eval().bind(target)


def _make_fast(target: Target, drafter: Drafter, load: Load) -> None:
    """Prepare both for decoding, as the settings say."""
    engine = choose_engine(load.engine, target)
    prepare(target, engine, (1, drafter.settings.num_speculative_tokens + 1))
    drafting = load.drafting if load.drafting != "auto" else engine
    if drafting != "eager" and can_pack(target.device, target.dtype):
        drafter.prepare(drafting)


def _same_tokens(config: dict[str, Any], tokenizer: Any, target: Target, folder: str) -> None:
    if config.get("tokenizer_sha256") != fingerprint(tokenizer):
        raise PairError(
            f"the tokenizer in '{folder}' is not the one that the drafter was trained with",
            "the same vocabulary",
            "restore the tokenizer files or train the drafter again",
        )
    if len(tokenizer) > target.vocab_size:
        raise PairError(
            f"the tokenizer has {len(tokenizer)} tokens, the target's head only {target.vocab_size} rows",
            "a target with a row for every token",
        )
