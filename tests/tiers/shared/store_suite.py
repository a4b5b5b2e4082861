"""What every shared store must do. Subclass it, say how to make the store, and pytest runs it; knows none by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quire.core.records.errors import StateError
from quire.tiers import Bytes
from quire.tiers.page_digest import DIGEST_BYTES, TAG_BYTES
from quire.tiers.shared import SharedStore, StoreError, StoreMiss

SIZE = 1024


def name(number: int, scope: int = 0, group: int = 0) -> bytes:
    """The name of some page."""
    return bytes([scope]) * TAG_BYTES + number.to_bytes(DIGEST_BYTES, "little") + group.to_bytes(2, "little")


def page(seed: int, size: int = SIZE) -> Bytes:
    """Bytes that no other seed gives."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def soon(seconds: float = 20.0) -> float:
    """A deadline that only a hanging test reaches."""
    return time.monotonic() + seconds


def empty(count: int, size: int = SIZE) -> list[Bytes]:
    """Buffers, each with bytes that no page has all over."""
    return [np.full(size, 0xA5, np.uint8) for _ in range(count)]


def got(store: SharedStore, names: list[bytes], size: int = SIZE) -> list[Bytes | StoreMiss]:
    """What comes for these names."""
    into = empty(len(names), size)
    answers = store.get_many(names, into, soon())
    return [page if answer is None else answer for page, answer in zip(into, answers, strict=True)]


class StoreSuite:
    """The contract of SharedStore."""

    @pytest.fixture
    def store(self) -> Iterator[SharedStore]:
        """An empty store."""
        raise NotImplementedError

    def damage(self, store: SharedStore, of: bytes, change: str) -> None:
        """Spoil what lies under a name, behind the store's back: flip, cut, lengthen, empty, newer, swap, magic."""
        raise NotImplementedError

    def test_pages_come_back_byte_for_byte(self, store: SharedStore) -> None:
        names, pages = [name(n) for n in range(20)], [page(n) for n in range(20)]
        assert store.put_many(names, pages, soon()) == [None] * 20
        assert store.exists_many([*names, name(99)], soon()) == [True] * 20 + [False]
        for sent, came in zip(pages, got(store, names), strict=True):
            assert np.array_equal(sent, came)

    def test_what_is_not_there_is_absent_and_the_rest_comes(self, store: SharedStore) -> None:
        store.put_many([name(1), name(3)], [page(1), page(3)], soon())
        first, second, third = got(store, [name(1), name(2), name(3)])
        assert second is StoreMiss.ABSENT
        assert np.array_equal(first, page(1)) and np.array_equal(third, page(3))

    def test_an_empty_batch_is_no_work(self, store: SharedStore) -> None:
        assert store.exists_many([], soon()) == []
        assert store.get_many([], [], soon()) == store.put_many([], [], soon()) == []

    def test_groups_and_scopes_keep_their_own_pages(self, store: SharedStore) -> None:
        names = [name(1), name(1, group=1), name(1, scope=1)]
        store.put_many(names, [page(n) for n in range(3)], soon())
        assert all(np.array_equal(page(n), one) for n, one in enumerate(got(store, names)))

    @pytest.mark.parametrize("size", [1, 7, 4095, 4096, 100_003])
    def test_pages_of_any_size(self, store: SharedStore, size: int) -> None:
        store.put_many([name(1)], [page(1, size)], soon())
        assert np.array_equal(got(store, [name(1)], size)[0], page(1, size))

    def test_a_page_that_was_put_is_not_tied_to_its_buffer(self, store: SharedStore) -> None:
        data = page(1)
        store.put_many([name(1)], [data], soon())
        data[:] = 0
        assert np.array_equal(got(store, [name(1)])[0], page(1))

    def test_putting_again_changes_nothing_for_readers(self, store: SharedStore) -> None:
        for _ in range(2):
            assert store.put_many([name(1)], [page(1)], soon()) == [None]
        assert np.array_equal(got(store, [name(1)])[0], page(1))

    def test_another_size_is_no_page_of_ours(self, store: SharedStore) -> None:
        store.put_many([name(1)], [page(1, 512)], soon())
        for size in (511, 513, 1024):
            assert got(store, [name(1)], size)[0] in (StoreMiss.SIZE, StoreMiss.ABSENT)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("flip", StoreMiss.DAMAGED), ("cut", StoreMiss.SIZE), ("lengthen", StoreMiss.SIZE),
            ("empty", StoreMiss.SIZE),
            ("newer", StoreMiss.FORMAT), ("swap", StoreMiss.DAMAGED), ("magic", StoreMiss.DAMAGED),
        ],
    )  # fmt: skip
    def test_a_wrong_byte_is_a_miss_with_a_reason(self, store: SharedStore, change: str, reason: StoreMiss) -> None:
        names = [name(n) for n in range(3)]
        store.put_many(names, [page(n) for n in range(3)], soon())
        self.damage(store, names[1], change)
        before, wrong, after = got(store, names)
        assert wrong is reason
        assert np.array_equal(before, page(0)) and np.array_equal(after, page(2))
        assert store.put_many([names[1]], [page(1)], soon()) == [None]
        assert np.array_equal(got(store, [names[1]])[0], page(1))

    def test_a_deadline_that_has_passed_is_late_and_nothing_is_done(self, store: SharedStore) -> None:
        past = time.monotonic() - 1
        acts: list[Callable[[], list[StoreMiss | None]]] = [
            lambda: store.put_many([name(1)], [page(1)], past), lambda: store.get_many([name(1)], empty(1), past),
        ]  # fmt: skip
        for act in acts:
            try:
                assert act() == [StoreMiss.LATE]
            except StoreError as late:
                assert late.miss is StoreMiss.LATE
        with pytest.raises(StoreError) as caught:
            store.exists_many([name(1)], past)
        assert caught.value.miss is StoreMiss.LATE
        assert store.exists_many([name(1)], soon()) == [False]

    def test_a_scope_is_removed_whole_and_alone(self, store: SharedStore) -> None:
        mine, others = [name(n, 1, n % 2) for n in range(30)], [name(n, 2) for n in range(5)]
        store.put_many(mine + others, [page(n) for n in range(35)], soon())
        assert store.remove_scope(mine[0][:TAG_BYTES], soon()) == 30
        assert store.exists_many(mine + others, soon()) == [False] * 30 + [True] * 5
        assert store.remove_scope(mine[0][:TAG_BYTES], soon()) == 0
        store.put_many(mine[:1], [page(0)], soon())
        assert np.array_equal(got(store, mine[:1])[0], page(0))

    def test_many_threads_at_once(self, store: SharedStore) -> None:
        def act(seed: int) -> bool:
            some = [int(n) for n in np.random.default_rng(seed).integers(0, 12, 6)]
            names = [name(n) for n in some]
            store.put_many(names, [page(n) for n in some], soon())
            return all(np.array_equal(page(n), came) for n, came in zip(some, got(store, names), strict=True))

        with ThreadPoolExecutor(4) as crew:
            assert all(crew.map(act, range(40)))

    def test_a_closed_store_refuses(self, store: SharedStore) -> None:
        store.put_many([name(1)], [page(1)], soon())
        store.close()
        store.close()
        with pytest.raises(StateError, match="closed"):
            store.exists_many([name(1)], soon())
        with pytest.raises(StateError, match="closed"):
            store.get_many([name(1)], empty(1), soon())
        with pytest.raises(StateError, match="closed"):
            store.put_many([name(1)], [page(1)], soon())
        with pytest.raises(StateError, match="closed"):
            store.remove_scope(bytes(TAG_BYTES), soon())
