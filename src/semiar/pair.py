"""The one artefact: a target with its adapter, the drafter made for it, and the tokenizer, as a folder.

A folder holds a plain PEFT adapter (``adapter_config.json``, ``adapter_model.safetensors``; absent when only the
drafter was trained), ``drafter/``, the tokenizer's files, ``run.yaml`` (what was asked for) and ``metrics.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from semiar.data.chat import end_of_turn_ids
from semiar.drafters import Drafter, NoDrafter, load_drafter
from semiar.drafters.saving import read_config, save_drafter
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.targets import LoadSettings, Target, load_model, load_tokenizer
from semiar.targets.check import check_target
from semiar.targets.engine import choose_engine, prepare
from semiar.targets.lora import is_adapted, load_adapter, merged
from semiar.targets.packed import can_pack

FORMAT = 1
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MOVING = "saving.unfinished"  # in a folder whose files are being replaced


@dataclass
class Pair:
    """A target, its drafter and its tokenizer."""

    target: Target
    drafter: Drafter
    tokenizer: Any
    base: str  # what the target was loaded from
    run: dict[str, Any] = field(default_factory=dict)  # the configuration of the training run
    metrics: dict[str, Any] = field(default_factory=dict)
    adapter: Path | None = None  # where the adapter that has been merged into the target lies

    @classmethod
    def load(cls, folder: str | Path, settings: LoadSettings | None = None, *, trainable: bool = False) -> Pair:
        """Read a folder that `save` wrote, or one on the hub.  Raises ``PairError`` when its parts do not fit."""
        folder = local_folder(folder)
        settings = settings or LoadSettings()
        if (folder / MOVING).exists():
            raise PairError(
                f"a save into '{folder}' was broken off half-way",
                "a whole pair",
                f"move the rest over from '{folder.name}.saving' and delete '{MOVING}', or save again",
            )
        if not (folder / "run.yaml").is_file():
            raise SourceNotFound(f"'{folder}' has no run.yaml", "a folder written by semiar train")
        run = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
        config = read_config(folder / "drafter")
        base = config["base_model_name_or_path"]
        model: Any = load_model(base, settings)
        adapter = folder if (folder / "adapter_config.json").is_file() else None
        if adapter:
            model = load_adapter(model, folder, trainable=trainable)
            model = merged(model) if settings.merge and not trainable else model
        elif config.get("adapted"):
            raise PairError(f"'{folder}' has no adapter_config.json", "the adapter that the drafter was trained with")
        target = Target(model.eval())
        check_target(target)
        tokenizer = load_tokenizer(str(folder))
        _same_tokens(config, tokenizer, target, str(folder))
        drafter = _drafter_in(folder / "drafter", target)
        drafter.check_tokenizer(tokenizer)
        if not trainable:
            _make_fast(target, drafter, settings)
        return cls(target, drafter, tokenizer, base, run, _read_json(folder / "metrics.json"), adapter)

    @classmethod
    def plain(
        cls, name: str, settings: LoadSettings | None = None, *, adapter: str = "", drafter: Path | None = None
    ) -> Pair:
        """A model, with an adapter if one is given, and without a drafter: the same loop, decoding plainly.

        ``drafter`` is the folder of one that was made for another adapter of the same model, to see how it fares.
        """
        settings = settings or LoadSettings()
        model: Any = load_model(name, settings)
        target = Target(merged(load_adapter(model, adapter)) if adapter else model)
        check_target(target)
        made = NoDrafter() if drafter is None else _drafter_in(drafter, target)
        _make_fast(target, made, settings)
        return cls(target, made, load_tokenizer(name), name, adapter=Path(adapter) if adapter else None)

    @classmethod
    def open(cls, name: str | Path, settings: LoadSettings | None = None, *, adapter: str = "") -> Pair:
        """The pair in this folder, or the target without a drafter that a model and an adapter make."""
        if not is_pair(name):
            return cls.plain(str(name), settings, adapter=adapter)
        if adapter:
            raise ConfigError(f"adapter '{adapter}' for the pair '{name}'", "a model", "a pair has its own adapter")
        return cls.load(name, settings)

    def end_ids(self) -> list[int]:
        """Ids that end a turn, of the model or of its chat template."""
        return end_of_turn_ids(self.tokenizer, self.target.lm.generation_config.eos_token_id)

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
        (fresh / "run.yaml").write_text(yaml.safe_dump(self.run, sort_keys=False), encoding="utf-8")
        (fresh / "metrics.json").write_text(json.dumps(self.metrics, indent=2) + "\n", encoding="utf-8")
        _move_in(fresh, folder)

    def identity(self) -> str:
        """Which target this is: the base model's name and a hash of its adapter."""
        weights = self.adapter / ADAPTER_FILES[1] if self.adapter else None
        if weights is None or not weights.is_file():
            return self.base
        return f"{self.base} {hashlib.sha256(weights.read_bytes()).hexdigest()}"

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


def _drafter_in(folder: Path, target: Target) -> Drafter:
    """The drafter in `folder`, where and as precise as its target is."""
    return load_drafter(folder, target).to(device=target.device, dtype=target.dtype).eval().bind(target)


def _make_fast(target: Target, drafter: Drafter, settings: LoadSettings) -> None:
    """Prepare both for decoding, as the settings say."""
    engine = choose_engine(settings.engine, target)
    prepare(target, engine, (1, drafter.settings.num_speculative_tokens + 1))
    drafting = settings.drafting if settings.drafting != "auto" else engine
    if drafting != "eager" and can_pack(target.device, target.dtype):
        drafter.prepare(drafting)


def _move_in(fresh: Path, folder: Path) -> None:
    """Move what lies in `fresh` to `folder`; until that is done a mark keeps half of it from being loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MOVING
    mark.write_text(f"{fresh}\n", encoding="utf-8")
    for name in ADAPTER_FILES:
        if not (fresh / name).exists():
            (folder / name).unlink(missing_ok=True)  # of an earlier pair: it would be loaded with this one
    for item in fresh.iterdir():
        goal = folder / item.name
        if goal.is_dir():
            shutil.rmtree(goal)
        os.replace(item, goal)
    fresh.rmdir()
    mark.unlink()


def is_pair(name: str | Path) -> bool:
    """Whether this folder, or repository on the hub, holds a pair and not a model alone."""
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute() or str(name).count("/") != 1 or str(name).startswith("."):
        return (path / "run.yaml").is_file()
    try:
        hf_hub_download(str(name), "run.yaml")
    except (OSError, ValueError, HfHubHTTPError):
        return False
    return True


def local_folder(name: str | Path) -> Path:
    """The folder itself, or a download of it when `name` is a hub id.  Raises ``SourceNotFound``."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or str(name).count("/") != 1 or str(name).startswith("."):
        raise SourceNotFound(f"there is no folder '{name}'", "a folder that semiar train wrote, or a hub id")
    try:
        return Path(snapshot_download(str(name)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise SourceNotFound(
            f"there is no folder '{name}', nor could it be fetched from the hub ({type(error).__name__})",
            "a folder that semiar train wrote, or a hub id",
        ) from error


def fingerprint(tokenizer: Any) -> str:
    """Identity of a tokenizer's vocabulary: which text has which id."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


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


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
