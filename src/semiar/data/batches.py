"""Examples of bounded length from records, and batches of them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from .chat import ChatRenderer, Rendered
from .samples import Record, Skipped

IGNORE = -100  # label of what is not learned, as in the losses of torch and transformers

Example = dict[str, list[int]]  # {"input_ids", "labels"}, equally long


@dataclass(frozen=True, slots=True)
class Prepared:
    """Examples ready to be trained on, and the account of what was cut or left out."""

    examples: list[Example]
    skipped: list[Skipped]
    truncated: int  # examples that lost targets to max_length
    tokens: int
    target_tokens: int  # labels that a next-token loss counts


def prepare(records: Iterable[Record], renderer: ChatRenderer, max_length: int) -> Prepared:
    """Render the records and cut each at `max_length` ids.

    Records whose prompt alone fills `max_length`, or that have no target, are skipped with their reason.  Raises
    DataError, naming the place, when the template refuses a chat, and when no target is left at all.
    """
    if max_length < 2:
        raise DataError(f"max_length {max_length}", "at least 2")
    examples: list[Example] = []
    skipped: list[Skipped] = []
    truncated = 0
    for record in records:
        rendered = _render(record, renderer)
        reason = _unusable(record, rendered, max_length)
        if reason:
            skipped.append(Skipped(record.place, reason))
            continue
        truncated += any(rendered.targets[max_length:])
        examples.append(_example(rendered, max_length))
    if not examples:
        first = f"; the first, {skipped[0].place}: {skipped[0].reason}" if skipped else ""
        raise DataError(f"no target token in {len(skipped)} samples{first}", "at least one", "raise max_length")
    tokens = sum(len(example["input_ids"]) for example in examples)
    return Prepared(examples, skipped, truncated, tokens, sum(map(_count_targets, examples)))


class Collator:
    """Makes right-padded batches: {"input_ids", "labels"}, both LongTensor (B, T); "lengths" (B,) too when asked for.

    There is no attention mask: pads stand behind every real token, so a causal model never sees them, and their
    labels leave them out of the loss.
    """

    def __init__(self, pad_id: int, *, lengths: bool = False):
        self.pad_id, self.lengths = pad_id, lengths

    def __call__(self, examples: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Tensor]:
        batch = {
            "input_ids": _pad([example["input_ids"] for example in examples], self.pad_id),
            "labels": _pad([example["labels"] for example in examples], IGNORE),
        }
        if self.lengths:
            batch["lengths"] = torch.tensor([len(example["input_ids"]) for example in examples])
        return batch


def answers_of(examples: Iterable[Mapping[str, Sequence[int]]]) -> list[list[int]]:
    """The ids that are learned, one list for every unbroken run of them."""
    answers: list[list[int]] = []
    for example in examples:
        before = IGNORE
        for label in example["labels"]:
            if label != IGNORE and before == IGNORE:
                answers.append([])
            if label != IGNORE:
                answers[-1].append(label)
            before = label
    return answers


def fingerprint(examples: Iterable[Mapping[str, Sequence[int]]]) -> str:
    """Hash of ids and labels in their order; the same on every machine and in every process."""
    digest = hashlib.sha256()
    for example in examples:
        for name in ("input_ids", "labels"):
            values = array("q", example[name])
            digest.update(len(values).to_bytes(8, "little"))
            digest.update(values.tobytes())
    return digest.hexdigest()


def _render(record: Record, renderer: ChatRenderer) -> Rendered:
    try:
        if record.messages is None:
            return renderer.text_example(record.text or "")
        return renderer.example(record.messages)
    except DataError as error:
        raise DataError(f"{record.place}: {error.found}", error.expected, error.hint) from error


def _unusable(record: Record, rendered: Rendered, max_length: int) -> str | None:
    """Why a record teaches nothing, if so."""
    if not record.answer.strip():
        return "empty answer"
    first = next((i for i, target in enumerate(rendered.targets) if target and i), None)
    if first is None:
        return "no target token"
    if first >= max_length:
        return f"the prompt alone fills max_length ({max_length})"
    return None


def _example(rendered: Rendered, max_length: int) -> Example:
    ids, targets = rendered.input_ids[:max_length], rendered.targets[:max_length]
    labels = [token if target else IGNORE for token, target in zip(ids, targets, strict=True)]
    return {"input_ids": ids, "labels": labels}


def _count_targets(example: Example) -> int:
    return sum(label != IGNORE for label in example["labels"][1:])


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:  # (B, T)
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.long)
