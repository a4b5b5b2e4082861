"""MooncakeStore: pages in a Mooncake Store, which is a master and the memory of many machines. Room and eviction are
the master's; this process brings no memory of its own into the store.

    quire:<tag of the scope>:<digest>:<group>            header and page

Its client takes no deadline: a call that hangs blocks its thread only; its caller gives up and goes on
(calls/client.py). Knows no cache. Needs mooncake-transfer-engine, of which a build without CUDA will do, and
libibverbs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from quire.core.records.errors import InputError, MissingExtra, StateError, install_line, say
from quire.core.records.memory import parse_bytes
from quire.tiers.base import Bytes
from quire.tiers.page_digest import TAG_BYTES
from quire.tiers.shared.stores.bad_pages import BadPages
from quire.tiers.shared.stores.store import StoreError, StoreMiss
from quire.tiers.shared.stores.value import HEADER_BYTES, header, verdict

try:
    from mooncake.store import MooncakeDistributedStore
except ImportError as missing:
    fact = f"it needs Mooncake's client and libibverbs ({missing})"
    raise MissingExtra(say("a Mooncake store", fact, install_line("mooncake"))) from missing

T = TypeVar("T")
FORM = "mooncake://master:50051?local=ADDRESS_OF_THIS_MACHINE"
HANDSHAKE = "P2PHANDSHAKE"  # peers find each other without a metadata server
NO_ROOM = -200  # the master has no space for it, or evicts just now
CUT_OFF = range(-1099, -899)  # codes of calls that the master did not answer


class MooncakeStore:
    """Pages behind a master named by URL: `mooncake://host:50051?local=10.0.0.7`.

    `local` is the address under which storage nodes reach this machine (127.0.0.1 when left out), `protocol` tcp or
    rdma, `device` of the latter, `buffer` the memory through which pages pass: at least the bytes under way at once.
    """

    def __init__(self, url: str) -> None:
        self.name, self._setup = _parse(url)
        self._closed = False
        self._opening = Lock()
        self._client: Any = None
        self._put_ended = Condition()  # guards the next
        self._putting: set[str] = set()  # keys under way
        self._bad = BadPages()  # that this client has read

    def __repr__(self) -> str:
        return f"MooncakeStore({self.name})"

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Which are there."""
        return [code == 1 for code in self._codes(names, deadline)]

    def get_many(self, names: Sequence[bytes], into: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Fill the buffers; a page that the master knows and no node gives is FAILED."""
        keys = [_key(name) for name in names]
        once = list(dict.fromkeys(keys))  # of a key that stands twice in a batch it brings wrong bytes
        came: list[bytes] = self._ask(lambda client: client.get_batch(once), deadline) if once else []
        found = dict(zip(once, came or [b""] * len(once), strict=True))  # an empty list: all of it failed
        values = [found[key] for key in keys]
        answers: list[StoreMiss | None] = [
            _fill(name, page, value) for name, page, value in zip(names, into, values, strict=True)
        ]
        silent = [nth for nth, value in enumerate(values) if not value]
        codes = self._codes([names[nth] for nth in silent], deadline)
        for nth, code in zip(silent, codes, strict=True):
            answers[nth] = self._why_nothing(keys[nth], deadline) if code == 1 else StoreMiss.ABSENT
        reports = zip(names, answers, strict=True)
        self._bad.add(name for name, answer in reports if answer not in (None, StoreMiss.ABSENT))
        return answers

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Keep the pages. One that is there stays, unless it was found to be bad: then every reader would miss it."""
        pairs = {_key(name): (name, page) for name, page in zip(names, pages, strict=True)}
        with self._alone(frozenset(pairs), deadline):
            reports = self._put_pairs(pairs, deadline)
        return [reports[_key(name)] for name in names]

    def remove_scope(self, tag: bytes, deadline: float) -> int:
        """Take out every page of a scope, also while another client reads it."""
        removed: int = self._ask(lambda client: client.remove_by_regex(f"^quire:{tag.hex()}:.*", True), deadline)
        self._check(removed)
        return max(removed, 0)

    def close(self) -> None:
        """End the client; again: nothing."""
        with self._opening:
            client, self._client, self._closed = self._client, None, True
        if client is not None:
            client.close()

    def _put_pairs(self, pairs: dict[str, tuple[bytes, Bytes]], deadline: float) -> dict[str, StoreMiss | None]:
        values = {key: b"".join((header(name, page), page.data)) for key, (name, page) in pairs.items()}
        if not values:
            return {}
        if not any(name in self._bad for name, _ in pairs.values()):
            keys, raw = list(values), list(values.values())
            if self._ask(lambda client: client.put_batch(keys, raw), deadline) == 0:
                return dict.fromkeys(keys)
        return {key: self._put(name, values[key], deadline) for key, (name, _) in pairs.items()}  # which of them it is

    @contextmanager
    def _alone(self, keys: frozenset[str], deadline: float) -> Iterator[None]:
        """Wait until no other thread puts one of these: the second would hear that it is there already."""
        with self._put_ended:
            if not self._put_ended.wait_for(
                lambda: keys.isdisjoint(self._putting), max(0.0, deadline - time.monotonic())
            ):
                raise StoreError(self.name, StoreMiss.LATE, "another thread puts the same pages")
            self._putting |= keys
        try:
            yield
        finally:
            with self._put_ended:
                self._putting -= keys
                self._put_ended.notify_all()

    def _put(self, name: bytes, value: bytes, deadline: float) -> StoreMiss | None:
        key, bad = _key(name), name in self._bad
        code: int = self._ask(lambda client: (client.upsert if bad else client.put)(key, value), deadline)
        self._check(code)
        if code == 0:
            self._bad.discard([name])
        return None if code == 0 else StoreMiss.FULL if code == NO_ROOM else StoreMiss.FAILED

    def _codes(self, names: Sequence[bytes], deadline: float) -> list[int]:
        """Of each, 1: there, 0: not, less: the master could not say."""
        keys = [_key(name) for name in names]
        codes: list[int] = self._ask(lambda client: client.batch_is_exist(keys), deadline) if keys else []
        for code in codes:
            self._check(code)
        return codes

    def _why_nothing(self, key: str, deadline: float) -> StoreMiss:
        size: int = self._ask(lambda client: client.get_size(key), deadline)
        return StoreMiss.SIZE if size == 0 else StoreMiss.FAILED

    def _check(self, code: int) -> None:
        if code in CUT_OFF:
            raise StoreError(self.name, StoreMiss.UNREACHABLE, f"its master does not answer (code {code})")

    def _ask(self, act: Callable[[Any], T], deadline: float) -> T:
        if self._closed:
            raise StateError(say(f"shared store {self.name}", "it is closed", "open a new one"))
        if time.monotonic() >= deadline:
            raise StoreError(self.name, StoreMiss.LATE, "the deadline had passed")
        try:
            return act(self._open_client())
        except RuntimeError as error:  # what its client raises
            raise StoreError(self.name, StoreMiss.UNREACHABLE, f"RuntimeError: {str(error)[:300]}") from None

    def _open_client(self) -> Any:
        """The client; made with the first call, so that a store that is not up yet is not an error."""
        with self._opening:
            if self._client is None:
                client = MooncakeDistributedStore()
                code = client.setup(*self._setup)
                if code != 0:
                    raise StoreError(self.name, StoreMiss.UNREACHABLE, f"its master does not answer (code {code})")
                self._client = client
            return self._client


def _key(name: bytes) -> str:
    digest, group = name[TAG_BYTES:-2].hex(), int.from_bytes(name[-2:], "little")
    return f"quire:{name[:TAG_BYTES].hex()}:{digest}:{group}"


def _fill(name: bytes, page: Bytes, value: bytes) -> StoreMiss | None:
    if len(value) != HEADER_BYTES + page.nbytes:
        return StoreMiss.SIZE
    whole = memoryview(value)
    page.data[:] = whole[HEADER_BYTES:]
    return verdict(name, whole[:HEADER_BYTES], page)


def _parse(url: str) -> tuple[str, tuple[str, str, int, int, str, str, str]]:
    """What to call it, and what its client is set up with."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    given = {name: options.pop(name, other) for name, other in _OPTIONS.items()}
    if parts.scheme != "mooncake" or not parts.hostname or options:
        fact = f"it has {', '.join(options)}" if options else "it names no master"
        raise InputError(say(f"a Mooncake store {parts.scheme}://{parts.hostname or ''}", fact, f"write {FORM}"))
    master = f"{parts.hostname}:{parts.port or 50051}"
    room = parse_bytes(given["buffer"], "the buffer of a Mooncake store")
    setup = (given["local"], HANDSHAKE, 0, room, given["protocol"], given["device"], master)
    return f"mooncake://{master}", setup


_OPTIONS = {"local": "127.0.0.1", "protocol": "tcp", "device": "", "buffer": "128MiB"}
