"""Unusable pages of a store: the machine that reads one puts a sound page in its place."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from quire.tiers.shared import FolderStore, SharedConfig, SharedStore, StoreMiss, open_store
from quire.tiers.shared.stores.bad_pages import BadPages
from quire.tiers.shared.stores.file_calls import FileCalls
from quire.tiers.shared.stores.folder_sweep import sweep
from quire.tiers.shared.stores.redis_store import RedisStore
from quire.tiers.shared.stores.value import HEADER_BYTES
from tests.tiers.shared.machine import FULL, Machine, text
from tests.tiers.shared.redis_server import RedisServer
from tests.tiers.shared.store_suite import SIZE, got, name, page
from tests.tiers.shared.test_folder_store import aged

Change = Callable[[bytearray], None]


def flip(raw: bytearray) -> None:
    raw[-3] ^= 1


def cut(raw: bytearray) -> None:
    del raw[-5:]


def spoil_number(raw: bytearray) -> None:
    raw[5] ^= 4  # of the format: no version writes that one


def row(closing: ExitStack, place: SharedStore | str, *groups: object, **settings: object) -> list[Machine]:
    machines = [Machine(place, *groups, **settings) for _ in range(3)]  # type: ignore[arg-type]
    for one in machines:
        closing.callback(one.close)
    return machines


def name_of(machine: Machine, block: int) -> bytes:
    """Of a page of text 1."""
    return machine.shared._ground.digests(machine.request(text(1)), 6)[0].page(block, 0)


def change_page(machine: Machine, place: str, block: int, change: Change) -> None:
    """Change what lies in the store as a page of text 1, behind the store's back."""
    of = name_of(machine, block)
    store = open_store(SharedConfig(place))
    if isinstance(store, FolderStore):
        raw = bytearray(store._path(of).read_bytes())
        change(raw)
        store._path(of).write_bytes(raw)
    else:
        assert isinstance(store, RedisStore)
        (key,) = store._keys(of, FULL.page_bytes)
        raw = bytearray(store._client.get(key))
        change(raw)
        store._client.set(key, bytes(raw))
    store.close()


@pytest.mark.parametrize("change", [flip, cut, spoil_number])
def test_the_machine_that_finds_a_bad_page_replaces_it(place: str, closing: ExitStack, change: Change) -> None:
    first, second, third = row(closing, place)
    first.serve(text(1))
    first.settle()
    change_page(first, place, 3, change)
    assert second.serve(text(1)) == 12
    second.settle()
    assert second.shared.counts().sent == 1, "the bad one, and no other"
    assert third.serve(text(1)) == 20
    assert third.shared.counts().misses == {}
    second.serve(text(1))
    second.settle()
    assert second.shared.counts().sent == 1, "once"


def test_a_store_full_of_bad_pages_is_mended_by_one_reader(place: str, closing: ExitStack) -> None:
    """Although that machine reads the first batch of them only: it computes the others as well."""
    first, second, third = row(closing, place, batch_bytes=96)
    first.serve(text(1))
    first.settle()
    for block in (1, 2, 4):
        change_page(first, place, block, flip)
    assert second.serve(text(1)) == 4
    second.settle()
    assert third.serve(text(1)) == 20 and third.shared.counts().misses == {}


def test_a_bad_page_needs_no_second_use_and_a_reader_replaces_none(place: str, closing: ExitStack) -> None:
    first, second, third = row(closing, place, min_uses=2)
    for _ in range(2):
        first.serve(text(1))
        first.settle()
    change_page(first, place, 3, flip)
    reader = Machine(place, min_uses=0)
    closing.callback(reader.close)
    assert reader.serve(text(1)) == 12
    reader.settle()
    assert reader.shared.counts().sent == 0
    assert second.serve(text(1)) == 12
    second.settle()
    assert second.shared.counts().sent == 1
    assert third.serve(text(1)) == 20


def test_a_page_that_cannot_be_read_is_replaced(tmp_path: Path, closing: ExitStack) -> None:
    class OneBadSector(FileCalls):
        """Fails to read one file, until another is put in its place."""

        inode = 0

        def read(self, number: int, into: object) -> int:
            if os.fstat(number).st_ino == self.inode:
                raise OSError(errno.EIO, "bad sector")
            return super().read(number, into)  # type: ignore[arg-type]

    calls = OneBadSector()
    store = FolderStore(tmp_path, files=calls)
    first, second, third = row(closing, store)
    first.serve(text(1))
    first.settle()
    path = store._path(name_of(first, 3))
    closing.enter_context(path.open("rb"))  # no other file gets its number meanwhile
    calls.inode = path.stat().st_ino
    assert second.serve(text(1)) == 12 and second.shared.counts().misses == {"failed": 1}
    second.settle()
    assert third.serve(text(1)) == 20


def test_a_page_that_has_lost_a_part_is_sent_again(empty_redis: RedisServer, closing: ExitStack) -> None:
    """The server evicts parts one by one, and the first, which is asked for, is young: it is read each time."""
    store = RedisStore(empty_redis.url, part_bytes=40)
    first, second, third = row(closing, store)
    first.serve(text(1))
    first.settle()
    of = name_of(first, 3)
    assert store._client.delete(store._keys(of, FULL.page_bytes)[2]) == 1
    assert second.serve(text(1)) == 12 and second.shared.counts().misses == {"absent": 1}
    second.settle()
    assert third.serve(text(1)) == 20


def test_a_bad_page_that_is_read_grows_old(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in range(10):
        aged(store, number, minutes=100 - number)
    path = store._path(name(0))
    then = path.stat().st_mtime
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    os.utime(path, (then, then))
    assert got(store, [name(0)])[0] in (StoreMiss.DAMAGED, StoreMiss.SIZE) and got(store, [name(9)])
    assert path.stat().st_mtime == then
    sweep(tmp_path, 9 * (SIZE + HEADER_BYTES), float("inf"))
    assert store.exists_many([name(0), name(9)], float("inf")) == [False, True]
    assert got(store, [name(9)])[0].tobytes() == page(9).tobytes()  # type: ignore[union-attr]


def test_a_page_of_a_newer_version_is_left_alone_and_the_cure_is_logged_once(
    place: str, closing: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = row(closing, place)
    first.serve(text(1))
    first.settle()

    def be_newer(raw: bytearray) -> None:
        raw[4] = 2

    change_page(first, place, 3, be_newer)
    with caplog.at_level(logging.WARNING, "quire.shared"):
        for machine in (second, third):
            assert machine.serve(text(1)) == 12
            machine.settle()
            assert machine.shared.counts().misses == {"format": 1} and machine.shared.counts().sent == 0
        with second.fetch(text(1)):
            pass
    assert caplog.text.count("upgrade this machine") == 2, "once for each machine"


def test_names_of_bad_pages_are_bounded_and_the_latest_stay() -> None:
    bad = BadPages(most=3)
    bad.add([b"a", b"b", b"c"])
    bad.add([b"a", b"d"])
    assert len(bad) == 3 and [one in bad for one in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    bad.discard([b"a", b"b"])
    assert len(bad) == 2 and b"a" not in bad
