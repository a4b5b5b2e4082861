"""RedisStore: pages in a Redis server. One round trip per batch; memory limit and eviction are the server's.

    quire:<tag of the scope>:<digest>:<group>            header and page, up to PART_BYTES
    quire:<tag of the scope>:<digest>:<group>:1 ...      the rest of a larger one, written before the first part

Knows no cache. Needs redis-py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from quire.core.records.errors import InputError, MissingExtra, StateError, install_line, say
from quire.tiers.base import Bytes
from quire.tiers.page_digest import TAG_BYTES
from quire.tiers.shared.stores.store import StoreError, StoreMiss
from quire.tiers.shared.stores.value import HEADER_BYTES, header, verdict

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as missing:
    raise MissingExtra(say("a Redis store", f"it needs redis-py ({missing})", install_line("redis"))) from missing

T = TypeVar("T")
PART_BYTES = 4 << 20  # a server serves one command at a time: larger values would keep others waiting
SOCKET_TIMEOUT = 2.0  # seconds until a server that says nothing counts as late
SCAN_COUNT = 1000
SCHEMES = ("redis", "rediss", "unix")


class RedisStore:
    """Pages in a server named by URL: `redis://user:password@host:6379/0`, `rediss://` (TLS), `unix:///path`.

    The password is in no repr, message or log. Set `maxmemory` and `maxmemory-policy allkeys-lru` there.
    """

    def __init__(self, url: str, *, timeout: float = SOCKET_TIMEOUT, part_bytes: int = PART_BYTES) -> None:
        self.name = _shown(url)
        self._secrets = _secrets(url)
        self._part = part_bytes
        self._closed = False
        try:
            pool: Any = redis.ConnectionPool.from_url(
                url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
            )
        except Exception as error:  # of its many ways to say that a URL is none, some quote it
            fact = f"redis-py does not take it ({type(error).__name__}: {self._hidden(str(error))})"
            raise InputError(say(f"store {self.name}", fact, "write redis://user:password@host:6379/0")) from None
        pool.connection_kwargs["decode_responses"] = False  # pages are bytes, whatever the URL says
        self._client: Any = redis.Redis(connection_pool=pool)

    def __repr__(self) -> str:
        return f"RedisStore({self.name})"

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Which are there."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.exists(_key(name))
        answers = self._ask(lambda: pipe.execute(raise_on_error=False), deadline) if names else []
        self._raise_first(answers)
        return [bool(answer) for answer in answers]

    def get_many(self, names: Sequence[bytes], into: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Fill the buffers."""
        keys = [self._keys(name, page.nbytes) for name, page in zip(names, into, strict=True)]
        flat = [key for some in keys for key in some]
        values: list[bytes | None] = self._ask(lambda: self._client.mget(flat), deadline) if flat else []
        answers, at = [], 0
        for name, page, some in zip(names, into, keys, strict=True):
            answers.append(_fill(name, page, values[at : at + len(some)]))
            at += len(some)
        return answers

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Keep the pages."""
        pipe = self._client.pipeline(transaction=False)
        parts = [self._keys(name, page.nbytes) for name, page in zip(names, pages, strict=True)]
        for name, page, keys in zip(names, pages, parts, strict=True):
            value = memoryview(b"".join((header(name, page), page.data)))
            for nth in reversed(range(len(keys))):  # the first part last: it stands for all
                pipe.set(keys[nth], value[nth * self._part : (nth + 1) * self._part])
        answers = self._ask(lambda: pipe.execute(raise_on_error=False), deadline) if names else []
        self._raise_first([answer for answer in answers if isinstance(answer, Exception) and not _is_full(answer)])
        given: list[StoreMiss | None] = []
        at = 0
        for keys in parts:
            failed = any(isinstance(answer, Exception) for answer in answers[at : at + len(keys)])
            given.append(StoreMiss.FULL if failed else None)
            at += len(keys)
        torn = [key for keys, miss in zip(parts, given, strict=True) if miss and len(keys) > 1 for key in keys]
        if torn:  # parts of a page that did not fit whole would take room for nothing
            self._ask(partial(self._client.unlink, *torn), deadline)
        return given

    def remove_scope(self, tag: bytes, deadline: float) -> int:
        """Take out every page of a scope."""
        cursor, removed, pattern = 0, 0, f"quire:{tag.hex()}:*"
        while True:
            cursor, keys = self._ask(partial(self._client.scan, cursor, pattern, SCAN_COUNT), deadline)
            if keys:
                self._ask(partial(self._client.unlink, *keys), deadline)
                removed += sum(key.count(b":") == 3 for key in keys)
            if not cursor:
                return removed

    def close(self) -> None:
        """End the connections."""
        self._closed = True
        self._client.close()
        self._client.connection_pool.disconnect()

    def _keys(self, name: bytes, page_bytes: int) -> list[bytes]:
        first, parts = _key(name), -(-(HEADER_BYTES + page_bytes) // self._part)
        return [first, *(first + b":%d" % part for part in range(1, parts))]

    def _ask(self, act: Callable[[], T], deadline: float) -> T:
        """One round trip; whatever the client library raises is said in our words."""
        if self._closed:
            raise StateError(say(f"shared store {self.name}", "it is closed", "open a new one"))
        if time.monotonic() >= deadline:
            raise StoreError(self.name, StoreMiss.LATE, "the deadline had passed")
        try:
            return act()
        except redis.TimeoutError as error:
            raise StoreError(self.name, StoreMiss.LATE, self._hidden(str(error))) from None
        except (redis.RedisError, OSError) as error:
            raise self._error(error) from None

    def _raise_first(self, answers: Sequence[object]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._error(answer)

    def _error(self, wrong: Exception) -> StoreError:
        fact = f"{type(wrong).__name__}: {self._hidden(str(wrong))}"
        return StoreError(self.name, StoreMiss.FULL if _is_full(wrong) else StoreMiss.UNREACHABLE, fact)

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:300]


def _key(name: bytes) -> bytes:
    digest, group = name[TAG_BYTES:-2].hex(), int.from_bytes(name[-2:], "little")
    return f"quire:{name[:TAG_BYTES].hex()}:{digest}:{group}".encode()


def _fill(name: bytes, page: Bytes, parts: Sequence[bytes | None]) -> StoreMiss | None:
    """A page from its parts."""
    if parts[0] is None:
        return StoreMiss.ABSENT
    if any(part is None for part in parts):
        return StoreMiss.ABSENT  # the server has evicted one of them
    whole = memoryview(parts[0]) if len(parts) == 1 else memoryview(b"".join(part for part in parts if part))
    if len(whole) != HEADER_BYTES + page.nbytes:
        return StoreMiss.SIZE
    page.data[:] = whole[HEADER_BYTES:]
    return verdict(name, whole[:HEADER_BYTES], page)


def _is_full(wrong: Exception) -> bool:
    return isinstance(wrong, redis.OutOfMemoryError)


def _secrets(url: str) -> list[str]:
    """The parts of a URL that must not be shown, as written and as decoded; longest first."""
    parts = urlsplit(url)
    found = {parts.password or "", unquote(parts.password or ""), parts.query, unquote(parts.query)}
    return sorted(found - {""}, key=len, reverse=True)


def _shown(url: str) -> str:
    """Where it is: scheme, host, port and database, or the socket."""
    if not isinstance(url, str):
        raise InputError(say("a Redis store", f"its URL is a {type(url).__name__}", "write redis://host:6379/0"))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError(say("a Redis store", "its URL is none", "write redis://host:6379/0")) from None
    if parts.scheme not in SCHEMES:
        raise InputError(say("a Redis store", f"its scheme is {parts.scheme!r}", f"use {', '.join(SCHEMES)}"))
    where = parts.hostname or ""
    return f"{parts.scheme}://{where}{f':{port}' if port else ''}{parts.path}"
