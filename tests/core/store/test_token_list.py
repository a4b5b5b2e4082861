"""Token ids out of a Python list: both stores read the same, and say which item is wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from quire.core.store import open_store
from quire.core.store.interface import StoreModule

EDGES = [0, 1, -1, 255, 256, 257, -5, -6, 2**15, 2**29, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1, -(2**30), -(2**31)]


@pytest.fixture(params=["compiled", "twin"])
def store(request: pytest.FixtureRequest) -> StoreModule:
    return open_store(request.param)


class Index:
    """An int of another kind; `then` happens when it is read."""

    def __init__(self, value: int, then: Any = None) -> None:
        self.value, self.then = value, then

    def __index__(self) -> int:
        if self.then is not None:
            self.then()
        return self.value


def read(store: StoreModule, items: list[Any], first: int = 0, count: int | None = None) -> list[int]:
    out = np.full(len(items) - first if count is None else count, -7, np.int32)
    store.read_tokens(items, first, out)
    read: list[int] = out.tolist()
    return read


def test_every_number_of_32_bits_is_read_as_it_is(store: StoreModule) -> None:
    rng = random.Random(5)
    items = EDGES + [rng.randrange(-(2**31), 2**31) >> rng.randrange(32) for _ in range(5000)]
    rng.shuffle(items)
    assert read(store, items) == items
    assert read(store, []) == []


def test_a_part_of_a_list_fills_a_part_of_an_array(store: StoreModule) -> None:
    items, out = list(range(100, 200)), np.zeros(12, np.int32)
    store.read_tokens(items, 95, out[3:8])
    assert out.tolist() == [0] * 3 + items[95:] + [0] * 4


def test_whatever_has_an_index_is_a_token(store: StoreModule) -> None:
    items = [3, True, np.int64(-9), Index(2**31 - 1), np.uint8(200), 4]
    assert read(store, items) == [3, 1, -9, 2**31 - 1, 200, 4]


@pytest.mark.parametrize("wrong", [2**31, -(2**31) - 1, 2**40, -(2**40), 2**64, 2**700, Index(2**31), np.int64(2**33)])
def test_a_number_that_does_not_fit_is_named_by_its_place(store: StoreModule, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^token 41 does not fit in 32 bits$"):
        read(store, [*range(41), wrong, 5], first=2)


@pytest.mark.parametrize("wrong", [None, "7", 1.0, b"1", [1], np.float32(2)])
def test_what_is_no_number_is_named_by_its_place(store: StoreModule, wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"^token 1 is a {type(wrong).__name__}, must be an int$"):
        read(store, [0, wrong, 5])


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, 6), (3, 3), (5, 1), (9, 1)])
def test_places_outside_of_the_list_are_refused(store: StoreModule, first: int, count: int) -> None:
    with pytest.raises(ValueError, match=rf"^tokens \[{first}, {first + count}\) of 5$"):
        read(store, [1, 2, 3, 4, 5], first, count)


def test_what_cannot_be_filled_is_refused(store: StoreModule) -> None:
    shut = np.zeros(2, np.int32)
    shut.flags.writeable = False
    outs: list[Any] = [np.zeros(2, np.int64), np.zeros(2, np.float32), np.zeros(4, np.int32)[::2], shut]
    for out in outs:
        with pytest.raises((TypeError, ValueError, BufferError)):
            store.read_tokens([1, 2], 0, out)
    for items in ((1, 2), None, "12"):
        with pytest.raises(TypeError):
            store.read_tokens(items, 0, np.zeros(2, np.int32))  # type: ignore[arg-type]


def test_a_list_that_shrinks_while_it_is_read_is_read_no_further() -> None:
    items: list[Any] = [1, 2, 3, 4]
    items[1] = Index(2, items.clear)
    with pytest.raises(ValueError, match=r"^tokens \[0, 4\) of 0$"):
        read(open_store("compiled"), items, 0, 4)
