"""Draft models: a group that always has room for a few tokens behind the sequence. Rows `draft`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import Cache, InputError, LayerGroup, Request, Sequence, check
from quire.core.store import StoreName

from ..conftest import Slots, admit, build, compute, decode, finish, fork, release, run, start_of, tokens, try_admit

FULL = LayerGroup("full")


def build_drafted(store: StoreName, extra: int | None, slots: Slots = 16, **options: Any) -> Cache:
    """A main group and a draft group with `extra` tokens of its own (None: those of the request)."""
    return build(store, slots, groups=(FULL, LayerGroup("draft", extra_tokens=extra)), **options)


def room(cache: Cache, sequence: Sequence) -> tuple[list[int], list[int]]:
    """Tokens each group has slots for, and what is free of each."""
    groups = range(len(cache.config.groups))
    return [sequence.capacity(group) for group in groups], [cache.num_free(group) for group in groups]


@pytest.mark.parametrize(
    ("extra", "asked", "expected"),
    [
        (None, 4, ([12, 12], [13, 13])),
        (None, 0, ([8, 8], [14, 14])),
        (0, 4, ([12, 8], [13, 14])),
        (3, 0, ([8, 12], [14, 13])),
        (6, 4, ([12, 16], [13, 12])),
    ],
)
def test_the_groups_own_number_wins(
    store: StoreName, extra: int | None, asked: int, expected: tuple[list[int], ...]
) -> None:
    """draft-01: 7 tokens: room behind them is the group's own number, or the request's when it has none."""
    cache = build_drafted(store, extra)
    (sequence,) = admit(cache, Request("a", tokens(range(7)), extra_tokens=asked))
    assert room(cache, sequence) == expected
    release(cache, sequence)


def test_a_draft_group_grows_ahead_of_its_sequence(store: StoreName) -> None:
    """draft-02: 7 tokens, three drafted: the draft group takes a page at 10 and 14 tokens, the main one at 9 and 13."""
    cache = build_drafted(store, 3)
    (sequence,) = admit(cache, Request("a", tokens(range(7))))
    seen = {7: room(cache, sequence)[0]}
    for token in range(7, 14):
        decode(cache, sequence, token)
        seen[sequence.length] = room(cache, sequence)[0]
    assert seen == {
        7: [8, 12], 8: [8, 12], 9: [12, 12], 10: [12, 16], 11: [12, 16], 12: [12, 16], 13: [16, 16], 14: [16, 20]
    }  # fmt: skip
    release(cache, sequence)


def test_the_requests_number_is_room_behind_the_prompt_alone(store: StoreName) -> None:
    """draft-03: 7 tokens and 4 of the request: both groups reach 12 and stand there until the 13th token."""
    cache = build_drafted(store, None)
    (sequence,) = admit(cache, Request("a", tokens(range(7)), extra_tokens=4))
    for token in range(7, 12):
        decode(cache, sequence, token)
        assert room(cache, sequence) == ([12, 12], [13, 13])
    decode(cache, sequence, 12)
    assert room(cache, sequence) == ([16, 16], [12, 12])
    release(cache, sequence)


@pytest.mark.parametrize(
    ("extra", "grown", "back", "trimmed"),
    [(None, ([20, 20], [11, 11]), 2, ([16, 16], [12, 12])), (6, ([20, 28], [11, 9]), 3, ([16, 20], [12, 11]))],
)
def test_rejected_drafts_are_taken_back_in_both(
    store: StoreName, extra: int | None, grown: tuple[list[int], ...], back: int, trimmed: tuple[list[int], ...]
) -> None:
    """draft-04: 14 tokens, five verified at once and rejected: both groups give back what they had grown by."""
    cache = build_drafted(store, extra)
    (sequence,) = admit(cache, Request("a", tokens(range(7))))
    decode(cache, sequence, *range(7, 14))
    assert room(cache, sequence) == trimmed
    finish(cache, cache.grow(sequence, np.arange(5, dtype=np.int32)))
    assert room(cache, sequence) == grown
    assert cache.trim(sequence, 5) == back
    check(cache)
    assert room(cache, sequence) == trimmed
    release(cache, sequence)
    assert start_of(cache, tokens(range(20))) == 13


def test_a_draft_group_with_a_window(store: StoreName) -> None:
    """draft-05: a window of 8 and 5 drafted tokens: 20 tokens on, it holds the last two whole blocks and 8 ahead."""
    cache = build(store, 16, groups=(FULL, LayerGroup("draft", window=8, extra_tokens=5)))
    (sequence,) = admit(cache, Request("a", tokens(range(10))))
    assert room(cache, sequence) == ([12, 16], [13, 12])
    decode(cache, sequence, *range(10, 20))
    assert room(cache, sequence) == ([20, 28], [11, 11])
    assert sequence.slots(1).tolist() == [-1, -1, 2, 3, 4, 5, 6]
    assert cache.trim(sequence, 1) == 1
    check(cache)
    assert room(cache, sequence) == ([20, 24], [11, 12])
    release(cache, sequence)


def test_a_fork_has_room_for_its_own_drafts(store: StoreName) -> None:
    """draft-06: 14 tokens, 13 computed, 6 drafted: a fork copies one token per group and takes 1 and 2 pages."""
    cache = build_drafted(store, 6)
    (sequence,) = admit(cache, Request("a", tokens(range(7))))
    decode(cache, sequence, *range(7, 14))
    before = room(cache, sequence)
    (twin,), plan = fork(cache, sequence, "b")
    assert [(move.group, move.tokens) for move in plan] == [(0, 1), (1, 1)]
    finish(cache, plan)
    assert room(cache, twin) == (before[0], [11, 9])
    release(cache, sequence, twin)
    assert room(cache, admit(cache, Request("c", tokens(99)))[0])[1] == [15, 14]


def test_room_for_drafts_is_part_of_every_count(store: StoreName) -> None:
    """draft-07: 6 tokens, 6 to come, 8 drafted: the draft group needs 4 slots now and 5 in all; of 4 it never fits."""
    cache = build_drafted(store, 8)
    request = Request("a", tokens(range(6)), max_new_tokens=6)
    (probe,) = cache.probe([request])
    assert (probe.slots_now, probe.slots_to_completion) == ((2, 4), (3, 5))
    (sequence,) = admit(cache, request)
    assert cache.slots_to_completion(sequence) == (1, 1)
    release(cache, sequence)
    (refusal,) = try_admit(build_drafted(store, 8, 4), request).refused
    assert (refusal.need, refusal.have, refusal.group, refusal.never) == (5, 4, 1, True)


def test_the_longest_sequence_has_room_for_its_drafts(store: StoreName) -> None:
    """draft-08: a prompt of max_length 16 still has its four drafted tokens' page; growing beyond it is an error."""
    cache = build_drafted(store, 4, max_length=16)
    (sequence,) = admit(cache, Request("a", tokens(range(16))))
    assert room(cache, sequence) == ([16, 20], [12, 11])
    compute(cache, sequence)
    with pytest.raises(InputError, match="max_length is 16"):
        cache.grow(sequence, tokens(16))
    release(cache, sequence)
    assert start_of(cache, tokens(range(16))) == 15


def test_drafts_are_never_stored(store: StoreName) -> None:
    """draft-09: pages behind the computed tokens are empty after release, in both groups."""
    cache = build_drafted(store, 8)
    run(cache, Request("a", tokens(range(8))), sampled=[50])
    assert [(cache.usage(0, group).idle, cache.usage(0, group).empty) for group in range(2)] == [(2, 14), (2, 14)]
    assert start_of(cache, tokens(range(8), 50, 51)) == 8
