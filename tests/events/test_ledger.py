"""The ledger: the compiled one and the reference store say the same, whatever they are told."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.core.store import StoreName, open_store

from .lives import ids

CREATED, STORED, MOVED, RETAINED, REMOVED, CLEARED = range(6)


def batch(dice: Random, names: list[int], groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some records, most of which make sense."""
    rows, hashes, marks = [], [], []
    for _ in range(dice.randint(0, 4)):
        kind = dice.choice((STORED, STORED, STORED, MOVED, RETAINED, REMOVED, REMOVED, dice.choice((CREATED, CLEARED))))
        count = 0 if kind == CLEARED else dice.randint(0, 6)
        rows.append([kind, dice.randrange(groups), count, 0, dice.randrange(8)])
        hashes += dice.choices(names, k=count)
        marks += [dice.randrange(101) for _ in range(count)]
    return np.array(rows, np.int32).reshape(-1, 5), np.array(hashes, np.uint64), np.array(marks, np.uint8)


def facts(ledger: Any, workers: int, groups: int, query: NDArray[np.uint64]) -> list[object]:
    """Everything a ledger can be asked."""
    told: list[object] = [len(ledger)]
    for group in range(groups):
        for some in (list(range(workers)), list(range(workers - 1, -1, -2))):
            told += [ledger.runs(group, query, some).tolist(), ledger.walk(group, query, some).tolist()]
        told += [sorted(zip(*(part.tolist() for part in ledger.pages(w, group)), strict=True)) for w in range(workers)]
    return [*told, *((ledger.num_pages(worker), ledger.sums_by_tier(worker).tolist()) for worker in range(workers))]


@pytest.mark.parametrize("seed", range(40))
def test_both_ledgers_agree(seed: int) -> None:
    compiled = pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built here")
    dice = Random(seed)
    workers, groups = dice.randint(1, 5), dice.randint(1, 3)
    names = [*(dice.getrandbits(64) | 1 for _ in range(20)), *(64 * k + 3 for k in range(1, 20))]  # some share a home
    both = [module.Ledger(workers, groups) for module in (open_store("twin"), compiled)]
    for _ in range(60):
        worker, told = dice.randrange(workers), batch(dice, names, groups)
        assert len({ledger.apply(worker, *told) for ledger in both}) == 1
        if dice.random() < 0.05:
            workers, groups = workers + dice.randint(0, 2), groups + dice.randint(0, 1)
            for ledger in both:
                ledger.widen(workers, groups)
        if dice.random() < 0.05:
            for ledger in both:
                ledger.clear(worker)
    query = np.array(dice.sample(names, 10), np.uint64)
    assert facts(both[0], workers, groups, query) == facts(both[1], workers, groups, query)


def test_both_ledgers_agree_on_many_workers_that_come_and_go() -> None:
    """Pages with one holder, a few and all; thousands of them forgotten at once, and room made small again."""
    compiled = pytest.importorskip("quire.core.store._compiled", reason="the compiled store is not built here")
    dice, workers = Random(3), 21
    both = [module.Ledger(workers, 2) for module in (open_store("twin"), compiled)]
    names = np.array([dice.getrandbits(64) | 1 for _ in range(6000)], np.uint64)
    sizes = {0: 6000, 1: 5000} | dict.fromkeys(range(2, workers), 150)
    query = names[:300:7].copy()
    for turn in range(3):
        for worker in dice.sample(range(workers), workers):
            told = names[: sizes[worker]] if turn < 2 else names[worker * 50 : worker * 50 + sizes[worker]]
            marks = np.full(len(told), worker, np.uint8)
            rows = np.array([[STORED, turn % 2, len(told), 0, worker % 8]], np.int32)
            assert len({ledger.apply(worker, rows, told, marks) for ledger in both}) == 1
            gone = told[dice.randrange(len(told)) :: 11].copy()
            rows = np.array([[REMOVED, turn % 2, len(gone), 0, 0]], np.int32)
            assert {ledger.apply(worker, rows, gone, marks[: len(gone)]) for ledger in both} == {0}
        assert facts(both[0], workers, 2, query) == facts(both[1], workers, 2, query)
        for worker in (0, 1, *dice.sample(range(2, workers), 14)):
            for ledger in both:
                ledger.clear(worker)
        assert facts(both[0], workers, 2, query) == facts(both[1], workers, 2, query) and len(both[1]) < 1200


def test_sums_follow_from_the_pages_alone(store: StoreName) -> None:
    """Whatever the order and the detours, equal pages give equal sums; another tier or priority gives others."""
    names, marks = np.arange(1, 9, dtype=np.uint64), np.full(8, 35, np.uint8)
    one, other = (open_store(store).Ledger(2, 1) for _ in range(2))
    one.apply(0, np.array([[STORED, 0, 8, 0, 1]], np.int32), names, marks)
    detour = np.array([[STORED, 0, 8, 0, 0], [REMOVED, 0, 8, 0, 0]], np.int32)
    other.apply(1, detour, np.tile(names, 2), np.tile(marks, 2))
    assert not other.sums_by_tier(1).any()
    for name in names[::-1]:
        rows = [[STORED, 0, 1, 0, 0], [RETAINED, 0, 1, 10, 35], [MOVED, 0, 1, 0, 1]]
        other.apply(1, np.array(rows, np.int32), np.full(3, name), np.full(3, 10, np.uint8))
    assert np.array_equal(one.sums_by_tier(0), other.sums_by_tier(1)) and one.sums_by_tier(0)[0, 1, 0] == 8
    before = one.sums_by_tier(0)
    one.apply(0, np.array([[RETAINED, 0, 1, 35, 36]], np.int32), names[:1], marks[:1])
    assert one.sums_by_tier(0)[0, 1, 0] == 8 and not np.array_equal(before, one.sums_by_tier(0))


@pytest.mark.parametrize(
    "row", [[6, 0, 1, 0, 0], [-1, 0, 1, 0, 0], [STORED, 1, 1, 0, 0], [STORED, 0, 2, 0, 0], [STORED, 0, -1, 0, 0],
            [STORED, 0, 1, 0, 8], [MOVED, 0, 1, 0, -1], [RETAINED, 0, 1, 0, 256], [STORED, 0, 0, 0, 0]],
)  # fmt: skip
def test_records_that_no_recorder_makes_are_refused_and_change_nothing(store: StoreName, row: list[int]) -> None:
    ledger = open_store(store).Ledger(1, 1)
    good = [STORED, 0, 0, 0, 0]
    with pytest.raises(ValueError):
        ledger.apply(0, np.array([good, row], np.int32), np.array([5], np.uint64), np.array([1], np.uint8))
    assert len(ledger) == 0


def test_the_hashes_of_a_chain_are_those_of_its_blocks(store: StoreName) -> None:
    """They go on where the prefix ends, and words count."""
    chain = open_store(store).Chain
    whole = chain(4, ids(range(13))).event_hashes(7).tolist()
    assert len(whole) == 3
    assert chain(4, ids(range(4, 8))).event_hashes(whole[0]).tolist() == whole[1:2]
    words = np.zeros((13, 3), np.uint64)
    words[5, 0] = 1
    assert [a == b for a, b in zip(chain(4, ids(range(13)), words).event_hashes(7).tolist(), whole, strict=True)] == [
        True, False, False
    ]  # fmt: skip
