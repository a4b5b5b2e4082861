"""Samples of blocks: near the truth for every seed, whatever everybody shares, and bounded in memory."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from quire.insight import sample_rate
from quire.insight.hot_blocks import MOST_HOT
from quire.insight.order_sample import MOST_KEYS, MOST_USES, OrderSample
from quire.insight.traffic import Traffic
from quire.insight.what_if import WhatIf
from quire.simulate.optimum.belady import OptimumPrompt
from quire.simulate.optimum.optimum_prompts import in_blocks
from quire.trace.read.trace import read_trace

from ..effort import cases
from .chains import Walk, best_hits, traffic_of, walks

FOLDER = os.environ.get("QUIRE_TRACES")
BLOCK = 512
SHARES = (0.01, 0.03, 0.1, 0.3)


def spread(keys: np.ndarray[tuple[int], np.dtype[np.uint64]], seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The same blocks under other keys: another sample."""
    mixed = keys ^ np.uint64((0x9E3779B97F4A7C15 * (2 * seed + 1)) & ((1 << 64) - 1))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.maximum(mixed ^ (mixed >> np.uint64(31)), np.uint64(1))
    return found


@lru_cache(maxsize=1)
def prompts(path: str | Path) -> list[OptimumPrompt]:
    return list(in_blocks(read_trace(path), BLOCK))


def rates(path: str | Path, one_in: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Hit rates in percent: lru and the optimum at some sizes, and the ceiling."""
    uses = [Walk(spread(prompt.keys, seed), prompt.num_hittable) for prompt in prompts(path)]
    asked = WhatIf(traffic_of(uses, one_in=one_in), len(uses))
    blocks = sum(len(use.keys) for use in uses)
    sizes = [round(share * blocks) for share in SHARES]
    found = [*asked.lru(np.array(sizes, np.float64)), *(best_hits(asked, size) for size in sizes), asked.ceiling()]
    return np.array(found) / blocks * 100


def traces() -> list[object]:
    marks = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="QUIRE_TRACES names no folder")]
    names = ("mooncake_conversation_trace.jsonl", "mooncake_synthetic_trace.jsonl")
    return ["sample", *(pytest.param(f"{FOLDER}/{name}", marks=marks) for name in names)]


@pytest.mark.parametrize("path", traces())
def test_a_tenth_of_the_blocks_is_within_two_points(path: str) -> None:
    exact = rates(path, 1, 0)
    assert rates(path, 1, 9) == pytest.approx(exact), "keys decide nothing when all are tracked"
    differences = np.array([rates(path, 10, seed) - exact for seed in range(3 if path == "sample" else 6)])
    assert np.abs(differences).max() < 2.0
    assert np.abs(differences.mean(axis=0)).max() < 1.5
    assert np.abs(differences).max() > 0, "it is a sample"


def hot_start(count: int, one_in: int, seed: int) -> WhatIf:
    """Short prompts that share their first three blocks: a sample has these, or it has not."""
    rng = np.random.default_rng(seed)
    head = spread(np.arange(1, 4, dtype=np.uint64), seed)
    tails = [spread(rng.integers(1, 1 << 62, 2, dtype=np.uint64), seed) for _ in range(count)]
    uses = [Walk(np.concatenate([head, tail]), 4) for tail in tails]
    return WhatIf(traffic_of(uses, one_in=one_in), count)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(cases(3, 8)))
def test_what_everybody_shares_is_not_left_to_chance(seed: int) -> None:
    asked = hot_start(2000, 10, seed)
    assert asked.lru(np.array([100.0]))[0] / (3 * 2000) == pytest.approx(1, abs=0.01)
    assert asked.ceiling() / (3 * 2000) == pytest.approx(1, abs=0.01)


def test_memory_is_bounded_by_a_sample() -> None:
    uses = walks(1, 1500)
    traffic = traffic_of(uses, most_blocks=800)
    assert traffic.one_in > 1 and len(traffic.table) <= 800
    exact = traffic_of(uses)
    assert exact.one_in == 1 and traffic.num_distinct == pytest.approx(exact.num_distinct, rel=0.2)
    sizes = np.array([100.0, 1000.0, 10000.0])
    truth, found = (WhatIf(one, 1500).lru(sizes) for one in (exact, traffic))
    asked = sum(len(use.keys) for use in uses if use.hittable)
    assert np.abs(found - truth).max() / asked < 0.05


def test_what_is_old_goes_before_blocks_are_sampled() -> None:
    uses = walks(2, 1500)
    traffic = traffic_of(uses, window=100, most_blocks=1500)
    assert traffic.one_in == 1 and len(traffic.table) <= 1500
    since = 1500 - 100
    exact = WhatIf(traffic_of(uses, window=100), 1499)
    assert WhatIf(traffic, 1499).first == exact.first - (1500 - len(traffic.uses)) and exact.first == since - 1


def test_a_hot_block_that_cools_makes_room() -> None:
    rng = np.random.default_rng(0)
    phases = [[spread(rng.integers(1, 1 << 62, 16, dtype=np.uint64), 0) for _ in range(45)] for _ in range(4)]
    uses = [Walk(keys, 16) for phase in phases for _ in range(30) for keys in phase]
    traffic = traffic_of(uses, one_in=16)
    assert MOST_HOT / 2 < int(traffic.table.hot.sum()) <= 2 * MOST_HOT
    last = np.concatenate(phases[-1])
    assert np.isin(last, traffic.table.keys[traffic.table.hot]).mean() > 0.9, "what is asked now is hot"


def test_sums_are_those_of_the_table_whatever_becomes_hot() -> None:
    uses = [Walk(spread(use.keys, 1), use.hittable) for use in walks(4, 400, branches=1)]
    traffic = traffic_of(uses, one_in=4)
    places = range(0, 400, 7)
    found = [traffic._sums.after(place) for place in places]
    assert traffic.table.hot.any() and found[0] > 0
    traffic._recount()
    assert [traffic._sums.after(place) for place in places] == found


def test_everything_fits_into_64_mb() -> None:
    """The arrays at their largest: a million blocks, as many uses and pieces as there may be."""
    traffic = Traffic(3, 1e9)
    traffic.table.reserve(1 << 20)
    assert traffic.table.num_bytes <= 32 << 20
    use, piece = (columns._rows.dtype.itemsize for columns in (traffic.uses, traffic.pieces))
    log = (1 << 18) * (use + piece + 16)  # and the sums
    sample = OrderSample()
    for number in range(MOST_USES + 5):
        sample.add(np.random.default_rng(number).integers(1, 1 << 63, 400, dtype=np.uint64), number, 400)
    assert sample._num_keys <= MOST_KEYS and len(sample._uses) == MOST_USES
    assert sample._num_keys == sum(len(use.keys) for use in sample._uses)
    waiting = 2 * (4 << 20)
    assert traffic.table.num_bytes + log + sample.num_bytes + waiting < 64 << 20
    grown = traffic.table.num_bytes // 2  # by one use, the largest there is
    assert sample_rate.MOST_BYTES + grown + sample.num_bytes + waiting < 64 << 20, "two samples beside each other"
