"""The frozen target's states of a whole data set, computed once and kept in one bfloat16 file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from semiar.data.batches import IGNORE, Collator
from semiar.targets.target import Target

BATCH_TOKENS = 4096  # padded tokens per target pass while the file is filled


def states_bytes(examples: Sequence[dict[str, Any]], layers: int, hidden_size: int) -> int:
    """Size of the file that `cache_states` would write."""
    return 2 * layers * hidden_size * sum(len(e["input_ids"]) for e in examples)


def cache_states(
    target: Target, examples: Sequence[dict[str, Any]], layers: tuple[int, ...], folder: Path, key: str
) -> list[Tensor]:
    """States (tokens, H) of all examples one after another, a memory-mapped file in `folder` for each of the layers.

    Files left by an earlier run are used again when they were written for the same ``key``: other drafters on the same
    target and data read the same states, and only layers that are new are computed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = (sum(len(e["input_ids"]) for e in examples), target.hidden_size)
    stores = [_store(folder, layer, shape) for layer in layers]
    missing = [place for place, layer in enumerate(layers) if _note(folder, layer) != {"key": key, "shape": [*shape]}]
    if missing:
        for place in missing:
            _named(folder, layers[place], "json").unlink(missing_ok=True)
        _fill(target, examples, tuple(layers[p] for p in missing), [stores[p] for p in missing])
        for place in missing:
            _named(folder, layers[place], "json").write_text(json.dumps({"key": key, "shape": [*shape]}))
    return stores


def _named(folder: Path, layer: int, ending: str) -> Path:
    return folder / f"states-{'last' if layer < 0 else layer}.{ending}"


def _store(folder: Path, layer: int, shape: tuple[int, int]) -> Tensor:
    path, size = _named(folder, layer, "bf16"), shape[0] * shape[1]
    if path.is_file() and path.stat().st_size != 2 * size:
        path.unlink()  # of other data
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.bfloat16).view(shape)


def _note(folder: Path, layer: int) -> Any:
    path = _named(folder, layer, "json")
    return json.loads(path.read_text()) if path.is_file() else None


def _fill(
    target: Target, examples: Sequence[dict[str, Any]], layers: tuple[int, ...], stores: Sequence[Tensor]
) -> None:
    """Run the target over all examples and write the states down."""
    lengths = [len(e["input_ids"]) for e in examples]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    for batch in track(_batches(lengths), description="target states", console=Console(stderr=True)):
        longest = max(lengths[i] for i in batch)
        rows = [F.pad(torch.tensor(examples[i]["input_ids"]), (0, longest - lengths[i])) for i in batch]
        with torch.inference_mode():
            real = torch.tensor([lengths[i] for i in batch])
            hidden = target.states(torch.stack(rows).to(target.device), real, layers)
        for place, index in enumerate(batch):
            for column, store in enumerate(stores):
                found = hidden[place, : lengths[index], column]
                store[starts[index] : starts[index + 1]] = found.to("cpu", torch.bfloat16)


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices grouped by similar length, at most `BATCH_TOKENS` padded tokens together."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= BATCH_TOKENS:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


class Examples(torch.utils.data.Dataset[dict[str, Any]]):
    """Prepared samples, with their states when these have been computed.

    ``states`` has one tensor (tokens, H) per layer.  An index past the last example gives a sample without targets,
    which teaches nothing: it fills up batches.
    """

    def __init__(self, examples: Sequence[dict[str, Any]], states: Sequence[Tensor] | None = None):
        self.examples, self.states = examples, states
        self.starts = [0]
        for example in examples:
            self.starts.append(self.starts[-1] + len(example["input_ids"]))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self.examples):
            blank: dict[str, Any] = {"input_ids": [0, 0], "labels": [IGNORE, IGNORE]}
            return blank if self.states is None else {**blank, "hidden": torch.zeros_like(self._states(0, 2))}
        example = self.examples[index]
        if self.states is None:
            return example
        return {**example, "hidden": self._states(self.starts[index], self.starts[index + 1])}

    def _states(self, start: int, end: int) -> Tensor:
        """(T, F, H)"""
        assert self.states is not None
        return torch.stack([one[start:end] for one in self.states], 1)


class StatesCollator:
    """`Collator` that also pads the states (T, F, H) of its examples."""

    def __init__(self, pad_id: int, *, lengths: bool = False):
        self.collate = Collator(pad_id, lengths=lengths)

    def __call__(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        batch = self.collate(examples)
        if "hidden" in examples[0]:
            width = batch["input_ids"].shape[1]
            padded = [F.pad(e["hidden"], (0, 0, 0, 0, 0, width - len(e["hidden"]))) for e in examples]
            batch["hidden"] = torch.stack(padded)
        return batch
