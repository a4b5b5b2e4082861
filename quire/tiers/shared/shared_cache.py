"""SharedCache: a cache that uses a store which machines share. Owns the threads between them; made of `find` and
`writer` only, so whatever happens here the cache's own promises hold.

    fetch(request)     before it is claimed: pages from the store, into the host's memory
    publish(request)   after it was served: pages to the store
    forget(scope)      here and there

No call waits for the store but `forget` and `close`. Knows no engine.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from quire.core.cache import Cache
from quire.core.records.config import TierConfig
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.identity import Scope
from quire.core.records.memory import parse_bytes
from quire.core.records.request import Request
from quire.tiers.base import Tier, check_pools
from quire.tiers.page_digest import check_fingerprint, scope_tag
from quire.tiers.shared.audit import PageAudit
from quire.tiers.shared.calls.client import StoreClient
from quire.tiers.shared.calls.counters import StoreCounts
from quire.tiers.shared.calls.crew import Crew
from quire.tiers.shared.calls.host_room import HostRoom
from quire.tiers.shared.calls.quota import QuotaAccounts
from quire.tiers.shared.erase import Erase
from quire.tiers.shared.fetch import Fetch
from quire.tiers.shared.ground import SharedGround
from quire.tiers.shared.open_finds import OpenFinds
from quire.tiers.shared.publish import Publish, UseCounts
from quire.tiers.shared.rank_parts import Ranks, SharedRank, TiersRank
from quire.tiers.shared.shared_config import SharedConfig, open_store
from quire.tiers.shared.stores.store import SharedStore, StoreMiss
from quire.tiers.shared.turns import Turns

FETCHERS, MOST_FETCHES, MOST_TEXTS = 2, 64, 256  # threads, and jobs before them
MOST_SCOPES = 1 << 16  # that are remembered to be forgotten
CLOSING = 5.0  # seconds for what is under way


class Forgotten(NamedTuple):
    """Pages that are gone."""

    here: int
    store: int


class SharedCache:
    """A cache, the memory of its pages, and a store. `tiers` are for its use alone: no other thread calls them.

    With several ranks and one cache give no tiers, `ranks`, and a fingerprint for each: a page counts if every rank's
    part is there and sound. Where every rank has a cache of its own, give each the fingerprints of all, and its `rank`.
    `turns` are for caches whose sequences have recurrent states: run them between two steps, on the thread that makes
    plans.
    """

    def __init__(
        self, cache: Cache, tiers: Sequence[Tier], config: SharedConfig, fingerprint: bytes | Sequence[bytes], *,
        rank: int = 0, store: SharedStore | None = None, turns: Turns | None = None, ranks: Sequence[SharedRank] = (),
    ) -> None:  # fmt: skip
        self.config, self.cache = config, cache
        prints = (fingerprint,) if isinstance(fingerprint, bytes) else tuple(fingerprint)
        _check_prints(prints, rank)
        _check_states(cache, turns)
        if ranks:
            _check_ranks(cache, tiers, prints, ranks)
        else:
            _check_tiers(cache, tiers)
        into = len(_fast(cache)) - 1
        self.client = StoreClient(open_store(config) if store is None else store)
        batch = parse_bytes(config.batch_bytes, "a batch")
        self.finds = OpenFinds(cache)
        self.audit = PageAudit() if config.audit else None
        self._ranks = Ranks(ranks or [TiersRank(tiers, self.client, self.audit)])
        self._ground = SharedGround(cache, self._ranks, into, self.client, prints, rank, batch, self.finds, turns)
        pools = range(max(cache.config.pool_of[: len(self._ground.groups)]) + 1)
        self._room = HostRoom([int(cache.config.tiers[into].of_pool(pool) * config.host_share) for pool in pools])
        self._uses, self._accounts = UseCounts(config.min_uses), QuotaAccounts(config.quotas)
        self._scopes: OrderedDict[bytes, Scope] = OrderedDict()
        self._lock = Lock()
        self._openings = 0
        self._fetchers = Crew("fetch", FETCHERS, MOST_FETCHES, self.client.probe, self.client.breaker.seconds_to_probe)
        self._senders = Crew("publish", 1, MOST_TEXTS)
        self._closed = False

    def __repr__(self) -> str:
        return f"SharedCache({'closed' if self._closed else self.client!r})"

    @property
    def stopped(self) -> int:
        """Threads of its own that have ended though it is open."""
        return self._fetchers.stopped + self._senders.stopped

    def fetch(self, request: Request, wait: float | None = None) -> Fetch:
        """Bring what the store has of a request and the cache has not; never waits. Close what it returns.

        `wait` seconds are its deadline (None: as the config says). A store that cannot be reached brings nothing, at
        once.
        """
        self._check_open("fetch")
        deadline = time.monotonic() + (self.config.wait if wait is None else wait)
        fetch = Fetch(self._ground, self._room, request, deadline)
        blocks = self._ground.usable_blocks(request)
        if not blocks:
            fetch.refuse(StoreMiss.ABSENT)
        elif not self.client.reachable:
            self._refuse(fetch, StoreMiss.UNREACHABLE, blocks)
            self._fetchers.wake()
        elif not self._fetchers.submit(fetch):
            self._refuse(fetch, StoreMiss.BUSY, blocks)
        else:
            self._remember(request.scope)
        return fetch

    def _refuse(self, fetch: Fetch, why: StoreMiss, blocks: int) -> None:
        fetch.refuse(why)
        self.client.tally.missed(why, blocks)

    def publish(self, request: Request, *, edges: Sequence[int] = ()) -> bool:
        """Send what the cache has of a text that was served, as policy says; never waits. False: dropped, and counted.

        `edges` are places inside it behind which others may go on, such as the end of the prompt: for windows and
        states.
        """
        self._check_open("publish")
        blocks = self._ground.usable_blocks(request)
        if not self.config.min_uses or not blocks:
            return False
        self._note_openings()
        self._remember(request.scope)
        job = Publish(self._ground, self._uses, self._accounts, self.config.label, request, tuple(edges))
        if self._senders.submit(job):
            return True
        self.client.tally.dropped(StoreMiss.BUSY, blocks)
        return False

    def forget(self, scope: Scope, timeout: float = 30.0) -> Forgotten:
        """Forget a tenant, adapter or epoch: here, and every page in the store of the scopes known here that it covers.

        StoreError: the store did not answer, and may still have some. Scopes that this process has never seen, such
        as this tenant under an adapter that only others serve, are not known here: call it on the others as well.
        """
        self._check_open("forget")
        self._ground.forgets += 1  # before the cache forgets: what is under way finds one or the other
        here = self.cache.forget(scope)
        with self._lock:
            known = {key: one for key, one in self._scopes.items() if scope.covers(one)}
        known[scope.key] = scope
        prints = self._ground.fingerprints
        tags = [scope_tag(one, each) for each in known.values() for one in prints]
        erase = Erase(self.client, tags, time.monotonic() + timeout)
        if not self._senders.submit(erase):  # behind what is being sent, and before what comes later
            erase.run()
        there = erase.result(timeout)
        self._ground.known.clear()
        with self._lock:
            for key in known:
                self._scopes.pop(key, None)
        return Forgotten(here, there)

    def counts(self) -> StoreCounts:
        """What came, went and did not."""
        return self.client.counts()

    def wait_until_idle(self, timeout: float) -> bool:
        """Whether all that was asked for and offered so far is done, within so many seconds; for tests and ends."""
        end = time.monotonic() + timeout
        return self._fetchers.wait_until_idle(timeout) and self._senders.wait_until_idle(end - time.monotonic())

    def close(self, timeout: float = CLOSING) -> bool:
        """End the threads and the store; False: a call hangs, and its thread ends with it."""
        if self._closed:
            return True
        self._closed = self._ground.closing = True
        if self._ground.turns is not None:
            self._ground.turns.closed = True
        end = time.monotonic() + timeout
        clean = [crew.close(max(0.0, end - time.monotonic())) for crew in (self._senders, self._fetchers)]
        self._ranks.close()
        self.client.close()
        return all(clean)

    def __enter__(self) -> SharedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remember(self, scope: Scope) -> None:
        with self._lock:
            self._scopes.pop(scope.key, None)
            self._scopes[scope.key] = scope
            while len(self._scopes) > MOST_SCOPES:
                self._scopes.popitem(last=False)

    def _note_openings(self) -> None:
        """A store that was away may have come back empty."""
        if self._openings != self.client.breaker.num_openings:
            self._openings = self.client.breaker.num_openings
            self._ground.known.clear()

    def _check_open(self, act: str) -> None:
        if self._closed:
            raise StateError(say(f"{act} of a shared cache", "it is closed", "make a new one"))


def _check_states(cache: Cache, turns: Turns | None) -> None:
    """A state is copied by whatever plan comes next after its commit: that plan must run, in order."""
    states = [n for n, group in enumerate(cache.config.groups) if group.current and cache.config.slots_of(0, n)]
    if states and turns is None:
        fact = f"sequences of {cache.config.groups[states[0]].name!r} have states, whose copies are part of later plans"
        raise InputError(say("a shared cache", fact, "give it turns=Turns(), and run them between two steps"))


def _check_prints(prints: tuple[bytes, ...], rank: int) -> None:
    for one in prints:
        check_fingerprint(one)
    if type(rank) is not int or not 0 <= rank < len(prints):
        fact = f"{len(prints)} fingerprints are given"
        raise InputError(say(f"rank {shown(rank)} of a shared cache", fact, "give one for each rank, in order"))


def _fast(cache: Cache) -> list[TierConfig]:
    """Tiers that pages of the store go to; what is in a slow one comes up by itself."""
    return [tier for tier in cache.config.tiers if not tier.slow]


def _page_sizes(cache: Cache) -> tuple[int, ...]:
    sizes = tuple(group.page_bytes for group in cache.config.groups)
    if 0 in sizes:
        raise InputError(say("a shared cache", f"pages have {sizes} bytes", "say page_bytes in every layer group"))
    return sizes


def _check_tiers(cache: Cache, tiers: Sequence[Tier]) -> None:
    num_fast, sizes = len(_fast(cache)), _page_sizes(cache)
    if num_fast < 2 or len(tiers) != num_fast:
        fact = f"the cache has {num_fast} tiers, {len(tiers)} are given"
        raise InputError(say("a shared cache", fact, "give it the memory of a device and of a host"))
    for tier in tiers:
        if tier.info().page_bytes != sizes:
            fact = f"its pages have {tier.info().page_bytes} bytes, those of the cache {sizes}"
            raise InputError(say(f"tier {tier.info().name!r}", fact, "build both from the same layer groups"))
        check_pools(tier.info(), cache.config.pool_of)


def _check_ranks(cache: Cache, tiers: Sequence[Tier], prints: tuple[bytes, ...], ranks: Sequence[SharedRank]) -> None:
    ask = f"a shared cache of {len(ranks)} ranks"
    if tiers or len(_fast(cache)) < 2:
        fact = f"{len(tiers)} tiers are given besides, and the cache has {len(_fast(cache))}"
        raise InputError(say(ask, fact, "give tiers to the ranks, and the cache a device and a host"))
    if len(ranks) < 2 or len(prints) != len(ranks) or len(set(prints)) != len(ranks):
        fact = f"{len(prints)} fingerprints are given, {len(set(prints))} of them different"
        raise InputError(say(ask, fact, "give one for each of two ranks or more: fingerprint(..., rank=, world_size=)"))
    parts, sizes = [rank.page_bytes() for rank in ranks], _page_sizes(cache)
    if {len(part) for part in parts} != {len(sizes)} or tuple(map(sum, zip(*parts, strict=True))) != sizes:
        fact = f"their parts of a page have {parts} bytes, a page of the cache {sizes}"
        raise InputError(say(ask, fact, "give a layer group the bytes of all ranks' parts together"))
