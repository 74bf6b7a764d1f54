"""What `semiar advise` found, in a table, in plain words, and as the command to run."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from semiar.advising.choice import Choice, Heads, Length, longer, overtaking, what_would_change
from semiar.errors import TrainingError
from semiar.studies.statistics import Row


@dataclass(frozen=True, slots=True)
class Advice:
    """The question, the candidates, and what is best."""

    settings: dict[str, Any]
    model: str
    adapter: str  # "" = none
    choices: list[Choice]
    heads: Heads
    lengths: tuple[Length, Length] | None  # of the first candidate, after half of its training and all of it
    rows: list[Row]

    @property
    def best(self) -> Choice:
        """The fastest candidate whose measurement can be believed.  Raises ``TrainingError`` when there is none."""
        sound = [one for one in self.choices if not one.disturbed]
        if not sound:
            told = "; ".join(f"{one.drafter}: {one.disturbed}" for one in self.choices)
            raise TrainingError(f"no measurement can be believed ({told})", "a quieter machine", "run it again then")
        return max(sound, key=lambda one: one.speedup.value)

    def lines(self) -> list[str]:
        """Plain words, the command last."""
        best, prompts = self.best, self.settings["prompts"]
        how = f"{best.drafter} with K = {best.count}" + (
            f" and a draft vocabulary of {_size(best.draft_vocab_size)}" if best.draft_vocab_size else ""
        )
        told = {
            "pays": f"It will pay: use {how}.  Expect {best.speedup} times the speed of plain decoding",
            "unclear": f"It may pay, or not: {how} comes to {best.speedup} times the speed of plain decoding",
            "does not pay": f"It will not pay as it is: the best, {how}, comes to {best.speedup} times plain decoding",
        }[best.verdict]
        found = [
            f"{told} (95 % over {prompts} prompts, without the time of the prompt itself).",
            f"A pass yields {best.tokens_per_pass:.2f} tokens for {best.draft_ms:.1f} ms of drafting and "
            f"{best.verify_ms:.1f} ms of verifying, against {best.plain_ms:.1f} ms for one; if every draft were "
            f"accepted, the most would be {best.at(1.0):.2f}.",
        ]
        for one in self.choices:
            if one.disturbed:
                found.append(f"{one.drafter} is left out: its measurement was disturbed ({one.disturbed}).")
        if best.draft_vocab_size:
            found.append(self._vocabularies())
        if self.lengths:
            found.append(longer(self.choices[0].drafter, *self.lengths))
        if self.choices[0].draft_vocab_size and not best.draft_vocab_size:
            found.append(overtaking(self.choices[0], best))
        if best.verdict == "does not pay":
            found.append(what_would_change(best))
        return [*found, self.command()]

    def _vocabularies(self) -> str:
        heads = self.heads
        return "Draft vocabularies: " + ", ".join(
            f"{_size(size)} covers {heads.coverage[size]:.1%} at {heads.milliseconds[size]:.2f} ms a token"
            for size in heads.coverage
        ) + f" (the candidates': {heads.used[1]:.1%} at {heads.used[0]:.2f} ms)."  # fmt: skip

    def command(self) -> str:
        """What makes the pair that is advised: answers of the target's own first, where the candidates had them."""
        best, asked = self.best, self.settings
        name = Path(asked["data"]["source"]).stem
        row = next(row for row in self.rows if row["drafter"] == best.drafter)
        count = ["--drafter.num_speculative_tokens", str(best.count)]
        if not best.draft_vocab_size:
            target = asked["target"] if self._is_loadable() else self.model
            adapter = [] if self._is_loadable() else ["--adapter", self.adapter]
            kind = ["--drafter.architecture", row["settings"]["architecture"]]
            return _line(["semiar", "attach", target, *adapter, "--out", f"runs/{name}", *kind, *count])
        data, folder, first = asked["data"]["source"], asked["data"]["folder"], ""
        if asked["regenerate"]:
            first, data, folder = self._regenerating(name) + " && ", f"runs/{name}-own.jsonl", ""
        words = ["semiar", "train", "--model", self.model, "--data", data, "--out", f"runs/{name}", "--mode", "after"]
        words += ["--adapter", self.adapter] if self.adapter else []
        words += ["--data.folder", folder] if folder else []
        words += ["--drafter.architecture", row["settings"]["architecture"]]
        words += ["--drafter.draft_vocab_size", best.draft_vocab_size, *count]
        return first + _line(words)

    def _is_loadable(self) -> bool:
        """Whether the target as it was named is a pair or a model, and not an adapter."""
        return not self.adapter or (Path(self.adapter) / "run.yaml").is_file()

    def _regenerating(self, name: str) -> str:
        asked = self.settings
        target = asked["target"] if self._is_loadable() else self.model
        words = ["semiar", "regenerate", target, "--data", asked["data"]["source"], "--out", f"runs/{name}-own.jsonl"]
        words += [] if self._is_loadable() else ["--adapter", self.adapter]
        words += ["--data.folder", asked["data"]["folder"]] if asked["data"]["folder"] else []
        return _line([*words, "--max_new_tokens", str(2 * asked["decoding"]["max_new_tokens"])])

    def record(self) -> dict[str, Any]:
        """For ``advice.json``."""
        return {
            "verdict": self.best.verdict, "best": asdict(self.best),
            "candidates": [asdict(one) | {"verdict": one.verdict} for one in self.choices],
            "draft_vocabularies": asdict(self.heads), "lengths": [asdict(one) for one in self.lengths or ()],
            "model": self.model, "adapter": self.adapter, "settings": self.settings, "lines": self.lines(),
            "command": self.command(),
        }  # fmt: skip


def show(advice: Advice, console: Console) -> None:
    """The candidates as a table, then the words."""
    table = Table(title="candidates after a short training")
    for name in ("drafter", "draft vocabulary", "K", "tokens per pass", "draft, ms", "speed-up", "verdict"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    for one in sorted(advice.choices, key=lambda one: -one.speedup.value):
        table.add_row(
            one.drafter, one.draft_vocab_size or "-", str(one.count), f"{one.tokens_per_pass:.2f}",
            f"{one.draft_ms:.1f}", str(one.speedup), one.verdict,
        )  # fmt: skip
    console.print(table)
    for line in advice.lines():
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _size(size: str) -> str:
    return "all tokens" if size == "full" else f"{int(size):,} tokens"


def _line(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
