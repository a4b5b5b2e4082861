"""Which blocks a writer takes, beside a few lines that say it: ranges of every kind, left out and before their turn."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Request, TierConfig, check
from quire.core.outside.writer import _without, to_range
from quire.core.store import StoreName

SIZE, FAR = 4, [10**9, -(10**9), 1 << 31, -(1 << 31) - 1, 1 << 64, 4095, 4096, 4097]


def some_blocks(rng: random.Random, *, far: bool) -> Any:
    """Ranges of any step, empty ones, sets and lists; some with numbers that no text has."""

    def number() -> int:
        return rng.choice(FAR) if far and rng.random() < 0.3 else rng.randrange(-4, 30)

    kind = rng.randrange(6)
    if kind < 3:
        return range(number(), number())
    if kind == 3:
        return range(rng.randrange(-4, 30), rng.randrange(-4, 30), rng.choice([-3, -1, 2, 3]))
    listed = [rng.randrange(-4 if far else 0, 30) for _ in range(rng.randrange(6))]
    return set(listed) if kind == 4 else listed


def test_blocks_without_some_and_blocks_as_a_run() -> None:
    rng = random.Random(5)
    for _ in range(4000):
        first = rng.randrange(10)
        blocks = np.array(sorted(rng.sample(range(30), rng.randrange(20))), np.int32)
        if rng.random() < 0.5:
            blocks = np.arange(first, first + rng.randrange(20), dtype=np.int32)
        out: Collection[int] = some_blocks(rng, far=True)
        assert _without(blocks, out).tolist() == [block for block in blocks.tolist() if block not in out]
        listed = rng.sample(range(first, first + 5), rng.randrange(1, 6))
        assert sorted(to_range(listed)) == sorted(listed)


class Expected:
    """A writer of so many groups, by the words of its methods; there is always room."""

    def __init__(self, groups: int) -> None:
        self.taken = 0
        self.early: list[set[int]] = [set() for _ in range(groups)]
        self.waiting: list[set[int]] = [set() for _ in range(groups)]

    def extend(self, stop: int, skip: dict[int, Any], also: dict[int, Any]) -> list[list[int]]:
        """Blocks that come next, but for some, and some behind them; none of them twice."""
        stop, fresh = max(stop, self.taken), []
        for group, had in enumerate(self.early):
            next_ones = set(range(self.taken, stop)) - had
            wanted = {block for block in next_ones if block not in skip.get(group, ())}
            wanted |= {block for block in also.get(group, ()) if block >= stop} - had
            had.update(also.get(group, ()))
            self.waiting[group] |= wanted
            fresh.append(sorted(wanted))
        self.taken = stop
        return fresh

    def written(self, stop: int) -> None:
        """They wait no longer, whether they are findable or not."""
        for waiting in self.waiting:
            waiting.difference_update(range(stop))


@pytest.mark.parametrize("seed", range(40))
def test_a_writer_takes_what_its_words_say(store: StoreName, seed: int) -> None:
    rng = random.Random(seed)
    groups = rng.randrange(1, 4)
    layers = tuple(LayerGroup(f"g{nth}", page_bytes=8) for nth in range(groups))
    tiers = (TierConfig("device", 0), TierConfig("host", 64))
    cache = Cache(CacheConfig(tiers, SIZE, layers, max_length=400), store=store)
    tokens, length, expected = np.arange(100, dtype=np.int32), rng.randrange(1, 50), Expected(groups)
    with cache.writer(Request("a", tokens[:length].copy()), tier=1, end=0) as writer:  # type: ignore[union-attr]
        for _ in range(12):
            more = tokens[length : length + rng.randrange(30)].copy() if rng.random() < 0.5 else None
            longer = length + (0 if more is None else len(more))
            skip, also = (
                {group: some_blocks(rng, far=far) for group in range(groups) if rng.random() < 0.4}
                for far in (True, False)
            )
            if any(len(one) and not 0 <= min(one) <= max(one) < longer // SIZE for one in also.values()):
                with pytest.raises(InputError, match="whole blocks"):
                    writer.extend(more, skip=skip, also=also)
                also, more, longer = {}, None, length
            end = rng.randrange(longer + 1)
            assert writer.extend(more, end=end, skip=skip, also=also) is None
            fresh = expected.extend(end // SIZE, skip, also)
            assert [writer.taken(group)[0] for group in range(groups)] == fresh
            length = longer
            if rng.random() < 0.4:
                upto = rng.randrange(length + 1)
                writer.written(upto, skip={group: some_blocks(rng, far=True) for group in range(groups)})
                expected.written(upto // SIZE)
            assert [set(writer.blocks(group).tolist()) for group in range(groups)] == expected.waiting
            assert all((np.diff(writer.blocks(group)) > 0).all() for group in range(groups))
        check(cache)
    assert all(cache.usage(1, group).held == 0 for group in range(groups))
