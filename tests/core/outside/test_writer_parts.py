"""Writers that go on: what each call took, where one begins, and that room is not made at the text's own cost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    InputError,
    LayerGroup,
    Request,
    RetainRange,
    Retention,
    TierConfig,
    Writer,
    check,
)
from quire.core.store import StoreName

SIZE = 4


@pytest.fixture(params=["twin", "compiled"])
def store(request: pytest.FixtureRequest) -> StoreName:
    return request.param  # type: ignore[no-any-return]


def host_only(store: StoreName, slots: int, groups: int = 1, eviction: str = "lru") -> Cache:
    layers = tuple(LayerGroup(f"group {nth}", window=None if nth == 0 else 6) for nth in range(groups))
    tiers = (TierConfig("device", 0), TierConfig("host", slots))
    return Cache(CacheConfig(tiers, SIZE, layers, max_length=256, partial_reuse=False, eviction=eviction), store=store)  # type: ignore[arg-type]


def text(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def opened(cache: Cache, tokens: range, from_: int = 0, end: int | None = None) -> Writer:
    made = cache.writer(Request("w", text(*tokens)), tier=1, from_=from_, end=end)
    assert isinstance(made, Writer)
    return made


def end_of(cache: Cache, tokens: range) -> int:
    with cache.find(Request("f", text(*tokens))) as found:
        return found.end


def test_what_the_last_call_took_is_told(store: StoreName) -> None:
    cache = host_only(store, 8, groups=2)
    with opened(cache, range(12), end=8) as writer:
        for group in (0, 1):
            assert writer.taken(group) == (writer.blocks(group).tolist(), writer.slots(group).tolist())
            assert writer.taken(group)[0] == [0, 1]
        before = writer.slots().tolist()
        assert writer.extend(end=12, skip={1: [2]}) is None
        assert writer.taken(0) == ([2], writer.slots().tolist()[2:]) and writer.taken(1) == ([], [])
        assert writer.slots().tolist()[:2] == before
        assert writer.extend(end=12) is None and writer.taken(0) == ([], [])
        writer.written(12)
    with opened(cache, range(16)) as writer:
        assert writer.taken(0)[0] == [3]  # what is there is not taken
    check(cache)


def test_a_writer_may_begin_behind_the_first_block(store: StoreName) -> None:
    cache = host_only(store, 8)
    with opened(cache, range(16), from_=9) as writer:  # block 2 begins at 8: it is whole before nobody's start
        assert writer.blocks().tolist() == [2, 3]
        assert (writer.written(16), end_of(cache, range(16))) == (2, 0)
    with opened(cache, range(16), end=8) as writer:
        assert (writer.written(8), end_of(cache, range(16))) == (2, 16)
    with pytest.raises(InputError, match="its text has 16 tokens"):
        opened(cache, range(16), from_=17)
    check(cache)


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_room_for_the_next_block_is_never_made_in_the_text_itself(store: StoreName, eviction: str) -> None:
    """One block at a time, as a request decodes; others come in between, and all of it lies in few slots."""
    dice = random.Random(7)
    cache = host_only(store, 9, groups=2, eviction=eviction)
    with opened(cache, range(4), end=0) as writer:
        for block in range(8):
            tokens = None if block == 0 else text(*range(4 * block, 4 * block + 4))
            assert writer.extend(tokens) is None
            assert writer.taken()[0] == [block]
            writer.written(4 * block + 4)
            check(cache)
            assert end_of(cache, range(4 * block + 4)) == 4 * block + 4
            if dice.random() < 0.7:  # it takes the oldest that nobody claims: sometimes the first of the text
                kept = cache.find(Request("kept", text(*range(4 * block + 4))))
                with kept, opened(cache, range(1000 * block, 1000 * block + 4)) as other:
                    other.written(4)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_text_whose_blocks_went_is_looked_for_from_its_root(store: StoreName, groups: int) -> None:
    cache = host_only(store, 4, groups=groups)
    with opened(cache, range(12), end=8) as writer:
        writer.written(8)
        for nth in range(1, 5):  # all of it is evicted, and its nodes are others' now
            with opened(cache, range(100 * nth, 100 * nth + 4)) as other:
                other.written(4)
        assert end_of(cache, range(12)) == 0
        assert writer.extend(end=12) is None and writer.taken()[0] == [2]
        writer.written(12)
        check(cache)
    assert end_of(cache, range(12)) == 0  # its first blocks are missing
    with opened(cache, range(12)) as writer:
        assert writer.taken()[0] == [0, 1]


def test_a_block_whose_priority_runs_out_with_the_call_is_spared_too(store: StoreName) -> None:
    now = [0.0]
    tiers = (TierConfig("device", 0), TierConfig("host", 2))
    config = CacheConfig(tiers, SIZE, (LayerGroup("full"),), max_length=64, partial_reuse=False)
    cache = Cache(config, clock=lambda: now[0], store=store)
    keep, other = Retention((RetainRange(0, 4, 80, 10.0),)), Retention((RetainRange(0, 4, 50, None),))
    with cache.writer(Request("b", text(*range(100, 104)), retention=other), tier=1) as brought:  # type: ignore[union-attr]
        brought.written(4)
    with cache.writer(Request("a", text(*range(8)), retention=keep), tier=1, end=4) as writer:  # type: ignore[union-attr]
        writer.written(4)
        now[0] = 20.0  # from now on the text's own first block would go first
        assert writer.extend(end=8) is None
        writer.written(8)
    assert (end_of(cache, range(8)), end_of(cache, range(100, 104))) == (8, 0)
    check(cache)


def test_who_was_refused_looks_at_his_own_text_again(store: StoreName) -> None:
    cache = host_only(store, 5, groups=2)
    with opened(cache, range(12)) as writer:
        writer.written(12)
    with opened(cache, range(24), end=0) as writer:
        held = cache.find(Request("held", text(*range(12))))
        assert writer.extend(end=24) is not None  # three blocks are there, two slots for three
        with cache.writer(Request("b", text(*range(200, 204))), tier=1, skip={0: [0]}) as brought:  # type: ignore[union-attr]
            brought.written(4)  # a node without a page of the first group
        assert writer.extend(end=16) is None
        assert (writer.taken(0)[0], writer.taken(1)[0]) == ([3], [3])
        held.close()
    check(cache)


def test_blocks_may_be_taken_before_their_turn(store: StoreName) -> None:
    cache = host_only(store, 8, groups=2)
    with opened(cache, range(24), end=4) as writer:
        assert writer.extend(end=8, also={0: [4, 1, 3], 1: (5,)}) is None
        assert (writer.taken(0)[0], writer.taken(1)[0]) == ([1, 3, 4], [1, 5])
        assert (writer.written(8), end_of(cache, range(24))) == (4, 8)
        assert (writer.blocks(0).tolist(), writer.blocks(1).tolist()) == ([3, 4], [5])
        before = dict(zip(writer.blocks().tolist(), writer.slots().tolist(), strict=True))
        assert writer.extend(end=8, also={0: [3]}) is None and writer.taken() == ([], [])  # it has that one
        assert writer.extend(end=20) is None
        assert (writer.taken(0)[0], writer.taken(1)[0]) == ([2], [2, 3, 4])
        assert writer.blocks(0).tolist() == [2, 3, 4] and writer.blocks(1).tolist() == [2, 3, 4, 5]
        assert dict(zip(writer.blocks().tolist(), writer.slots().tolist(), strict=True)).items() >= before.items()
        check(cache)
        assert (writer.written(20, skip={0: [4]}), end_of(cache, range(24))) == (5, 16)
        assert writer.extend() is None and (writer.taken(0)[0], writer.taken(1)[0]) == ([5], [])
        assert writer.written(24) == 2
    check(cache)


def test_blocks_before_their_turn_are_refused_with_the_others_and_must_be_of_the_text(store: StoreName) -> None:
    cache = host_only(store, 4)
    with opened(cache, range(24), end=4) as writer:
        lack = writer.extend(end=8, also={0: [2, 3, 4]})
        assert lack is not None and (lack.need, lack.have) == (4, 3) and writer.blocks().tolist() == [0]
        outside: list[Sequence[int]] = [
            [6],
            range(-5, -2),
            range(-1, 3),
            range(3, -2, -1),
            [-1, 3],
            range(10**12),
            range(3, 1 << 70),
        ]
        facts: list[tuple[dict[int, Sequence[int]], str]] = [
            ({0: blocks}, "its text has 6 whole blocks") for blocks in outside
        ]
        facts.append(({1: [3]}, "it writes 1 groups"))
        for wrong, fact in facts:
            with pytest.raises(InputError, match=fact):
                writer.extend(text(1, 2), end=8, also=wrong)
        assert writer.length == 24 and writer.blocks().tolist() == [0]
        assert writer.extend(end=8, also={0: range(1, 1)}) is None and writer.taken()[0] == [1]
        nothing: list[Sequence[int]] = [range(5, -3), range(-2, -2), range(1 << 70, 3), []]
        for empty in nothing:
            assert writer.extend(end=8, also={0: empty}) is None and writer.taken()[0] == []
        assert writer.extend(end=8, also={0: range(0, 5, 4)}) is None and writer.taken()[0] == [4]
        assert writer.extend(end=8, also={0: range(1, 4)}) is not None  # 2 and 3, and one slot
        assert writer.extend(end=8, also={0: range(1, 3)}) is None and writer.taken()[0] == [2]
        writer.close()
    assert cache.usage(1).empty == 4
    check(cache)


@pytest.mark.parametrize("blocks", [[[0]], [[0], [-1]], [[0], [3]], [[0], [0], []]])
def test_blocks_that_a_text_has_not_are_refused_before_anything_changes(
    store: StoreName, blocks: list[list[int]]
) -> None:
    cache = host_only(store, 8, groups=2)
    with opened(cache, range(12), end=0) as writer:
        inner, chain = cache._registry.setup.store, writer._kept.chain
        named = [text(*some) for some in blocks]
        with pytest.raises(ValueError):
            inner.write(-1, chain, 1, named, None, None, now=0)
        assert cache.usage(1).empty == 8
        check(cache)


@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_written_in_parts_is_findable_in_parts(store: StoreName, groups: int) -> None:
    cache = host_only(store, 8, groups=groups)
    with opened(cache, range(12)) as writer:
        assert (writer.written(8), end_of(cache, range(13))) == (2 * groups, 8)
        assert [writer.blocks(group).tolist() for group in range(groups)] == [[2]] * groups
        assert (writer.written(8), writer.written(12), end_of(cache, range(13))) == (0, groups, 12)
        assert [writer.blocks(group).tolist() for group in range(groups)] == [[]] * groups
    check(cache)


def test_a_page_that_is_lost_before_it_is_written_does_not_become_findable(store: StoreName) -> None:
    cache = host_only(store, 8, groups=2)
    with opened(cache, range(16)) as writer:
        cache.lose(0, [writer.slots(0).tolist()[2]], tier=1)
        assert writer.written(16) == 7 and end_of(cache, range(17)) == 8
    check(cache)
