"""The page and the table, from synthetic traces."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from kit.models import settings_of, target_of
from rich.console import Console
from synthetic import case_h34, generation, header, long_trace, step

from semiar.drafters import build_drafter
from semiar.measuring.metrics import Trace, summarise
from semiar.measuring.report import drafter_name, terminal_table, write_report


class Page(HTMLParser):
    """Collects tags, addresses and marked tokens; complains about tags that are not closed in order."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr", "use", "path", "rect", "circle"})

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.marks: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action") and value]
        if tag == "mark":
            self.marks.append(dict(attrs))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def page(trace, path):
    write_report(trace, summarise(trace), path)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    trace = long_trace()
    return trace, summarise(trace), page(trace, tmp_path_factory.mktemp("report") / "report.html")


def test_a_profile_is_drawn_and_told(tmp_path):
    trace = long_trace(prompts=3, rounds=1)
    for run in trace.generations:
        run["detokenise_seconds"] = 0.002
        for one in run["steps"]:
            one["parts_ms"] = {"draft": one["draft_ms"], "target": 18.0, "law": 1.0, "accept": 0.2, "cache": 0.1}
    text = page(trace, tmp_path / "report.html")
    assert 'aria-label="profile"' in text and "one speculative pass, split" in text
    assert 'aria-label="profile"' not in page(long_trace(prompts=3, rounds=1), tmp_path / "plain.html")


def test_page_says_the_numbers(long):
    trace, metrics, text = long
    for value in (metrics.speed.speedup, metrics.speed.speedup_without_prefill, metrics.prediction.speedup):
        assert f"{value:.2f}×" in text
    assert f"{metrics.speed.speedup_interval[0]:.2f}–{metrics.speed.speedup_interval[1]:.2f}" in text
    assert f"{metrics.speed.tokens_per_second:.1f}" in text
    assert f"{metrics.acceptance.mean_acceptance_length:.2f}" in text
    assert "24 of 24" in text and "exact_match" in text and "0.61" in text
    for key in ("model", "torch", "transformers", "dtype", "device", "date"):
        assert trace.header[key] in text


def test_page_is_self_contained_and_well_formed(long):
    text = long[2]
    found = Page(text)
    assert found.open == []
    assert found.tags.count("svg") == 5
    assert all(address.startswith("#") for address in found.addresses)
    assert "script" not in found.tags and "link" not in found.tags
    assert not re.search(r"https?://|url\((?!#)|@import", text)


def test_texts_are_escaped_and_tokens_marked(long):
    trace, _, text = long
    assert "<script>" not in text and "&lt;script&gt;alert(1)" in text
    marks = [mark for mark in Page(text).marks if "title" in mark]
    shown = [fast for _, fast in trace.pairs()][:5]
    assert len(marks) == sum(len(run["token_ids"]) for run in shown)
    assert [mark["class"] for mark in marks[:24]] == shown[0]["origins"]
    assert marks[0]["title"].startswith("pass 1: ")


def test_hostile_header_is_escaped(tmp_path):
    trace = case_h34()
    hostile = Trace({**trace.header, "model": "<b>&\"'", "device": "<i>"}, {}, trace.generations)
    text = page(hostile, tmp_path / "r.html")
    assert '<b>&"' not in text and "<i>" not in text and "&lt;b&gt;&amp;" in text


def test_lossy_differences_are_told(tmp_path):
    runs = [
        generation("plain", 0, [1, 2], [step(0, 0, 1)] * 2, 1.0),
        generation("speculative", 0, [1, 3], [step(1, 1, 2)], 0.5),
    ]
    trace = Trace(header(1, lossless=False, temperature=0.7), {}, runs)
    text = page(trace, tmp_path / "r.html")
    assert "Lossy." in text and "differs from plain decoding" in text and "0 of 1" in text
    assert "temperature 0.7" in text
    assert "Lossy." not in page(case_h34(), tmp_path / "r.html")


def test_plain_only_and_shortest_traces(tmp_path):
    runs = [generation(mode, 0, [1], [step(0, 0, 1)], 1.0) for mode in ("plain", "speculative")]
    for trace in (Trace(header(0), {}, runs), Trace({"num_speculative_tokens": 3, "model": "m", "task": ""}, {}, runs)):
        text = page(trace, tmp_path / "r.html")
        assert "1.00×" in text and Page(text).open == []


def test_terminal_table(long):
    _, metrics, _ = long
    console = Console(width=110, record=True, quiet=True)
    console.print(terminal_table(metrics))
    with console.capture() as seen:
        console.quiet = False
        console.print(terminal_table(metrics))
    text = seen.get()
    assert f"{metrics.speed.speedup:.2f}×" in text and "24 of 24" in text and "0.02 / 0.61 / 0.61" in text


def test_a_drafter_s_name_holds_only_what_it_uses() -> None:
    target = target_of("llama")
    names = [build_drafter(settings_of(name), target, None).label for name in ("semi", "lookup", "hybrid")]
    assert names == ["semi (context, concat)", "lookup", "hybrid on semi (context, concat)"]
    assert drafter_name({"drafter": {"architecture": "semi"}, "drafter_name": names[0]}) == names[0]
    assert drafter_name({"drafter": {"architecture": "lookup"}}) == "lookup"  # of an earlier version's trace
