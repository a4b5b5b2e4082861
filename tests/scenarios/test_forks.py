"""Beams and forks with every kind of group: what is shared, what each has of its own. Rows `fork`."""

from __future__ import annotations

import numpy as np
import pytest

from quire import Cache, Encoder, LayerGroup, Request, Sequence, StateError, check
from quire.core.records.request import Int32
from quire.core.store import StoreName

from .conftest import admit, build, compute, finish, fork, release, tokens, try_admit
from .groups.test_windows import prefill

FULL, NEAR = LayerGroup("full"), LayerGroup("near", window=8)
SINK, STATE = LayerGroup("sink", window=8, sinks=4), LayerGroup("state", snapshot_every=16)
CROSS = LayerGroup("cross", cross=True)
KINDS = (FULL, NEAR, SINK, STATE, CROSS)
HEARD = tokens(range(100, 110))  # three blocks


def free(cache: Cache) -> list[int]:
    return [cache.num_free(group) for group in range(len(cache.config.groups))]


def slots(sequences: list[Sequence], group: int) -> Int32:
    """Device slots by sequence and block; the current states for a state group."""
    if sequences[0].state_slot(group) >= 0:
        return np.array([[sequence.state_slot(group)] for sequence in sequences])
    return np.array([sequence.slots(group) for sequence in sequences])


@pytest.mark.parametrize(
    ("length", "admitted", "own"),
    [(22, [23, 23, 23, 27, 29], [1, 1, 1, 1, 0]), (24, [26, 26, 26, 27, 29], [0, 0, 0, 1, 0])],
)
def test_beams_share_all_but_an_unfinished_block_and_their_state(
    store: StoreName, length: int, admitted: list[int], own: list[int]
) -> None:
    """fork-01: four beams of 22 and of 24 tokens, five kinds: the last block is shared iff it is full."""
    cache = build(store, 32, groups=KINDS)
    with cache.claim([Request("a", tokens(range(length)), beams=4, encoder=Encoder(10, HEARD))]) as claims:
        needed = claims[0].slots_needed
    assert list(needed) == [32 - count for count in admitted]
    first, _ = prefill(cache, Request("a", tokens(range(length)), beams=4, encoder=Encoder(10, HEARD)))
    forks, plan = fork(cache, first, "b", "c", "d")
    finish(cache, plan)
    beams = [first, *forks]
    for group, count in enumerate(own):
        values = [len(set(column)) for column in slots(beams, group).T.tolist()]
        assert (values.count(4), values.count(1)) == (count, len(values) - count)
    assert free(cache)[3:] == [28, 29]
    release(cache, *beams)
    assert free(cache) == [32] * 5


def test_free_counts_of_beams_that_go_on(store: StoreName) -> None:
    """fork-02: three beams of 22 tokens, ten more each: full 5 + 3 x 3 pages, windows two each, cross stays."""
    cache = build(store, 32, groups=KINDS)
    first, _ = prefill(cache, Request("a", tokens(range(22)), beams=3, encoder=Encoder(10, HEARD)))
    seen = [free(cache)]
    forks, plan = fork(cache, first, "b", "c")
    finish(cache, plan)
    seen.append(free(cache))
    beams = [first, *forks]
    for step in range(10):
        finish(cache, cache.grow(beams, np.arange(3, dtype=np.int32) + 10 * step))
        cache.commit(beams)
        check(cache)
    seen.append(free(cache))
    assert seen == [[24, 27, 26, 29, 29], [24, 27, 26, 29, 29], [18, 26, 25, 29, 29]]
    assert [beam.slots(1).tolist().count(-1) for beam in beams] == [6, 6, 6]
    release(cache, *beams)
    assert free(cache) == [32] * 5


def test_a_fork_of_a_running_sequence_shares_what_is_left_in_the_window(store: StoreName) -> None:
    """fork-03: 18 tokens computed, forked twice: blocks 2 and 3 are shared, block 4 copied; each lets go by itself."""
    cache = build(store, 16, groups=(NEAR,))
    (first,) = admit(cache, Request("a", tokens(range(18))))
    compute(cache, first)
    assert (first.slots().tolist(), cache.num_free()) == ([-1, -1, 2, 3, 4], 13)
    forks, plan = fork(cache, first, "b", "c")
    assert [(move.src, move.tokens) for move in plan] == [((0, 4), 2)] * 2
    finish(cache, plan)
    assert (slots([first, *forks], 0)[:, 2:4].tolist(), cache.num_free()) == ([[2, 3]] * 3, 11)
    finish(cache, cache.grow(first, np.arange(6, dtype=np.int32)))
    compute(cache, first)
    assert (first.slots()[:4].tolist(), forks[0].slots()[2:4].tolist(), cache.num_free()) == ([-1] * 4, [2, 3], 10)
    release(cache, *forks)
    assert cache.num_free() == 14
    release(cache, first)


@pytest.mark.parametrize("group", [NEAR, STATE])
def test_an_unfinished_prompt_is_not_forked(store: StoreName, group: LayerGroup) -> None:
    """fork-04: with groups that forget, a prompt of which 8 of 20 tokens are computed cannot be forked."""
    cache = build(store, 16, groups=(FULL, group), max_chunk=8)
    (sequence,) = admit(cache, Request("a", tokens(range(20))))
    compute(cache, sequence)
    with pytest.raises(StateError, match="8 of its 20 prompt tokens are computed; fork when the prompt is computed"):
        cache.fork(sequence, ["b"])
    check(cache)
    release(cache, sequence)


def test_beams_that_find_no_state_are_refused_or_wait(store: StoreName) -> None:
    """fork-05: five state slots: four beams may need 5, five 6: refused permanently. A fork without room is None."""
    cache = build(store, (32, 5), groups=(FULL, STATE))
    (refusal,) = try_admit(cache, Request("a", tokens(range(20)), beams=5)).refused
    assert (refusal.reason, refusal.need, refusal.have, refusal.group, refusal.never) == ("slots", 6, 5, 1, True)
    first, _ = prefill(cache, Request("a", tokens(range(20)), beams=2))
    assert cache.num_free(1) == 3
    assert cache.fork(first, list("bcdef")) is None
    check(cache)
    forks, plan = fork(cache, first, *"bcde")
    finish(cache, plan)
    assert (sorted(slots([first, *forks], 1).ravel().tolist()), cache.num_free(1)) == ([0, 1, 2, 3, 4], 0)
    release(cache, first, *forks)


def test_no_reuse_changes_nothing_of_what_beams_share(store: StoreName) -> None:
    """fork-06: the same four beams with reuse off: the same slots are shared, the same counts are free."""
    numbers = []
    for reuse in (True, False):
        cache = build(store, 32, groups=KINDS, reuse=reuse)
        first, _ = prefill(cache, Request("a", tokens(range(22)), beams=4, encoder=Encoder(10, HEARD)))
        forks, plan = fork(cache, first, "b", "c", "d")
        finish(cache, plan)
        tables = [slots([first, *forks], group) for group in range(5)]
        numbers.append((free(cache), [(table == table[0]).all(axis=0).tolist() for table in tables]))
        release(cache, first, *forks)
    assert numbers[0] == numbers[1]
