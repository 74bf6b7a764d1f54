"""What a model would learn from a source: samples with their loss mask, lengths, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from .batches import IGNORE, Example, Prepared, prepare
from .chat import ChatRenderer
from .samples import Records, Skipped

QUANTILES = {"shortest": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "longest": 1.0}
TARGET, PROMPT, SPECIAL = "bold green", "dim", "magenta"
MARKS = ("\u27e6", "\u27e7")  # round the targets where there is no colour


def preview(records: Records, renderer: ChatRenderer, max_length: int, console: Console, samples: int = 3) -> Prepared:
    """Print some rendered samples with targets highlighted, the lengths, and what is skipped, where and why.

    Returns what it prepared.  Raises DataError as `prepare` does.
    """
    prepared = prepare(records.records, renderer, max_length)
    for number, example in enumerate(prepared.examples[:samples], 1):
        text = mask_text(example, renderer.tokenizer, marked=console.color_system is None)
        console.print(Panel(text, title=f"sample {number}", title_align="left"))
    legend = " ".join(("learned", *MARKS)) if console.color_system is None else "learned"
    console.print(Text.assemble((legend, TARGET), "  ", ("not learned", PROMPT), "  ", ("special token", SPECIAL)))
    console.print(_lengths(prepared))
    _print_skipped([*records.skipped, *prepared.skipped], prepared, max_length, console)
    return prepared


def mask_text(example: Example, tokenizer: PreTrainedTokenizerBase, marked: bool = False) -> Text:
    """The text of an example, targets and special tokens styled; `marked` also puts targets in brackets."""
    text = Text(overflow="fold")
    was_target = False
    for target, special, ids in _runs(example, set(tokenizer.all_special_ids)):
        if marked and target != was_target:
            text.append(MARKS[0] if target else MARKS[1])
        was_target = target
        style = f"{SPECIAL} {TARGET if target else PROMPT}" if special else TARGET if target else PROMPT
        text.append(str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)), style)
    if marked and was_target:
        text.append(MARKS[1])
    return text


def _runs(example: Example, special: set[int]) -> Iterator[tuple[bool, bool, list[int]]]:
    """Neighbouring ids that look alike, so that characters of several tokens are decoded whole."""
    pairs = zip(example["input_ids"], example["labels"], strict=True)
    for (target, is_special), run in groupby(pairs, key=lambda pair: (pair[1] != IGNORE, pair[0] in special)):
        yield target, is_special, [token for token, _ in run]


def _lengths(prepared: Prepared) -> Table:
    table = Table("tokens", *QUANTILES, "total")
    totals = [len(example["input_ids"]) for example in prepared.examples]
    targets = [sum(label != IGNORE for label in example["labels"]) for example in prepared.examples]
    for name, values in (("whole sample", totals), ("learned", targets)):
        table.add_row(name, *(str(_quantile(values, share)) for share in QUANTILES.values()), str(sum(values)))
    return table


def _quantile(values: Sequence[int], share: float) -> int:
    return sorted(values)[round(share * (len(values) - 1))]


def _print_skipped(skipped: list[Skipped], prepared: Prepared, max_length: int, console: Console) -> None:
    console.print(
        f"{len(prepared.examples)} samples, {prepared.truncated} of them cut at {max_length} tokens; "
        f"{len(skipped)} skipped",
        highlight=False,
    )
    for reason, count in Counter(item.reason for item in skipped).most_common():
        places = [item.place for item in skipped if item.reason == reason]
        shown = ", ".join(places[:5]) + (f" and {count - 5} more" if count > 5 else "")
        console.print(Text(f"  {count} skipped: {reason} ({shown})"))
