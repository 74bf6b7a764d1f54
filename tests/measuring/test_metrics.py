"""Numbers from traces, against counts by hand."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from synthetic import case_h34, generation, header, long_trace, step

from semiar.errors import DataError, SourceNotFound
from semiar.measuring.metrics import Trace, chances, read_trace, summarise


def test_h34():
    found = summarise(case_h34())
    assert found.acceptance.tokens == 12 == 9 + 3  # accepted + passes: drafting starts with the first token
    assert found.acceptance.target_passes == 3
    assert found.acceptance.acceptance_rate == 9 / 10
    assert found.acceptance.accepted_drafts_mean == 3
    assert found.acceptance.mean_acceptance_length == 4 == found.acceptance.tokens_per_pass
    assert found.acceptance.per_position_acceptance_rate == [1, 1, 1, 0.5]
    assert found.acceptance.per_position_counts == [3, 3, 2, 2]
    assert found.acceptance.conditional_acceptance_rate == [1, 1, 1, 0.5]
    assert found.acceptance.accepted_histogram == [0, 0, 0, 1, 1]  # the short last pass is not comparable
    assert found.speed.tokens_per_second == pytest.approx(12 / 0.079)
    assert found.speed.speedup == pytest.approx(0.262 / 0.079)
    assert found.speed.speedup_without_prefill == pytest.approx(0.252 / 0.069)
    assert found.speed.speedup_interval is None
    assert (found.texts.compared, found.texts.equal) == (1, 1)
    assert (found.time.draft_ms, found.time.verify_ms, found.time.overhead_ms) == (2, 20, 1)
    assert found.time.plain_step_ms == 21


def test_a_cut_pass_does_not_bias_the_rates():
    """Stop token as second drafted token: positions 3 and 4 say nothing, although the verifier looked at them."""
    for accepted in (2, 3, 4):
        steps = [step(4, 4, 5), step(4, accepted, 2)]
        runs = [
            generation("plain", 0, [1] * 7, [step(0, 0, 1)] * 7, 1.0),
            generation("speculative", 0, [1] * 7, steps, 0.5),
        ]
        found = summarise(Trace(header(4), {}, runs)).acceptance
        assert found.acceptance_rate == 1
        assert found.per_position_counts == found.conditional_counts == [2, 2, 1, 1]
        assert found.accepted_drafts_mean == 3 and found.mean_acceptance_length == 4
        assert found.tokens_per_pass == 3.5  # the stop cost the second pass its bonus token
        assert found.accepted_histogram == [0, 0, 0, 0, 1]


def test_a_rejection_closes_later_positions():
    steps = [step(3, 1, 2), step(3, 0, 1), step(3, 3, 4)]
    runs = [
        generation("plain", 0, [1] * 7, [step(0, 0, 1)] * 7, 1.0),
        generation("speculative", 0, [1] * 7, steps, 0.5),
    ]
    found = summarise(Trace(header(3), {}, runs)).acceptance
    assert found.per_position_acceptance_rate == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert found.conditional_acceptance_rate == pytest.approx([2 / 3, 1 / 2, 1])
    assert found.conditional_counts == [3, 2, 1]


def test_drafting_nothing_in_mid_text_is_as_good_as_being_refused():
    """A lookup that is right whenever it finds something, in every second pass and two tokens deep."""
    steps = [step(2, 2, 3), step(0, 0, 1), step(2, 2, 3), step(0, 0, 1), step(0, 0, 1)]
    runs = [generation(mode, 0, [1] * 9, steps, 1.0) for mode in ("plain", "speculative")]
    assert summarise(Trace(header(3), {}, runs)).acceptance.conditional_acceptance_rate == [1, 1, None]
    assert chances(runs[1:], 3) == [0.5, 1, 0]
    ends = [generation("speculative", 0, [1] * 4, [step(3, 1, 2), step(1, 1, 2)], 1.0)]  # the last one had no more room
    assert chances(ends, 3) == [1, 0, 0]


def test_speedup_is_a_ratio_of_totals_and_pairs_are_kept():
    runs = []
    for prompt, (slow, quick, tokens) in enumerate([(1.0, 0.5, 10), (9.0, 3.0, 90)]):
        runs.append(generation("plain", prompt, [1] * tokens, [step(0, 0, 1)] * tokens, slow))
        runs.append(generation("speculative", prompt, [2] * tokens, [step(0, 0, 1)] * tokens, quick))
    runs.append(generation("plain", 2, [1] * 5, [step(0, 0, 1)] * 5, 100.0))  # broken off: no partner, does not count
    found = summarise(Trace(header(0), {}, runs))
    assert found.prompts == 2
    assert found.speed.speedup == pytest.approx(10 / 3.5)
    assert [row["speedup"] for row in found.speed.by_prompt] == pytest.approx([2, 3])
    low, high = found.speed.speedup_interval
    assert low == pytest.approx(2) and high == pytest.approx(3)
    assert found.texts.equal == 0
    assert found.acceptance.acceptance_rate is None and found.acceptance.conditional_acceptance_rate == []


def test_prediction_matches_a_trace_made_from_its_own_costs():
    found = summarise(long_trace(prompts=40))
    low, high = found.speed.speedup_interval
    assert low < found.speed.speedup < high
    assert found.prediction.by_count[0] == 1
    assert found.prediction.speedup == found.prediction.by_count[5]
    assert found.prediction.speedup == pytest.approx(found.speed.speedup_without_prefill, rel=0.12)
    assert found.prediction.best_num_speculative_tokens == max(range(6), key=found.prediction.by_count.__getitem__)
    assert sum(found.time.per_token["speculative"].values()) == pytest.approx(1000 / found.speed.tokens_per_second)
    assert found.scores["plain"] == {"exact_match": 0.61}
    assert json.loads(json.dumps(asdict(found)))["speed"]["speedup"] == found.speed.speedup


def test_trace_file(tmp_path):
    trace, path = case_h34(), tmp_path / "trace.jsonl"
    records = [trace.header, {"kind": "machine", "verify_ms": {}}, *trace.generations]
    records.append({"kind": "score", "mode": "plain", "metrics": {"accuracy": 0.5}})
    records[2]["text"] = "a line separator \u2028 inside"
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n", encoding="utf-8")
    again = read_trace(path)
    assert again.generations == trace.generations and again.scores == {"plain": {"accuracy": 0.5}}
    assert summarise(again).acceptance == summarise(trace).acceptance


def test_bad_traces_are_explained(tmp_path):
    path = tmp_path / "trace.jsonl"
    with pytest.raises(SourceNotFound, match="no trace"):
        read_trace(path)
    path.write_text('{"kind": "header"}\n{"kind": "gener', encoding="utf-8")
    with pytest.raises(DataError, match="line 2"):
        read_trace(path)
    path.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(DataError, match="no kind"):
        read_trace(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="no header"):
        read_trace(path)
    with pytest.raises(DataError, match="both ways"):
        summarise(Trace(header(4), {}, case_h34().generations[:1]))
