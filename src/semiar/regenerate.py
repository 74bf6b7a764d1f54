"""`semiar regenerate`: replace the answers of a data set by the tuned target's own.

A drafter has to guess what its target writes, not what the data's authors wrote; training it on the target's own
answers is the most reliable way to raise acceptance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from semiar.core.sampling import Sampling
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any
from semiar.decoding import Limits
from semiar.decoding.loop import decode
from semiar.decoding.text import Completion, Detokenizer, generator, record
from semiar.errors import ConfigError, DataError
from semiar.pair import Pair


@dataclass(frozen=True)
class RegenerateSettings:
    """What is written anew."""

    data: str
    """Task, file or hub id whose answers are replaced."""
    out: str
    """The .jsonl file to write; an unfinished one is continued."""
    split: str = "train"
    folder: str = ""
    """Local folder of the named tasks; default: SEMIAR_DATA, else the hub."""
    limit: int = 0
    """At most so many samples; 0 = all."""
    batch_size: int = 32
    """Rows decoded together."""
    num_speculative_tokens: int = 0
    """K; 0 decodes plainly, which is mostly faster when a whole batch is decoded together."""
    max_new_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    keep_unfinished: bool = False
    """Also write answers that hit max_new_tokens (they have no end and teach a drafter to stop there)."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.max_new_tokens < 1 or self.limit < 0:
            raise ConfigError(
                f"batch_size {self.batch_size}, max_new_tokens {self.max_new_tokens}, limit {self.limit}",
                "at least 1, 1 and 0",
            )


def regenerate(pair: Pair, settings: RegenerateSettings, console: Console) -> int:
    """Write ``messages`` records with the target's answers; returns how many there are.

    Ctrl-C loses the answers in work.
    """
    records = load_any(
        settings.data, settings.split, settings.folder or None, settings.limit or None, settings.seed
    ).records
    texts = sum(1 for r in records if not r.messages)
    if texts:
        raise ConfigError(f"{texts} plain texts without a chat", "prompts with answers", "regenerate needs prompts")
    out = Path(settings.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = _resume(out, _key(pair, settings))
    left = [r for r in records if r.place not in done]
    if done:
        console.print(f"{len(done)} samples are there already; {len(left)} to go")
    renderer = ChatRenderer(pair.tokenizer)
    ids = {id(r): renderer.prompt(r.prompt_messages) for r in left}
    fitting = [r for r in left if len(ids[id(r)]) < pair.target.max_length]
    if len(fitting) < len(left):
        console.print(f"[yellow]skipped {len(left) - len(fitting)} prompts longer than the model's context[/]")
    left = sorted(fitting, key=lambda r: len(ids[id(r)]))
    unfinished = 0
    with out.open("a", encoding="utf-8") as file, Progress(console=console) as bar:
        task = bar.add_task("regenerating", total=len(left))
        for index, completion in _answers(pair, [ids[id(r)] for r in left], settings):
            unfinished += completion.finish_reason != "stop"
            file.write(json.dumps(_row(left[index], completion, settings), ensure_ascii=False) + "\n")
            file.flush()
            bar.advance(task)
    if unfinished:
        action = "kept" if settings.keep_unfinished else "written without an answer, so that training skips them"
        console.print(f"[yellow]{unfinished} answers hit max_new_tokens {settings.max_new_tokens}: {action}[/]")
    return len(_places(out))


def _answers(pair: Pair, prompts: list[list[int]], settings: RegenerateSettings) -> Iterator[tuple[int, Completion]]:
    """Index and answer of every prompt, in the order in which they are finished."""
    done = [Completion() for _ in prompts]
    limits = Limits(settings.max_new_tokens, tuple(pair.end_ids()))
    rng = generator(pair.target, settings.seed + sum(map(sum, prompts)))  # a continued run draws other numbers
    for step in decode(
        pair.target, pair.drafter, prompts, limits, Sampling(settings.temperature), rng=rng,
        num_speculative_tokens=settings.num_speculative_tokens, max_batch=settings.batch_size,
    ):  # fmt: skip
        record(done, step)
        for row, reason in zip(step.rows, step.finished, strict=True):
            if reason:
                done[row].text = Detokenizer(pair.tokenizer).push(done[row].token_ids, final=True)
                yield row, done[row]


def _row(source: Record, completion: Completion, settings: RegenerateSettings) -> dict[str, object]:
    usable = completion.finish_reason == "stop" or settings.keep_unfinished
    turns = [{"role": m.role, "content": m.content} for m in source.prompt_messages]
    turns.append({"role": "assistant", "content": completion.text if usable else ""})
    return {"messages": turns, "place": source.place, "finish_reason": completion.finish_reason}


def _key(pair: Pair, settings: RegenerateSettings) -> str:
    """What must be the same for an unfinished file to be continued: the target and how it writes."""
    free = ("out", "batch_size", "folder", "limit", "num_speculative_tokens")
    decides = {name: value for name, value in asdict(settings).items() if name not in free}
    return json.dumps({"target": pair.identity(), **decides}, sort_keys=True)


def _resume(path: Path, key: str) -> set[str]:
    """Places of the samples that an unfinished file holds already; notes beside it how they were written.

    Raises ``DataError`` when another target or other settings wrote them.
    """
    note = path.with_name(path.name + ".key")
    places = _places(path)
    if places and note.is_file() and note.read_text(encoding="utf-8") != key:
        raise DataError(
            f"{path} was begun by another target or with other settings",
            "the pair and the options it was begun with",
            "restore them, or choose another --out",
        )
    note.write_text(key, encoding="utf-8")
    return places


def _places(path: Path) -> set[str]:
    """Places of the samples in an unfinished file; a line that a killed run left in halves is cut off.

    Raises ``DataError`` for a file that `regenerate` did not write.
    """
    if not path.is_file():
        return set()
    whole, places = 0, set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                places.add(json.loads(line)["place"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}, line {number} is not from semiar regenerate",
                    "its own unfinished file",
                    "choose another --out",
                ) from error
            whole += len(line)
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return places
