"""A real Redis as a shared store: the suite over tcp and a unix socket, large pages, full servers, passwords."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

from quire.core.records.errors import InputError
from quire.tiers.shared import SharedConfig, SharedStore, StoreError, StoreMiss, open_store
from quire.tiers.shared.stores.redis_store import RedisStore, _key
from tests.tiers.shared.redis_server import RedisServer
from tests.tiers.shared.store_suite import SIZE, StoreSuite, empty, got, name, page, soon
from tests.waits import PATIENCE, until


class TestRedisStore(StoreSuite):
    @pytest.fixture(params=["tcp", "unix", "small parts"])
    def store(self, request: pytest.FixtureRequest, empty_redis: RedisServer) -> Iterator[SharedStore]:
        url = f"unix://{empty_redis.socket}?db=0" if request.param == "unix" else empty_redis.url
        store = RedisStore(url, part_bytes=300 if request.param == "small parts" else 1 << 20)
        yield store
        store.close()

    def damage(self, store: SharedStore, of: bytes, change: str) -> None:
        assert isinstance(store, RedisStore)
        client: Any = store._client
        keys = store._keys(of, SIZE)
        raw = [bytearray(client.get(key)) for key in keys]
        match change:
            case "flip":
                raw[-1][-3] ^= 1
            case "cut":
                del raw[-1][-1:]
            case "lengthen":
                raw[-1] += b"\0"
            case "empty":
                raw[0].clear()
            case "newer":
                raw[0][4:6] = struct.pack("<H", 2)
            case "magic":
                raw[0][0] ^= 0xFF
            case "swap":
                raw = [bytearray(client.get(key)) for key in store._keys(name(0), SIZE)]
        for key, value in zip(keys, raw, strict=True):
            client.set(key, bytes(value))


def commands(store: RedisStore) -> int:
    """Commands that the server has served."""
    return int(store._client.info("stats")["total_commands_processed"])


def reads(store: RedisStore) -> int:
    """How often the server has read from a connection: one for a round trip of little data."""
    return int(store._client.info("stats")["total_reads_processed"])


def test_a_batch_is_one_round_trip(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url)
    names, small = [name(n) for n in range(50)], [page(n, 8) for n in range(50)]
    store.put_many(names, small, soon())
    before = reads(store)
    store.exists_many(names, soon())
    store.get_many(names, empty(50, 8), soon())
    assert reads(store) - before <= 4  # two, the question itself, and one that the kernel may cut in two
    store.close()


def test_large_pages_are_cut_and_a_lost_part_is_a_miss(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, part_bytes=1000)
    store.put_many([name(1)], [page(1, 5000)], soon())
    assert len(store._client.keys("*")) == 6
    assert np.array_equal(got(store, [name(1)], 5000)[0], page(1, 5000))
    store._client.delete(_key(name(1)) + b":3")
    assert got(store, [name(1)], 5000) == [StoreMiss.ABSENT]
    assert store.remove_scope(name(1)[:16], soon()) == 1 and not store._client.keys("*")
    store.close()


def test_a_full_server_that_does_not_evict_says_so_and_goes_on_serving(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url)
    store.put_many([name(0)], [page(0, 1 << 20)], soon())
    store._client.config_set("maxmemory-policy", "noeviction")
    store._client.config_set("maxmemory", "1mb")
    assert store.put_many([name(1)], [page(1, 1 << 20)], soon()) == [StoreMiss.FULL]
    assert np.array_equal(got(store, [name(0)], 1 << 20)[0], page(0, 1 << 20))
    store._client.config_set("maxmemory", "0")
    assert store.put_many([name(1)], [page(1, 1 << 20)], soon()) == [None]
    store.close()


def test_a_server_that_evicts_forgets_pages_and_never_serves_wrong_ones(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, part_bytes=64 << 10)
    store._client.config_set("maxmemory-policy", "allkeys-lru")
    store._client.config_set("maxmemory", "8mb")
    size, wrong, absent = 200_000, 0, 0
    for number in range(80):
        assert store.put_many([name(number)], [page(number, size)], soon()) == [None]
    for number, one in enumerate(got(store, [name(n) for n in range(80)], size)):
        absent += one is StoreMiss.ABSENT
        wrong += not isinstance(one, StoreMiss) and not np.array_equal(one, page(number, size))
    assert wrong == 0 and 20 < absent < 80
    store.close()


def is_there(store: RedisStore) -> bool:
    """A busy machine may be late as well."""
    try:
        return store.exists_many([name(1)], soon()) == [True]
    except StoreError as late:
        assert late.miss is StoreMiss.LATE
        return False


def test_a_server_that_says_nothing_is_late_and_one_that_is_gone_unreachable(redis_server: RedisServer) -> None:
    store, others = RedisStore(redis_server.url, timeout=0.1), RedisStore(redis_server.url, timeout=PATIENCE)
    others.put_many([name(1)], [page(1)], soon())
    until(lambda: is_there(store), "an answer within 0.1 s")
    others._client.execute_command("CLIENT", "PAUSE", "60000", "ALL")
    with pytest.raises(StoreError) as caught:
        store.get_many([name(1)], empty(1), soon())
    assert caught.value.miss is StoreMiss.LATE
    redis_server.kill()
    with pytest.raises(StoreError) as caught:
        store.exists_many([name(1)], soon())
    assert caught.value.miss is StoreMiss.UNREACHABLE
    redis_server.start()
    assert store.exists_many([name(1)], soon()) == [False]
    store.close()


def test_a_password_is_used_and_never_told(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    RedisStore(redis_server.url)._client.config_set("requirepass", "pa ss/w0rd")
    place = redis_server.url.removeprefix("redis://")
    good = RedisStore(f"redis://default:pa%20ss%2Fw0rd@{place}")
    assert good.put_many([name(1)], [page(1)], soon()) == [None]
    bad = RedisStore(f"redis://default:wrong-secret@{place}")
    told = [repr(good), good.name, repr(bad), repr(SharedConfig(f"redis://u:hidden-word@{place}"))]
    for act in (bad.exists_many, RedisStore(redis_server.url).exists_many):
        with pytest.raises(StoreError) as caught:
            act([name(1)], soon())
        told += [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    text = " ".join([*told, caplog.text])
    assert "127.0.0.1" in text
    for secret in ("pa ss", "pa%20ss", "wrong-secret", "hidden-word"):
        assert secret not in text


def test_a_server_that_tells_the_password_is_not_quoted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(4096)
                line.sendall(b"-WRONGPASS hunter two is wrong, and so is hunter%20two\r\n" * 4)
                line.recv(4096)

        thread = Thread(target=answer)
        thread.start()
        store = RedisStore(f"redis://user:hunter%20two@127.0.0.1:{server.getsockname()[1]}/0", timeout=120)
        with pytest.raises(StoreError) as caught:
            store.exists_many([name(1)], soon())
        store.close()
        thread.join()
    assert "***" in str(caught.value) and "hunter" not in str(caught.value)


def test_a_page_that_did_not_fit_whole_is_not_there(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, part_bytes=1 << 20)
    used = int(store._client.info("memory")["used_memory"])
    full = 0
    for halves in range(1, 20):
        store._client.config_set("maxmemory", used + (halves << 19))
        (answer,) = store.put_many([name(halves)], [page(1, 7 << 19)], soon())
        assert store.exists_many([name(halves)], soon()) == [answer is None]
        assert store._client.dbsize() == (0 if answer is StoreMiss.FULL else 4)
        store._client.flushall()
        full += answer is StoreMiss.FULL
    assert 2 < full < 19
    store.close()


@pytest.mark.parametrize(
    "url",
    ["http://h/0", "redis://h:port/0", "redis://u:top-secret@h:99999999/0", "redis://h/0?socket_timeout=top-secret"],
)
def test_a_url_that_is_none_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(InputError) as caught:
        RedisStore(url)
    assert "top-secret" not in str(caught.value) and caught.value.__cause__ is None


def test_a_store_is_opened_by_its_name(redis_server: RedisServer, tmp_path: object) -> None:
    for place in (redis_server.url, str(tmp_path)):
        store = open_store(SharedConfig(place))
        store.put_many([name(1)], [page(1)], soon())
        assert np.array_equal(got(store, [name(1)])[0], page(1))
        store.close()
