"""Traffic: the places of pieces are those of a list in order of last use, and the optimum is Belady's."""

from __future__ import annotations

import numpy as np
import pytest

from quire.insight.block_table import BlockTable
from quire.insight.running_sums import RunningSums
from quire.insight.traffic import AskedPrompt, Traffic
from quire.insight.what_if import WhatIf
from quire.simulate.optimum.belady import OptimumPrompt, Reuse

from .chains import FAR, Walk, best_hits, lru_hits, traffic_of, walks

SIZES = (0, 1, 2, 5, 13, 40, 100, 1000)


@pytest.mark.parametrize("seed", range(12))
def test_lru_is_that_of_a_list(seed: int) -> None:
    uses = walks(seed, 150)
    asked = WhatIf(traffic_of(uses), len(uses))
    found = asked.lru(np.array(SIZES, np.float64))
    assert found.tolist() == pytest.approx([lru_hits(uses, size) for size in SIZES])
    assert found[-1] == pytest.approx(asked.ceiling()) and found[0] == 0


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_belady_s(seed: int) -> None:
    uses = [use for use in walks(seed, 120) if use.hittable]
    asked = WhatIf(traffic_of(uses), len(uses))
    reuse = Reuse([OptimumPrompt(use.keys, len(use.keys), use.hittable) for use in uses], 1)
    for size in SIZES:
        assert best_hits(asked, size) == reuse.optimum(size).hit_blocks
        assert best_hits(asked, size) >= lru_hits(uses, size)


def test_only_the_window_counts_and_what_came_before_is_remembered() -> None:
    uses = walks(3, 200)
    traffic = traffic_of(uses, window=50)
    asked = WhatIf(traffic, 199)
    assert asked.num_requests == sum(use.hittable > 0 for use in uses[149:])
    assert asked.lru(np.array([13.0, 100.0])).tolist() == pytest.approx(
        [lru_hits(uses, size, since=149) for size in (13, 100)]
    )
    asked = WhatIf(traffic, 500)
    assert (asked.num_requests, asked.prompt_tokens, asked.ceiling()) == (0, 0, 0.0)


@pytest.mark.parametrize("options", [{"most_uses": 64}, {"most_pieces": 150}])
def test_what_is_forgotten_is_the_oldest(options: dict[str, int]) -> None:
    uses = walks(5, 400)
    traffic = traffic_of(uses, **options)
    assert len(traffic.uses) <= options.get("most_uses", 400) and len(traffic.pieces) <= options.get(
        "most_pieces", 9999
    )
    kept = len(traffic.uses)
    assert 30 <= kept < 400 and traffic.uses["time"][0] == 400 - kept
    asked = WhatIf(traffic, 400)
    size = 20.0  # few blocks: nothing that a cache of this size has is forgotten
    assert asked.lru(np.array([size]))[0] == pytest.approx(lru_hits(uses, 20, since=400 - kept))
    assert best_hits(asked, 20) >= asked.lru(np.array([size]))[0]


def test_the_optimum_has_what_was_left_before_it_remembers() -> None:
    keys = np.arange(2, 12, dtype=np.uint64) << np.uint64(40)
    traffic = traffic_of([Walk(keys, 10)] * 40, most_uses=16)
    asked = WhatIf(traffic, 40)
    assert best_hits(asked, 10) == 10 * asked.num_requests
    assert best_hits(asked, 4) == 4 * asked.num_requests


def test_an_end_hits_nothing_and_leaves_its_blocks() -> None:
    keys = np.arange(1, 9, dtype=np.uint64) << np.uint64(40)
    traffic = Traffic(2, FAR)
    traffic.use(keys[:4], 0.0, AskedPrompt(4, 3, (2, 1)))
    traffic.use(keys[:6], 1.0, None)
    traffic.use(keys, 2.0, AskedPrompt(8, 7, (4, 0)))
    asked = WhatIf(traffic, 2.0)
    assert (asked.num_requests, asked.prompt_tokens, asked.hit_tokens) == (2, 12, (6, 1))
    assert asked.lru(np.array([3.0, 6.0, 99.0])).tolist() == [3, 6, 6]
    assert [best_hits(asked, size) for size in (3, 6, 99)] == [3, 6, 6]
    assert asked.num_distinct == 8


@pytest.mark.parametrize("seed", range(4))
def test_a_table_finds_what_was_put_in(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.permutation(np.unique(rng.integers(1, 1 << 62, 5000, dtype=np.uint64)))
    keys[:2000] &= np.uint64(0xFFFFFFFFFFFFF00F)  # many want the same few slots
    keys = keys[np.sort(np.unique(keys, return_index=True)[1])]
    table = BlockTable()
    for number, part in enumerate(np.array_split(keys, 37)):
        table.reserve(len(part))
        table.insert(part, number)
    assert len(table) == len(keys) and 2 * len(table) <= len(table.keys)
    assert np.array_equal(table.keys[table.find(keys)], keys)
    owners = np.concatenate([np.full(len(part), nth) for nth, part in enumerate(np.array_split(keys, 37))])
    assert np.array_equal(table.last[table.find(keys)], owners)
    strange = keys[:1] + np.uint64(1)
    assert table.num_leading(keys) == len(keys) and table.num_leading(strange) == 0
    assert table.num_leading(np.concatenate([keys[:70], strange])) == 70
    table.keep(table.last >= 30)
    assert len(table) == (owners >= 30).sum() and table.num_leading(keys[owners < 30][:1]) == 0
    assert np.array_equal(table.last[table.find(keys[owners >= 30])], owners[owners >= 30])


def test_sums_behind_a_place() -> None:
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 50, 100)
    sums = RunningSums(numbers, 120)
    assert len(sums) == 128
    for place in rng.integers(0, 128, 200).tolist():
        numbers = np.concatenate([numbers, np.zeros(128 - len(numbers), np.int64)])
        numbers[place] += place - 60
        sums.add(place, place - 60)
        assert sums.total == numbers.sum()
        assert [sums.after(at) for at in (0, place, 99, 127)] == [numbers[at + 1 :].sum() for at in (0, place, 99, 127)]
