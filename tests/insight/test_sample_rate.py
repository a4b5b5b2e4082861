"""A sample grows again when fewer blocks are asked for, and then everything is as exact as if it had always been so."""

from __future__ import annotations

import numpy as np
import pytest

from quire.insight import sample_rate
from quire.insight.block_table import Keys
from quire.insight.sample_rate import RatedTraffic
from quire.insight.traffic import AskedPrompt, Traffic
from quire.insight.what_if import WhatIf

WINDOW = 100.0
LAST = (1 << 64) - 1
SIZES = np.array([16.0, 64.0, 256.0])


def prompts(rng: np.random.Generator, count: int, talks: int) -> list[Keys]:
    """Talks in turn, each of 8 blocks that are asked for again, and 8 new ones."""
    heads = rng.integers(1, LAST, (talks, 8), dtype=np.uint64)
    return [np.concatenate([heads[nth % talks], rng.integers(1, LAST, 8, dtype=np.uint64)]) for nth in range(count)]


def feed(traffic: RatedTraffic | Traffic, uses: list[Keys], start: float, every: float = 1.0) -> float:
    for nth, keys in enumerate(uses):
        traffic.use(keys, start + nth * every, AskedPrompt(len(keys), len(keys), (0,)))
    return start + len(uses) * every


def test_a_sample_grows_again_and_is_exact_then() -> None:
    rng = np.random.default_rng(0)
    busy, calm = prompts(rng, 1200, 40), prompts(rng, 600, 5)
    traffic = RatedTraffic(1, WINDOW, most_blocks=4000)
    now = feed(traffic, busy, 0.0, every=0.1)
    assert traffic.current.one_in == 4, "16 blocks, 10 times a second: 8,000 new ones in a window, and 320 talks"
    end = feed(traffic, calm, now)
    assert traffic.current.one_in == 1, "now there are 8 a second"
    always = Traffic(1, WINDOW)
    assert feed(always, [*busy, *calm][-350:], end - 350) == end
    found, truth = WhatIf(traffic.current, end), WhatIf(always, end)
    assert found.num_requests == truth.num_requests == 100
    assert found.lru(SIZES) == pytest.approx(truth.lru(SIZES)) and found.ceiling() == truth.ceiling() > 700


def test_what_is_told_meanwhile_is_that_of_the_old_sample() -> None:
    rng = np.random.default_rng(1)
    traffic = RatedTraffic(1, WINDOW, most_blocks=4000)
    now = feed(traffic, prompts(rng, 1200, 40), 0.0, every=0.1)
    now = feed(traffic, prompts(rng, 180, 5), now)
    assert traffic.current.one_in == 4 and traffic._next is not None and traffic._next.one_in < 4
    assert traffic.num_bytes == traffic.current.num_bytes + traffic._next.num_bytes
    asked = WhatIf(traffic.current, now)
    assert asked.num_requests == 100, "the whole window, and not what the second one has seen"


def test_a_second_one_goes_when_traffic_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    traffic = RatedTraffic(1, WINDOW, most_blocks=4000)
    now = feed(traffic, prompts(rng, 1200, 40), 0.0, every=0.1)
    now = feed(traffic, prompts(rng, 180, 5), now)
    second = traffic._next
    assert second is not None
    now = feed(traffic, prompts(rng, 1500, 40), now, every=0.1)
    assert traffic._next is None and traffic.current is not second and traffic.current.one_in >= 4
    now = feed(traffic, prompts(rng, 180, 5), now)
    assert traffic._next is not None
    monkeypatch.setattr(sample_rate, "MOST_BYTES", 0)
    feed(traffic, prompts(rng, 400, 5), now)
    assert traffic._next is None and traffic.current.one_in >= 4, "there is no room for two"


def test_a_sample_that_was_asked_for_does_not_grow_beyond_it() -> None:
    rng = np.random.default_rng(3)
    traffic = RatedTraffic(1, WINDOW, one_in=2, most_blocks=4000)
    now = feed(traffic, prompts(rng, 3000, 40), 0.0, every=0.05)
    assert traffic.current.one_in > 2
    feed(traffic, prompts(rng, 600, 5), now)
    assert traffic.current.one_in == 2
