"""The cache against the simplest model of it: every row is a list, keeping is picking from what was appended."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.models import target_of

from semiar.targets import Cache
from semiar.targets.cache import survivors, take_rows

Rows = list[list[float]]


def write(cache: Cache, count: int, stamp: int) -> list[list[float]]:
    """Append `count` slots to every row, as a pass does; the written values, all different."""
    batch = len(cache.lengths)
    values = stamp + torch.arange(batch * count, dtype=torch.float64).view(batch, 1, count, 1)
    slots = cache.open(count)
    assert slots.tolist() == [list(range(length, length + count)) for length in cache.lengths.tolist()]
    for index, buffer in enumerate(cache.buffers):
        keys, states = buffer.update(values + 0.25 * index, -values - 0.25 * index)
        assert keys.shape[2] == states.shape[2] == cache.width + count
    return values[:, 0, :, 0].tolist()


def check(cache: Cache, rows: Rows) -> None:
    assert cache.lengths.tolist() == [len(row) for row in rows]
    assert cache.width == max((len(row) for row in rows), default=0)
    for index, buffer in enumerate(cache.buffers):
        for position, row in enumerate(rows):
            if row:
                wanted = torch.tensor(row, dtype=torch.float64)[None, :, None] + 0.25 * index
                assert torch.equal(buffer.keys[position, :, : len(row)], wanted)
                assert torch.equal(buffer.values[position, :, : len(row)], -wanted)


def keep(cache: Cache, paths: list[list[int]]) -> None:
    width = max(map(len, paths))
    cache.keep(torch.tensor([p + [-1] * (width - len(p)) for p in paths], dtype=torch.long).view(len(paths), width))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_equals_lists(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 3))
    cache = Cache(2, batch, capacity=data.draw(st.integers(1, 6)), device=torch.device("cpu"))
    rows: Rows = [[] for _ in range(batch)]
    for step in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, 5))
        new = write(cache, count, 1000 * (step + 1))
        slots = st.lists(st.integers(0, count - 1), unique=True).map(sorted)
        paths = [data.draw(slots) for _ in rows]
        keep(cache, paths)
        for row, values, path in zip(rows, new, paths, strict=True):
            row += [values[slot] for slot in path]
        if len(rows) > 1 and data.draw(st.booleans()):
            left = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=3))
            cache.select(torch.tensor(left))
            rows = [list(rows[index]) for index in left]
        check(cache, rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12))
def test_join_appends_rows_whatever_the_sizes(mine: int, theirs: int, first: int, second: int) -> None:
    caches, rows = [], []
    for stamp, (count, capacity) in enumerate(((mine, first), (theirs, second))):
        cache = Cache(2, 2, capacity, torch.device("cpu"))
        new = write(cache, count, 100 * stamp)
        keep(cache, [list(range(count)), list(range(count - 1))])
        rows += [new[0], new[1][:-1]]
        caches.append(cache)
    caches[0].join(caches[1])
    check(caches[0], rows)
    new = write(caches[0], 3, 900)
    keep(caches[0], [[0, 2], [1], [], [0, 1, 2]])
    check(
        caches[0], [row + [n[i] for i in p] for row, n, p in zip(rows, new, [[0, 2], [1], [], [0, 1, 2]], strict=True)]
    )


def test_join_with_rows_that_have_not_run_yet() -> None:
    cache, empty = (Cache(1, 1, 4, torch.device("cpu")) for _ in range(2))
    new = write(cache, 2, 0)
    keep(cache, [[0, 1]])
    cache.join(empty)
    check(cache, [new[0], []])
    fresh = Cache(1, 1, 4, torch.device("cpu"))
    fresh.join(cache)
    check(fresh, [[], new[0], []])


def test_a_chain_of_one_row_moves_nothing() -> None:
    cache = Cache(1, 1, 8, torch.device("cpu"))
    write(cache, 3, 0)
    before = cache.buffers[0].keys
    keep(cache, [[0, 1]])
    assert cache.buffers[0].keys is before and cache.width == 2


def test_growth_keeps_what_was_there_and_costs_memory_once() -> None:
    cache = Cache(1, 1, 2, torch.device("cpu"))
    kept: list[float] = []
    for step in range(5):
        kept += write(cache, 1, 10 * step)[0]
        keep(cache, [[0]])
    check(cache, [kept])
    assert cache.bytes() == 2 * cache.capacity * 8 and cache.capacity > 5


def test_bytes_of_a_target() -> None:
    target = target_of("llama", torch.float32)
    cache = target.start(2, 10)
    assert cache.bytes() == 0
    with torch.inference_mode():
        target(torch.zeros(2, 3, dtype=torch.long), cache)
    assert cache.bytes() == 3 * 2 * (2 * 2 * 10 * 8) * 4  # layers, keys and values, (rows, heads, slots, size), float32


def test_no_rows_left() -> None:
    cache = Cache(1, 2, 4, torch.device("cpu"))
    write(cache, 1, 0)
    keep(cache, [[0], [0]])
    cache.select(torch.tensor([], dtype=torch.long))
    assert cache.width == 0 and len(cache.lengths) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_survivors_fill_the_gaps_and_stay_where_they_are(alive: list[bool]) -> None:
    rows = survivors(torch.tensor(alive))
    left = [index for index, one in enumerate(alive) if one]
    assert sorted(rows.tolist()) == left
    assert all(row == place for place, row in enumerate(rows.tolist()) if row < len(left))
    states = torch.arange(2.0 * len(alive)).view(-1, 2)
    wanted, before = states[rows].clone(), states.data_ptr()
    found = take_rows(states, rows)
    assert torch.equal(found, wanted) and (not left or found.data_ptr() == before)


@pytest.mark.parametrize("rows", [[0, 0], [1, 0], [2, 1, 0], [1, 2]])
def test_any_other_choice_of_rows_is_copied(rows: list[int]) -> None:
    states = torch.arange(6.0).view(3, 2)
    kept = states.clone()
    assert torch.equal(take_rows(states, torch.tensor(rows)), kept[rows]) and torch.equal(states, kept)


@pytest.mark.parametrize("capacity", [1, 300])
def test_positions_do_not_depend_on_capacity(capacity: int) -> None:
    target = target_of("mistral")
    ids = torch.arange(20)[None] % target.vocab_size
    cache = target.start(1, capacity)
    with torch.inference_mode():
        plain = target(ids).logits
        target.prefill(ids[:, :-1], torch.tensor([19]), cache, (-1,), chunk=6)
        assert torch.allclose(target(ids[:, -1:], cache).logits, plain[:, -1:], atol=1e-5)
