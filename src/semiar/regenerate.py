"""`semiar regenerate`: replace the answers of a data set by the tuned target's own.

A drafter has to guess what its target writes, not what the data's authors wrote; training it on the target's own
answers is the most reliable way to raise acceptance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from semiar.data.chat import ChatRenderer
from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any
from semiar.decoding.loop import decode
from semiar.decoding.text import Completion, Detokenizer, generator, record
from semiar.errors import ConfigError, DataError
from semiar.pair import Pair
from semiar.settings import DataSource, Decoding, Load, at_least

LONGEST = 512  # tokens in an answer, unless said otherwise


@dataclass(frozen=True)
class RegenerateSettings:
    """What is written anew."""

    data: DataSource
    out: str
    """The .jsonl file to write; an unfinished one is continued."""
    max_batch: int = 32
    """Rows decoded together."""
    keep_unfinished: bool = False
    """Also write answers that hit max_new_tokens (they have no end and teach a drafter to stop there)."""
    adapter: str = ""
    """PEFT adapter of a target that is given as a model."""
    load: Load = field(default_factory=Load)
    decoding: Decoding = field(default_factory=Decoding)

    def __post_init__(self) -> None:
        at_least(self, max_batch=1)
        object.__setattr__(self, "data", DataSource.of(self.data).filled(split="train"))
        asked = self.decoding.filled(max_new_tokens=LONGEST, seed=0)
        count = 0 if asked.num_speculative_tokens is None else asked.num_speculative_tokens
        object.__setattr__(self, "decoding", replace(asked, num_speculative_tokens=count))
        if not self.data.source:
            raise ConfigError("no data", "whose answers are to be replaced", "say it with --data")
        if not self.decoding.longest or not self.decoding.lossless:
            found = f"rule {self.decoding.rule}, max_new_tokens {self.decoding.longest}"
            raise ConfigError(found, "the target's own answers: rule exact or block, 1 token or more")


def regenerate(pair: Pair, settings: RegenerateSettings, console: Console) -> int:
    """Write ``messages`` records with the target's answers; returns how many there are.

    Ctrl-C loses the answers in work.
    """
    records = load_any(settings.data, settings.decoding.seed).records
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
        console.print(f"[yellow]{unfinished} answers hit max_new_tokens {settings.decoding.longest}: {action}[/]")
    return len(_places(out))


def _answers(pair: Pair, prompts: list[list[int]], settings: RegenerateSettings) -> Iterator[tuple[int, Completion]]:
    """Index and answer of every prompt, in the order in which they are finished."""
    if not prompts:
        return
    done = [Completion() for _ in prompts]
    asked, rows = settings.decoding, min(settings.max_batch, len(prompts))
    rng = generator(pair.target, (asked.seed or 0) + sum(map(sum, prompts)))  # a continued run draws other numbers
    for step in decode(
        pair.target, pair.drafter, prompts, pair.limits(asked.longest), asked.sampling, rng=rng, rule=asked.rule,
        num_speculative_tokens=pair.count(asked, prompts, rows), max_batch=settings.max_batch, plan=asked.plan,
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
    """What must be the same for an unfinished file to be continued: the target, what it answers and how it writes."""
    data, how = settings.data, settings.decoding
    decides = {
        "target": pair.identity(), "data": [data.source, data.split], "keep_unfinished": settings.keep_unfinished,
        "sampling": asdict(how.sampling), "max_new_tokens": how.longest, "seed": how.seed,
    }  # fmt: skip
    return json.dumps(decides, sort_keys=True)


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
