"""KeyStore: pages by key in a real store, with an end to every call, and nothing of the caller's touched after it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from quire import InputError
from quire.tiers import Bytes
from quire.tiers.disk.keyed.key_place import THERE
from quire.tiers.shared import FolderStore, SharedConfig, StoreMiss, open_store
from quire.tiers.shared.calls.breaker import FIRST_WAIT
from quire.tiers.shared.keyed import KeyStore
from quire.tiers.shared.keyed.key_store import LEFT
from tests.tiers.shared.test_client import FakeClock, GatedStore
from tests.waits import until

PRINT, PAGE = bytes(range(32)), 3000


def key(number: int) -> bytes:
    return f"a{number}".encode().ljust(32, b".") + bytes(4)


def page(one: bytes) -> Bytes:
    return np.random.default_rng(list(one)).integers(0, 256, PAGE, np.uint8)


def opened(place: str, print_: bytes = PRINT, **more: float) -> KeyStore:
    return KeyStore(open_store(SharedConfig(place)), print_, PAGE, wait=30.0, batch_bytes=2 * PAGE, **more)  # type: ignore[arg-type]


def write(store: KeyStore, *keys: bytes) -> list[str]:
    return store.write(keys, [page(one) for one in keys])


def right(store: KeyStore, *keys: bytes) -> list[bool]:
    """Whether each came; a wrong byte is an error, and what did not come is as it was."""
    pages = [np.full(PAGE, 7, np.uint8) for _ in keys]
    came = [answer == THERE for answer in store.read(keys, pages)]
    for one, got, good in zip(keys, pages, came, strict=True):
        assert np.array_equal(got, page(one)) if good else (got == 7).all()
    return came


def there(store: KeyStore, *keys: bytes) -> list[bool]:
    answers: list[list[bool]] = []
    assert store.exist(keys, answers.append)
    until(lambda: answers)
    return answers[0]


def test_what_one_machine_sends_another_finds_and_another_model_does_not(place: str) -> None:
    first, second, other = opened(place), opened(place), opened(place, bytes(32))
    keys = [key(nth) for nth in range(5)]
    assert write(first, *keys) == [THERE] * 5
    assert there(second, *keys, key(9)) == [True] * 5 + [False]
    assert right(second, *keys[::-1], key(9)) == [True] * 5 + [False]
    assert there(other, *keys) == [False] * 5 and right(other, keys[0]) == [False]
    assert write(second, *keys) == [THERE] * 5 and second.counts().sent == 0, "what is there is not sent again"
    for one in (first, second, other):
        one.close()
    assert right(first, keys[0]) == [False] and not first.exist(keys, print)


def test_a_name_shows_nothing_of_its_key(tmp_path: Path) -> None:
    store = opened(str(tmp_path / "s"))
    write(store, key(1))
    (file,) = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert key(1).hex() not in str(file) and len(store.name_of(key(1))) == 50
    assert len({store.name_of(one) for one in (key(1), key(1)[:-4] + b"\0\0\0\1", key(2))}) == 3
    store.close()


def test_a_flipped_bit_and_a_page_under_anothers_name_are_misses_and_are_sent_anew(tmp_path: Path) -> None:
    store = opened(str(tmp_path / "s"))
    write(store, key(0), key(1), key(2))
    names = {store.name_of(key(nth))[16:-2].hex(): nth for nth in range(3)}
    files = {names[path.name.split("-")[0]]: path for path in (tmp_path / "s").rglob("*-0")}
    raw = bytearray(files[0].read_bytes())
    raw[len(raw) // 2] ^= 16
    files[0].write_bytes(raw)
    os.replace(files[2], files[1])
    assert right(store, key(0), key(1), key(2)) == [False] * 3
    assert store.counts().misses == {StoreMiss.DAMAGED: 2, StoreMiss.ABSENT: 1}
    assert write(store, key(0), key(1), key(2)) == [THERE] * 3 and store.counts().sent == 6
    assert right(store, key(0), key(1), key(2)) == [True] * 3
    store.close()


def test_a_write_whose_caller_has_given_up_sends_nothing_more(tmp_path: Path) -> None:
    """Its memory may hold something else by the time that it is read."""
    store = opened(str(tmp_path / "s"))
    asked = iter([True, False])
    answers = store.write([key(nth) for nth in range(3)], [page(key(nth)) for nth in range(3)], lambda: next(asked))
    assert answers == [THERE, THERE, LEFT] and there(store, key(0), key(2)) == [True, False]
    assert store.read([key(0)], [page(key(1))], lambda: False) == [LEFT]
    store.close()


class Torn(FolderStore):
    """The caller's memory changes as soon as the store has begun to send."""

    def __init__(self, folder: Path, memory: Bytes) -> None:
        super().__init__(folder)
        self.memory = memory

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        self.memory[:] = 0
        return super().put_many(names, pages, deadline)


def test_what_is_sent_is_what_the_caller_had_when_it_was_asked(tmp_path: Path) -> None:
    memory = page(key(0)).copy()
    store = KeyStore(Torn(tmp_path / "s", memory), PRINT, PAGE, wait=30.0)
    assert store.write([key(0)], [memory]) == [THERE] and not memory.any()
    assert right(store, key(0)) == [True]
    store.close()


def test_a_store_that_hangs_costs_a_wait_and_touches_nothing_later(tmp_path: Path) -> None:
    gated = GatedStore(tmp_path / "s")
    store = KeyStore(gated, PRINT, PAGE, wait=0.01, patience=0.01)
    gated.put_many([store.name_of(key(0))], [page(key(0))], 1e18)
    gated.hangs = True
    out = np.zeros(PAGE, np.uint8)
    assert store.read([key(0)], [out]) == [StoreMiss.LATE]
    until(lambda: store.hanging)
    assert store.read([key(0)], [out]) == [StoreMiss.UNREACHABLE] and not store.exist([key(0)], print)
    assert write(store, key(1)) == [StoreMiss.UNREACHABLE]
    gated.hangs = False
    gated.gate.set()
    until(lambda: not store.hanging)
    assert not out.any(), "what came late was put where the caller may have something else"
    until(lambda: there(store, key(0)) == [True])
    store.close()


def test_a_store_that_is_gone_is_a_miss_at_once_until_a_probe_finds_it(tmp_path: Path) -> None:
    gated, clock = GatedStore(tmp_path / "s"), FakeClock()
    store = KeyStore(gated, PRINT, PAGE, wait=30.0, clock=clock)
    assert write(store, key(0)) == [THERE]
    gated.fails = StoreMiss.UNREACHABLE
    assert right(store, key(0)) == [False] and store.hanging
    calls = gated.calls
    assert right(store, key(0)) == [False] and write(store, key(1)) == [StoreMiss.UNREACHABLE]
    assert gated.calls == calls
    gated.fails = None
    clock.now += 2 * FIRST_WAIT
    until(lambda: not store.hanging)
    assert right(store, key(0)) == [True]
    store.close()


def test_a_full_store_says_so_and_an_error_of_a_store_is_not_a_page(tmp_path: Path) -> None:
    gated = GatedStore(tmp_path / "s")
    store = KeyStore(gated, PRINT, PAGE, wait=30.0)
    gated.fails = StoreMiss.FULL
    assert write(store, key(0)) == [StoreMiss.FULL]
    gated.fails = None
    gated.get_many = lambda *_: 1 / 0  # type: ignore[assignment]
    (answer,) = store.read([key(0)], [np.zeros(PAGE, np.uint8)])
    assert "ZeroDivisionError" in answer
    store.close()


def test_closing_ends_though_a_call_hangs(tmp_path: Path) -> None:
    gated = GatedStore(tmp_path / "s")
    store = KeyStore(gated, PRINT, PAGE, wait=0.01)
    gated.hangs = True
    assert store.exist([key(0)], print)
    assert gated.reached.wait(60)
    store.close()
    gated.gate.set()
    assert right(store, key(0)) == [False]


def test_a_page_of_another_size_is_refused(tmp_path: Path) -> None:
    store = opened(str(tmp_path / "s"))
    for act in (store.write, store.read):
        with pytest.raises(InputError, match="pages here have 3000"):
            act([key(0)], [np.zeros(PAGE + 1, np.uint8)])
    store.close()
    for print_, size in ((b"short", PAGE), (PRINT, 0)):
        with pytest.raises(InputError):
            KeyStore(FolderStore(tmp_path), print_, size)
