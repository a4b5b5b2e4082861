"""A storm: one or two sender ranks and a receiver on a virtual clock, and everything that can go wrong between them.

Messages are delayed, repeated, reordered and lost, writes take their time or never end, either side cancels, freezes or
dies at any moment. Pages are kept in a ledger that gives a released slot to the next owner at once, scribbled over: a
write that lands in a page with another owner, or reads one, is seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from quire import LayerGroup, Request, Span
from quire.transfer.endpoint import Endpoint
from quire.transfer.geometry.byte_rows import Rows
from quire.transfer.geometry.ranks import Grid, Source
from quire.transfer.geometry.shards import PageShape, Section, Shard
from quire.transfer.geometry.slices import nowhere
from quire.transfer.links.local import LocalHub, LocalLink
from quire.transfer.session.endpoint_registry import Session
from quire.transfer.views.view import CacheShape, Landing, Offer
from quire.transfer.wire.aux import Aux
from quire.transfer.wire.layout import layout_of
from quire.transfer.wire.verdict import Key, Limits, Verdict

SIZE, BLOCKS, SLOTS = 2, 4, 16
LENGTH = SIZE * BLOCKS
PAGE = 8
LIMITS = Limits(lease=4, transfer=6, grace=5, parked=9)
HORIZON = 40.0
AGAIN, GIVE_UP = 0.1, 15.0  # who cannot ask yet asks again
FIRST = Aux(first_tokens=(1,))


def byte_of(content: bytes, ordinal: int) -> int:
    return (crc32(content) + 31 * ordinal) % 251


class Ledger:
    """A cache of one group that knows who owns each slot."""

    def __init__(self, page_bytes: int) -> None:
        self.made = CacheShape((LayerGroup("full", page_bytes=page_bytes),), SIZE)
        self.page = np.zeros((SLOTS, page_bytes), np.uint8)
        self.owners: list[object] = [None] * SLOTS
        self.committed: list[Landing] = []
        self.next = 0

    def shape(self) -> CacheShape:
        return self.made

    def _take(self, owner: object, count: int) -> list[int]:
        """The slot that was freed last comes first: reuse as early as it can be."""
        free = [slot for slot in range(SLOTS) if self.owners[slot] is None]
        free.sort(key=lambda slot: (slot - self.next) % SLOTS)
        for slot in free[:count]:
            self.owners[slot] = owner
        return free[:count]

    def offer(self, id: Hashable, span: Span) -> Offer | None:
        content = str(id).encode()
        owner, places = object(), nowhere(BLOCKS)
        for ordinal in range(-(-span.start // SIZE), -(-span.end // SIZE)):
            slots = self._take(owner, 1)
            if not slots:
                self._free(owner)
                return None
            places[ordinal] = slots[0]
            self.page[slots[0]] = byte_of(content, ordinal)
        return Offer(LENGTH, (places,), LENGTH, content, owner)

    def want(self, request: Request, *, one_start: bool = False) -> Landing | None:
        owner, places = object(), nowhere(BLOCKS)
        held = int(request.tokens[0])
        slots = self._take(owner, BLOCKS - held)
        if len(slots) < BLOCKS - held:
            self._free(owner)
            return None
        places[held:] = slots
        needs = ((Span(0, BLOCKS),),)
        return Landing(LENGTH, needs, ((Span(0, held),),), (places,), 0, str(request.id).encode(), owner)

    def commit(self, landing: Landing) -> None:
        held = landing.held[0][0].end
        for ordinal in range(held, BLOCKS):
            slot = int(landing.places[0][ordinal])
            assert (self.page[slot] == byte_of(landing.content, ordinal)).all(), "delivered, and the bytes are wrong"
        self.committed.append(landing)
        self._free(landing.ref)

    def release(self, held: Offer | Landing) -> None:
        self._free(held.ref)

    def _free(self, owner: object) -> None:
        for slot in range(SLOTS):
            if self.owners[slot] is owner:
                self.owners[slot] = None
                self.page[slot] = 255
                self.next = slot

    @property
    def num_used(self) -> int:
        return sum(owner is not None for owner in self.owners)


class Watched(LocalLink):
    """Sees every byte land: its pages must belong to the session whose door it came through."""

    ledger: Ledger
    endpoint: Endpoint

    def fill(self, source: LocalLink, rows: Rows) -> None:
        owners = {a.landing.ref for a in self.endpoint._registry.arrivals.values() if a.landing is not None}
        assert isinstance(source, Watched)
        width, theirs = self.ledger.page.shape[1], source.ledger.page.shape[1]
        for _, start, target, size in rows.tolist():
            for slot in range(target // width, (target + size - 1) // width + 1):
                assert self.ledger.owners[slot] in owners, "a write into a page that has another owner"
            for slot in range(start // theirs, (start + size - 1) // theirs + 1):
                assert source.dead or source.ledger.owners[slot] is not None, "a read of a page that was given back"
        super().fill(source, rows)


def check_index(end: Endpoint) -> None:
    """Each peer's sessions are found by its name: all of them, and none that is over."""
    registry = end._registry
    sent, received = set(), set()
    for key, dispatch in registry.dispatches.items():
        sent |= {(peer, key) for peer in dispatch.session.receivers}
    for key, arrival in registry.arrivals.items():
        received |= {(peer, key) for peer in arrival.session.writers}
    for index, pairs in ((registry.sent_to, sent), (registry.received_from, received)):
        peers = {peer for peer, _ in pairs}
        assert len(index) == len(peers) and {(p, key) for p in peers for key in index.keys_of(p)} == pairs


@dataclass
class Storm:
    """One schedule, from its seed."""

    seed: int
    backwards: bool = False  # poll in the other order, and ask questions all the time
    now: float = 0.0
    sessions: dict[tuple[str, Key], Session] = field(default_factory=dict)
    first: dict[tuple[str, Key], Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.counts: dict[tuple[str, str, str], int] = {}
        self.rough = rng.random() < 0.7
        self.hub = LocalHub(lambda: self.now, self.fate, fenced=rng.random() < 0.6)
        self.ranks = rng.choice((1, 1, 2))
        self.names = [f"p{rank}" for rank in range(self.ranks)]
        self.ledgers: dict[str, Ledger] = {}
        self.ends: dict[str, Endpoint] = {}
        grid = Grid(tensor=self.ranks)
        for rank, name in enumerate(self.names):
            width = PAGE // self.ranks
            page = PageShape((0,), (Section("kv", width, Shard(self.ranks, rank)),))
            self._add(name, width, page, grid, rank)
        self._add("d", PAGE, PageShape((0,), (Section("kv", PAGE),)), Grid(), 0)
        self.source = Source(tuple(self.names), grid)
        self.frozen: dict[str, float] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []

    def _add(self, name: str, width: int, page: PageShape, grid: Grid, rank: int) -> None:
        ledger = self.ledgers[name] = Ledger(width)
        link = Watched(self.hub, name, [ledger.page])
        self.hub.links[name] = link
        layout = layout_of(ledger.shape(), name, pages=[page], grid=grid, rank=rank)
        self.ends[name] = Endpoint(link, ledger, layout, limits=LIMITS, clock=lambda: self.now)
        link.ledger, link.endpoint = ledger, self.ends[name]

    def fate(self, what: str, source: str, target: str) -> Sequence[float]:
        """The nth thing from here to there has the same fate in whatever order peers are polled."""
        nth = self.counts[what, source, target] = self.counts.get((what, source, target), 0) + 1
        rng = random.Random(f"{self.seed} {what} {source} {target} {nth}")
        if not self.rough:
            return (rng.uniform(0.01, 0.2),)
        if rng.random() < 0.02 and what != "moved":
            return ()
        slow = 9.0 if what == "write" and rng.random() < 0.1 else 1.5
        delays = [rng.uniform(0.01, slow) for _ in range(2 if what == "message" and rng.random() < 0.15 else 1)]
        return sorted(delays)

    # -- what happens ------------------------------------------------------------------------------------------------

    def schedule(self) -> list[tuple[float, Callable[[], None]]]:
        rng, acts = self.rng, []
        for nth in range(rng.choice((1, 2, 3))):
            request, epoch = f"r{nth}", 0
            for epoch in range(rng.choice((1, 1, 2))):
                key, begin = Key(request, epoch), rng.uniform(0, 4) + 3 * epoch
                comes = [name for name in self.names if rng.random() < 0.95]
                acts += [(begin + rng.uniform(0, 3), self._send(name, key)) for name in comes]
                acts.append((begin + rng.uniform(0, 3), self._receive(key, rng.randrange(BLOCKS + 1))))
                for name in (*self.names, "d"):
                    if rng.random() < 0.12:
                        acts.append((begin + rng.uniform(0, 6), self._cancel(name, key)))
        for name in (*self.names, "d"):
            if rng.random() < 0.12:
                acts.append((rng.uniform(0, 9), self._kill(name)))
            elif rng.random() < 0.15:
                acts.append((rng.uniform(0, 6), self._freeze(name, rng.uniform(1, 12))))
        return sorted(acts, key=lambda act: act[0])

    def _send(self, name: str, key: Key) -> Callable[[], None]:
        cut = self.rng.choice((None, 3, 4, 6))

        def act() -> None:
            end = self.ends.get(name)
            if end is None or end.stuck:
                return
            self.sessions[name, key] = end.send(key, key.request)
            if cut is not None:
                end.put(key, cut, last=False)
            if not end.put(key, LENGTH, last=True, aux=FIRST):
                end.cancel(key, "no room")

        return act

    def _receive(self, key: Key, held: int) -> Callable[[], None]:
        def act() -> None:
            end = self.ends.get("d")
            if end is None or end.stuck:
                return
            request = Request(key.request, np.array([held], np.int32))
            session = end.receive(key, request, self.source)
            if session is not None:
                self.sessions["d", key] = session
            elif self.now < GIVE_UP:
                self.later.append((self.now + AGAIN, act))

        return act

    def _cancel(self, name: str, key: Key) -> Callable[[], None]:
        return lambda: self.ends[name].cancel(key) if name in self.ends else None

    def _kill(self, name: str) -> Callable[[], None]:
        def act() -> None:
            self.hub.kill(name)
            self.ends.pop(name, None)

        return act

    def _freeze(self, name: str, seconds: float) -> Callable[[], None]:
        def act() -> None:
            self.frozen[name] = self.now + seconds

        return act

    # -- and how it ends ---------------------------------------------------------------------------------------------

    def run(self) -> dict[str, str]:
        """Play it; check all that must hold; what became of every session."""
        acts = self.schedule()
        while self.now < HORIZON and (acts or self.hub.due() is not None or not self._idle()):
            times = [HORIZON, self.now + 1.0]
            if acts:
                times.append(acts[0][0])
            due = self.hub.due()
            if due is not None:
                times.append(due)
            self.now = max(self.now + 1e-6, min(times))
            while acts and acts[0][0] <= self.now:
                acts.pop(0)[1]()
            acts, self.later = sorted([*acts, *self.later], key=lambda act: act[0]), []
            self.hub.run(self.now)
            for name in sorted(self.ends, reverse=self.backwards):
                if self.frozen.get(name, 0.0) <= self.now:
                    self.ends[name].step()
            for name_key, session in self.sessions.items():
                if session.verdict is not None:
                    assert self.first.setdefault(name_key, session.verdict) == session.verdict, "a verdict has changed"
            if self.backwards:
                self._ask_around()
        self._check()
        return {f"{name} {key}": str(session.verdict) for (name, key), session in self.sessions.items()}

    def _idle(self) -> bool:
        registry = [end._registry for end in self.ends.values()]
        return not any(b.dispatches or b.arrivals or b.early.asks or b.early.cancels for b in registry)

    def _ask_around(self) -> None:
        for session in self.sessions.values():
            _ = session.verdict, session.quiet, session.silent
        for end in self.ends.values():
            end.vote()
            check_index(end)

    def _check(self) -> None:
        for name, end in self.ends.items():
            registry, stuck = end._registry, end.stuck
            left = [s for s in self.sessions if s[0] == name and self.sessions[s].verdict is None]
            assert not left, f"no verdict for {left}"
            open_keys = {*registry.dispatches, *registry.arrivals}
            assert open_keys == {session.key for session in stuck}, "a session was forgotten"
            assert not stuck or not self.hub.fenced, "stuck on a link that can prove"
            assert not registry.early.asks and not registry.early.cancels and not registry.expected
            kept = sum(int((a.landing.places[0] >= 0).sum()) for a in registry.arrivals.values() if a.landing)
            kept += sum(int((o.places[0] >= 0).sum()) for d in registry.dispatches.values() for o in d.offers)
            assert self.ledgers[name].num_used == kept, "pages leaked"
            assert stuck or not registry.tickets
        for (name, _), session in self.sessions.items():
            if name in self.ends and session.verdict is not None:
                assert not session.verdict.broken, session.verdict
