"""Sending: the sender's half of a session, as plain data. Acts on nothing: every method returns what is to be done.

waiting --ask--> moving --all pieces moved, last word said--> delivered
   \\                \\--a write failed, a peer cancelled, a deadline, a lost peer--> failed / cancelled
    \\--lease runs out--> failed
quiet: no write is under way. Only then may the source pages be given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.core.records.errors import InputError, StateError, say
from quire.core.records.span import merged
from quire.transfer.geometry.pieces import Piece, part_of
from quire.transfer.geometry.ranks import ONE_RANK, Grid
from quire.transfer.geometry.rows import NO_ROWS, Rows, num_bytes, rows_of
from quire.transfer.geometry.shards import Fragment
from quire.transfer.geometry.slices import Places, Spans, pairs, spans_at, spans_of
from quire.transfer.views.view import Shape
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import DELIVERED, Key, Limits, Outcome, Verdict, cancelled, failed, in_words, settle


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message."""

    peer: str
    message: wire.Any


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Move bytes through a peer's door."""

    peer: str
    door: int
    rows: Rows


Do = list[Say | Move]


@dataclass(slots=True, eq=False)
class Reader:
    """One receiver rank as the sender sees it."""

    ask: wire.Ask
    targets: tuple[Places, ...]
    fragments: tuple[tuple[Fragment, ...], ...]  # per group; none: this rank has nothing for it
    page_bytes: tuple[int, ...]  # of the receiver's pages
    until: float  # the receiver's patience, on this side's clock
    next: int = 0  # piece
    moving: bool = False
    done: bool = False  # its last word is said
    ok: bool = False
    delivered: list[Spans] = field(default_factory=list)
    coming: list[Spans] = field(default_factory=list)  # delivered, once what is under way has landed
    num_bytes: int = 0
    place: tuple[Grid, int, int] = (ONE_RANK, 0, 0)  # its instance's ranks, and which group and rank of them it is


class Sending:
    """One prompt on its way to one or more receiver ranks."""

    def __init__(self, key: Key, shape: Shape, length: int, content: bytes, *, limits: Limits, now: float) -> None:
        self.key = key
        self.shape = shape
        self.length = length
        self.content = content
        self.limits = limits
        self.position = 0
        self.pieces: list[tuple[Piece, tuple[Places, ...]]] = []
        self.readers: dict[str, Reader] = {}
        self.expected: int | None = None  # receiver ranks; known from the first ask
        self.aux = b""
        self.verdict: Verdict | None = None
        self.stuck = False
        self.closed_at: float | None = None  # when the link to those who stayed silent was closed
        self.lease_until = now + limits.lease
        self.until: float | None = None  # from the last piece and the last ask on
        self.quiet_until: float | None = None  # from the verdict on; nothing moves it

    def __repr__(self) -> str:
        pieces = f"{len(self.pieces)} pieces" + (" and complete" if self.complete else "")
        return f"Sending({self.key}, {self.length} tokens, {pieces}, to {list(self.readers)}, {in_words(self)})"

    # -- what happens to it ------------------------------------------------------------------------------------------

    def add(self, piece: Piece, places: Sequence[Places], position: int, now: float, *, aux: bytes = b"") -> Do:
        """One more piece has been computed; the last one brings what goes with the last word."""
        if self.complete:
            raise StateError(say(f"a piece for {self.key}", "the last one was sent", "send the last piece last"))
        if self.verdict is not None:
            return []
        parts = part_of(self.shape.groups, places, piece, self.length, self.shape.block_size)
        self.pieces.append((piece, parts))
        self.lease_until = max(self.lease_until, now + self.limits.lease)
        if piece.last:
            self.position, self.aux = position, aux
        self._start_clock(now)
        return self._advance_all(now)

    def asked(self, peer: str, reader: Reader, expected: int, now: float) -> Do:
        """A receiver rank wants its part; a second time changes nothing."""
        if peer in self.readers:
            return []
        self.readers[peer] = reader
        self.expected = expected
        self._start_clock(now)
        reader.delivered = [() for _ in self.shape.groups]
        return self._advance(peer, reader, now)

    def moved(self, peer: str, problem: str | None, now: float) -> Do:
        """A write is over."""
        reader = self.readers[peer]
        reader.moving = False
        if self.verdict is not None or problem is not None:
            return self._end(failed(f"{peer}: {problem}"), now)
        return self._landed(peer, reader) + self._advance(peer, reader, now)

    def cancel(self, reason: str, now: float, *, by_peer: str | None = None) -> Do:
        """Nobody wants it any more. A peer that said so is not told again."""
        fresh = self.verdict is None
        notices: Do = [
            Say(peer, wire.Cancel(*self.key, reason[:1000]))
            for peer, reader in self.readers.items()
            if fresh and by_peer is None and not reader.done
        ]
        return notices + self._end(cancelled(reason, by_peer is not None), now)

    def fail(self, reason: str, now: float) -> Do:
        """It will not be sent: whoever has asked is told."""
        return self._end(failed(reason), now)

    def lost(self, peer: str, now: float) -> Do:
        """A peer is gone; what was under way to it has been told as moved before."""
        reader = self.readers.get(peer)
        if reader is None or reader.done:
            return []
        reader.done = True
        return self._end(failed(f"{peer} was lost"), now)

    def renew(self, now: float) -> None:
        """A receiver still waits for it."""
        self.lease_until = max(self.lease_until, now + self.limits.lease * 2 / 3)

    def tick(self, now: float) -> Do:
        """Deadlines of every state."""
        if self.verdict is not None:
            return []
        if not self.all_asked and now >= self.lease_until:
            return self._end(failed("the lease ran out before every receiver had asked"), now)
        if self.until is not None and now >= self.until:
            return self._end(failed("it was not delivered in time"), now)
        if any(not reader.done and now >= reader.until for reader in self.readers.values()):
            return self._end(failed("the receiver's patience ran out"), now)
        return []

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """The last piece is here."""
        return bool(self.pieces) and self.pieces[-1][0].last

    @property
    def all_asked(self) -> bool:
        """Every receiver rank has registered."""
        return self.expected is not None and len(self.readers) >= self.expected

    @property
    def quiet(self) -> bool:
        """Nothing reads its pages any more."""
        return self.verdict is not None and not any(reader.moving for reader in self.readers.values())

    @property
    def silent(self) -> list[str]:
        """Peers that it still waits for."""
        return [peer for peer, reader in self.readers.items() if reader.moving]

    # -- how it goes on ----------------------------------------------------------------------------------------------

    def _start_clock(self, now: float) -> None:
        """Delivery is due so many seconds after both the last piece and the last ask are here; nothing moves it."""
        if self.until is None and self.complete and self.all_asked:
            self.until = now + self.limits.transfer

    def _advance_all(self, now: float) -> Do:
        return [act for peer, reader in self.readers.items() for act in self._advance(peer, reader, now)]

    def _advance(self, peer: str, reader: Reader, now: float) -> Do:
        """Pieces go to one receiver one after the other, so that the last one is last."""
        acts: Do = []
        while self.verdict is None and not reader.moving and not reader.done and reader.next < len(self.pieces):
            piece, parts = self.pieces[reader.next]
            wrong = _uneven(parts, reader.targets) or (self._late_state(reader) if piece.last else "")
            if wrong:
                return acts + self._end(failed(wrong), now)
            rows = self._rows(reader, parts)
            reader.next += 1
            if len(rows):
                reader.moving = True
                reader.num_bytes += num_bytes(rows)
                return [*acts, Move(peer, reader.ask.door, rows)]
            acts += self._landed(peer, reader)
        return acts

    def _late_state(self, reader: Reader) -> str:
        wishes = zip(self.shape.groups, reader.ask.wishes, strict=True)
        wanted = [wish.position for group, wish in wishes if group.current and wish.runs]
        off = [position for position in wanted if position != self.position]
        return f"the state stands after {self.position} tokens, wanted after {off[0]}" if off else ""

    def _rows(self, reader: Reader, parts: tuple[Places, ...]) -> Rows:
        found, coming = [NO_ROWS], []
        for group, (source, target) in enumerate(zip(parts, reader.targets, strict=True)):
            both, fragments = pairs(source, target), reader.fragments[group]
            slots, sizes = (source[both], target[both]), (self.shape.groups[group].page_bytes, reader.page_bytes[group])
            found.append(rows_of(group, slots, sizes, fragments))
            arrives = spans_at(both) if fragments else spans_of(target)  # who has no part of it vouches for nothing
            coming.append(merged(*reader.delivered[group], *arrives))
        reader.coming = coming
        return np.concatenate(found)

    def _landed(self, peer: str, reader: Reader) -> Do:
        """A piece is there: say so; after the last one that is the last word."""
        reader.delivered = reader.coming
        last = self.pieces[reader.next - 1][0].last
        delivered = tuple(map(wire.to_wire, reader.delivered))
        aux = self.aux if last else b""
        word = wire.Result(*self.key, reader.ask.piece, last, True, delivered, reader.num_bytes, "", aux)
        if last:
            reader.done = reader.ok = True
            if self.all_asked and all(reader.ok for reader in self.readers.values()):
                self.verdict = settle(self.verdict, DELIVERED)
        return [Say(peer, word)]

    def _end(self, verdict: Verdict, now: float) -> Do:
        """The end: every receiver that has heard no last word hears it now, or when its write is over."""
        self.verdict = settle(self.verdict, verdict)
        if self.quiet_until is None:
            self.quiet_until = now + self.limits.grace
        if self.verdict.outcome is Outcome.DELIVERED:
            return []
        acts: Do = []
        for peer, reader in self.readers.items():
            if not reader.moving and not reader.done:
                reader.done = True
                word = wire.Result(*self.key, reader.ask.piece, True, False, reason=self.verdict.reason[:1000])
                acts.append(Say(peer, word))
        return acts


def _uneven(sources: Sequence[Places], targets: Sequence[Places]) -> str:
    """The two sides do not speak of the same blocks."""
    mine, theirs = ([len(places) for places in side] for side in (sources, targets))
    return "" if mine == theirs else f"the receiver's lists have {theirs} blocks, the sender's {mine}"


def reader_of(
    ask: wire.Ask, fragments: Sequence[tuple[Fragment, ...]], page_bytes: Sequence[int], now: float
) -> Reader:
    """A receiver rank from its ask; its slots are checked."""
    if len(ask.wishes) != len(page_bytes):
        fact = f"it names {len(ask.wishes)} groups, there are {len(page_bytes)}"
        raise InputError(say(f"an ask for {ask.request}", fact, "name every group"))
    targets = tuple(wire.places_wished(wish) for wish in ask.wishes)
    return Reader(ask, targets, tuple(fragments), tuple(page_bytes), now + ask.patience)
