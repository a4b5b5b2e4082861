"""Blocks that are cut off: nobody can resume at their ends, so in the adaptive order they go before older ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire import Cache, CacheConfig, LayerGroup, Request, Sequence, TierConfig, check
from quire.core.store import StoreName

from ...effort import cases
from ..conftest import text

FULL, NEAR = LayerGroup("full"), LayerGroup("near", window=6)  # reads two blocks before a point
WIDE = LayerGroup("wide", window=10)  # reads three


class Clocked:
    """A cache with a pool for full attention and one for each window, at times that a test names."""

    def __init__(self, store: StoreName, slots: tuple[int, ...]) -> None:
        self.now = 0.0
        groups = (FULL, NEAR, WIDE)[: len(slots)]
        config = CacheConfig(
            (TierConfig("device", slots),), 4, groups, max_sequences=8, max_length=256, eviction="adaptive",
            partial_reuse=False, resume_every=0,
        )  # fmt: skip
        self.cache = Cache(config, clock=lambda: self.now, store=store)

    def begin(self, number: int, when: float, blocks: int = 4) -> Sequence:
        """A prompt is computed."""
        self.now = when
        batch = self.cache.add_sequence_batch([Request(f"r{number}", text(number, blocks))])
        (sequence,) = batch.sequences
        while True:
            self.cache.finish(batch.plan)
            self.cache.commit(sequence)
            if sequence.computed == sequence.prompt_end:
                return sequence
            batch = self.cache.add_sequence_batch([], continuing=[sequence])

    def serve(self, number: int, when: float, blocks: int = 4) -> int:
        """From claim to release; where it began."""
        sequence = self.begin(number, when, blocks)
        self.cache.release(sequence)
        check(self.cache)
        return int(sequence.start)


def test_what_a_window_has_cut_off_goes_before_older_text(store: StoreName) -> None:
    """The second text loses its window while the first, older one, is in use: then all of the second is of no use."""
    life = Clocked(store, (14, 8))
    first = life.begin(1, 0)
    life.serve(2, 50)
    life.serve(3, 60)  # takes the last pages that the second text had in the window
    life.cache.release(first)
    life.serve(4, 70, blocks=3)  # two slots for full attention
    assert life.serve(1, 71) == 16, "the oldest text is whole"


@pytest.mark.parametrize("hit", [False, True])
def test_text_whose_window_is_whole_goes_by_age(store: StoreName, hit: bool) -> None:
    """Where nothing is cut off the oldest goes first, used again or not."""
    life = Clocked(store, (14, 20))
    life.serve(1, 0)
    life.serve(2, 50)
    if hit:
        assert life.serve(1, 55) == 16
    life.serve(3, 60)
    life.serve(4, 70, blocks=3)
    life.serve(5, 80, blocks=1)
    assert (life.serve(1, 81) == 16) == hit


def test_what_other_windows_have_of_a_lost_point_goes_before_older_text(store: StoreName) -> None:
    """The second text loses the nearer window: the wider one has no use for its pages there, and keeps the first's."""
    life = Clocked(store, (40, 8, 12))
    first = life.begin(1, 0)
    life.serve(2, 50)
    life.serve(3, 60)  # takes the last pages that the second text had in the nearer window
    life.cache.release(first)
    life.serve(4, 70, blocks=3)  # pages of the wider one
    life.serve(5, 75, blocks=1)
    assert life.serve(1, 81) == 16, "the oldest text is whole"


@pytest.mark.long
@pytest.mark.parametrize("pools", [2, 3])
def test_a_batch_that_evicts_from_several_pools_is_as_in_the_twin(pools: int) -> None:
    """Several rows get pages of all groups in one call: what one pool gives up leaves pages of others without use; they
    must not have been chosen before. Texts of many shapes, so that the batch meets them in any order."""
    pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built")
    cuts, worlds = 0, cases(12, 40) if pools == 2 else cases(6, 16)
    for seed in range(worlds):
        dice = random.Random(seed)
        slots = (dice.randint(16, 22), dice.randint(15, 18), dice.randint(16, 20))[:pools]
        lives = [Clocked("twin", slots), Clocked("compiled", slots)]
        texts = [(number, 10.0 * number + dice.random(), dice.choice((1, 1, 2, 3))) for number in range(1, 12)]
        rows = [[life.begin(number, when, blocks) for number, when, blocks in texts[-3:]] for life in lives]
        for life in lives:
            for number, when, blocks in texts[:-3]:
                life.serve(number, 100 + when, blocks)
        for step in range(3):
            tokens = np.array([dice.randrange(9) for _ in range(12)], np.int32).reshape(3, 4)
            grown = [life.cache.grow(some, tokens) is not None for life, some in zip(lives, rows, strict=True)]
            dumps = [life.cache._setup.store.dump() for life in lives]
            assert grown[0] == grown[1] and dumps[0] == dumps[1], f"seed {seed}, step {step}"
            check(lives[1].cache)
            for life, some in zip(lives, rows, strict=True):
                if grown[0]:
                    life.cache.commit(some)
        cuts += lives[1].cache.stats(1).dropped
    assert cuts > worlds, "windows were dropped"
