"""Make a pair of a model and a drafter that another project trained for it."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from semiar.drafters import build_drafter, design, drafter_settings, names_of
from semiar.drafters.saving import load_weights
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.pair import Pair
from semiar.settings import Load

SUFFIXES = (".safetensors", ".pt", ".bin", ".pth")


@dataclass(frozen=True)
class ImportSettings:
    """What is imported for which model."""

    checkpoint: str
    """File or folder with the original tensors (.safetensors, .pt, .bin)."""
    architecture: str
    """Which design the checkpoint is of; `semiar designs` says which of them read one."""
    model: str
    """The model that the drafter was trained for: hub id or folder."""
    out: str
    """Folder of the pair that is written."""
    num_speculative_tokens: int = 0
    """K; 0 = as many as the checkpoint has heads for, or 5."""

    def __post_init__(self) -> None:
        if not design(self.architecture).FACTS.original:
            known = names_of(lambda facts: facts.original)
            raise ConfigError(f"architecture '{self.architecture}'", f"one that reads an original checkpoint: {known}")
        if self.num_speculative_tokens < 0:
            raise ConfigError(f"num_speculative_tokens {self.num_speculative_tokens}", "at least 1, or 0")


def import_drafter(settings: ImportSettings, console: Console) -> None:
    """Write a pair's folder.  Raises ``PairError`` when the tensors do not fit the architecture or the model."""
    tensors = read_tensors(Path(settings.checkpoint).expanduser())
    pair = Pair.load(settings.model, Load(device="cpu", engine="eager"))
    original = design(settings.architecture).original(tensors, pair.target)
    count = settings.num_speculative_tokens or original.count or 5
    if original.count is not None and count != original.count:
        raise ConfigError(f"num_speculative_tokens {count}", f"{original.count}, the heads of the checkpoint")
    given = {"architecture": settings.architecture, "num_speculative_tokens": count, "lora_r": 0}
    shape = drafter_settings({**given, "draft_vocab_size": "full", **original.settings})
    drafter = build_drafter(shape, pair.target, None, {"embedding_scale": original.scale})
    own = {name: torch.zeros_like(value) for name, value in drafter.state_dict().items() if _unbiased(name)}
    drafter.to(next(iter(original.weights.values())).dtype)
    load_weights(drafter, own | original.weights, settings.checkpoint)
    pair.drafter = drafter.bind(pair.target)
    pair.run = {"model": settings.model, "mode": "import", "import": asdict(settings)}
    pair.save(settings.out)
    size = sum(value.numel() for value in drafter.parameters())
    console.print(f"{settings.architecture}, K = {count}, {size / 1e6:.1f}M weights: {settings.out}", soft_wrap=True)


def _unbiased(name: str) -> bool:
    """The originals' output matrices have no bias, whatever the model's own has."""
    return name.startswith("own.") and name.endswith(".bias")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, or of a folder that holds a single file of them."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if len(files) != 1:
            raise SourceNotFound(f"'{path}' has {len(files)} files of tensors", "one", "name the file itself")
        path = files[0]
    if not path.is_file():
        raise SourceNotFound(f"there is no '{path}'", "an original checkpoint's file or folder")
    try:
        return load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise PairError(f"'{path}' cannot be read: {error}", "a file of tensors") from error
