"""Sending: the sender's half of a session, as plain data. Acts on nothing: every method returns what is to be done.

waiting --ask--> moving --all pieces moved, last report sent--> delivered
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
from quire.transfer.geometry.byte_rows import NO_ROWS, PoolSlots, Rows, num_bytes, rows_of
from quire.transfer.geometry.pieces import PromptPiece, part_of
from quire.transfer.geometry.ranks import ONLY_RANK, RankPlace
from quire.transfer.geometry.shards import Fragment
from quire.transfer.geometry.slices import Places, Spans, pairs, spans_at, spans_of
from quire.transfer.session.actions import Actions, PageWrite, SendMessage
from quire.transfer.session.lease import Lease
from quire.transfer.views.view import CacheShape
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import DELIVERED, Key, Limits, Outcome, Verdict, cancelled, failed, in_words, settle


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPiece:
    """A piece that was computed, and the slots its blocks lie in, group by group."""

    piece: PromptPiece
    places: tuple[Places, ...]


@dataclass(slots=True, eq=False)
class ReceiverRank:
    """One receiver rank as the sender sees it."""

    ask: wire.Ask
    targets: tuple[Places, ...]
    fragments: tuple[tuple[Fragment, ...], ...]  # per group; none: this rank has nothing for it
    page_bytes: tuple[int, ...]  # of the receiver's pages
    until: float  # the receiver's patience, on this side's clock
    next: int = 0  # piece
    moving: bool = False
    done: bool = False  # its last report is sent
    ok: bool = False
    delivered: list[Spans] = field(default_factory=list)
    coming: list[Spans] = field(default_factory=list)  # delivered, once what is under way has landed
    num_bytes: int = 0
    place: RankPlace = ONLY_RANK


class Sending:
    """One prompt on its way to one or more receiver ranks."""

    def __init__(self, key: Key, shape: CacheShape, length: int, content: bytes, *, limits: Limits, now: float) -> None:
        self.key = key
        self._shape = shape
        self.length = length
        self.content = content
        self._limits = limits
        self._position = 0
        self.pieces: list[PlacedPiece] = []
        self.receivers: dict[str, ReceiverRank] = {}
        self._expected: int | None = None  # receiver ranks; known from the first ask
        self._aux = b""
        self.verdict: Verdict | None = None
        self.stuck = False
        self.closed_at: float | None = None  # when the link to those who stayed silent was closed
        self._lease = Lease(limits.lease, now)  # until every receiver has asked
        self._until: float | None = None  # from the last piece and the last ask on
        self.quiet_until: float | None = None  # from the verdict on; nothing moves it

    def __repr__(self) -> str:
        pieces = f"{len(self.pieces)} pieces" + (" and complete" if self._complete else "")
        return f"Sending({self.key}, {self.length} tokens, {pieces}, to {list(self.receivers)}, {in_words(self)})"

    # -- what happens to it ------------------------------------------------------------------------------------------

    def add(
        self, piece: PromptPiece, places: Sequence[Places], position: int, now: float, *, aux: bytes = b""
    ) -> Actions:
        """One more piece has been computed; the last one brings what goes with the last report."""
        if self._complete:
            raise StateError(say(f"a piece for {self.key}", "the last one was sent", "send the last piece last"))
        if self.verdict is not None:
            return []
        parts = part_of(self._shape.groups, places, piece, self.length, self._shape.block_size)
        self.pieces.append(PlacedPiece(piece, parts))
        self._lease.begin_anew(now)
        if piece.last:
            self._position, self._aux = position, aux
        self._start_clock(now)
        return self._advance_all(now)

    def asked(self, peer: str, receiver: ReceiverRank, expected: int, now: float) -> Actions:
        """A receiver rank wants its part; a second time changes nothing."""
        if peer in self.receivers:
            return []
        self.receivers[peer] = receiver
        self._expected = expected
        self._start_clock(now)
        receiver.delivered = [() for _ in self._shape.groups]
        return self._advance(peer, receiver, now)

    def moved(self, peer: str, problem: str | None, now: float) -> Actions:
        """A write is over."""
        receiver = self.receivers[peer]
        receiver.moving = False
        if self.verdict is not None or problem is not None:
            return self._end(failed(f"{peer}: {problem}"), now)
        return self._landed(peer, receiver) + self._advance(peer, receiver, now)

    def cancel(self, reason: str, now: float, *, by_peer: str | None = None) -> Actions:
        """The pages are not wanted any more. A peer that said so gets no message."""
        fresh = self.verdict is None
        notices: Actions = [
            SendMessage(peer, wire.Cancel(*self.key, reason[:1000]))
            for peer, receiver in self.receivers.items()
            if fresh and by_peer is None and not receiver.done
        ]
        return notices + self._end(cancelled(reason, by_peer is not None), now)

    def fail(self, reason: str, now: float) -> Actions:
        """It will not be sent: peers that have asked are notified."""
        return self._end(failed(reason), now)

    def lost(self, peer: str, now: float) -> Actions:
        """A peer is gone; writes under way to it were reported as done before."""
        receiver = self.receivers.get(peer)
        if receiver is None or receiver.done:
            return []
        receiver.done = True
        return self._end(failed(f"{peer} was lost"), now)

    def renew(self, now: float) -> None:
        """A receiver still waits for it."""
        self._lease.renew(now)

    def tick(self, now: float) -> Actions:
        """Deadlines of every state."""
        if self.verdict is not None:
            return []
        if not self._all_asked and self._lease.has_run_out(now):
            return self._end(failed("the lease ran out before every receiver had asked"), now)
        if self._until is not None and now >= self._until:
            return self._end(failed("it was not delivered in time"), now)
        if any(not receiver.done and now >= receiver.until for receiver in self.receivers.values()):
            return self._end(failed("the receiver's patience ran out"), now)
        return []

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def _complete(self) -> bool:
        """The last piece is here."""
        return bool(self.pieces) and self.pieces[-1].piece.last

    @property
    def num_bytes(self) -> int:
        """Page bytes that were written, or are being written, to all receivers together."""
        return sum(receiver.num_bytes for receiver in self.receivers.values())

    @property
    def _all_asked(self) -> bool:
        """Every receiver rank has registered."""
        return self._expected is not None and len(self.receivers) >= self._expected

    @property
    def quiet(self) -> bool:
        """Nothing reads its pages any more."""
        return self.verdict is not None and not any(receiver.moving for receiver in self.receivers.values())

    @property
    def silent(self) -> list[str]:
        """Peers that it still waits for."""
        return [peer for peer, receiver in self.receivers.items() if receiver.moving]

    # -- how it goes on ----------------------------------------------------------------------------------------------

    def _start_clock(self, now: float) -> None:
        """Delivery is due so many seconds after both the last piece and the last ask are here; nothing moves it."""
        if self._until is None and self._complete and self._all_asked:
            self._until = now + self._limits.transfer

    def _advance_all(self, now: float) -> Actions:
        return [act for peer, receiver in self.receivers.items() for act in self._advance(peer, receiver, now)]

    def _advance(self, peer: str, receiver: ReceiverRank, now: float) -> Actions:
        """Pieces go to one receiver one after the other, so that the last one is last."""
        acts: Actions = []
        while self.verdict is None and not receiver.moving and not receiver.done and receiver.next < len(self.pieces):
            placed = self.pieces[receiver.next]
            wrong = _uneven(placed.places, receiver.targets)
            wrong = wrong or (self._late_state(receiver) if placed.piece.last else "")
            if wrong:
                return acts + self._end(failed(wrong), now)
            rows = self._rows(receiver, placed.places)
            receiver.next += 1
            if len(rows):
                receiver.moving = True
                receiver.num_bytes += num_bytes(rows)
                return [*acts, PageWrite(peer, receiver.ask.door, rows)]
            acts += self._landed(peer, receiver)
        return acts

    def _late_state(self, receiver: ReceiverRank) -> str:
        wants = zip(self._shape.groups, receiver.ask.wants, strict=True)
        wanted = [want.position for group, want in wants if group.current and want.runs]
        off = [position for position in wanted if position != self._position]
        return f"the state stands after {self._position} tokens, wanted after {off[0]}" if off else ""

    def _rows(self, receiver: ReceiverRank, parts: tuple[Places, ...]) -> Rows:
        found, coming = [NO_ROWS], []
        for group, (source, target) in enumerate(zip(parts, receiver.targets, strict=True)):
            both, fragments = pairs(source, target), receiver.fragments[group]
            mine = PoolSlots(source[both], self._shape.groups[group].page_bytes)
            theirs = PoolSlots(target[both], receiver.page_bytes[group])
            found.append(rows_of(group, mine, theirs, fragments))
            arrives = (
                spans_at(both) if fragments else spans_of(target)
            )  # a rank without a part of it vouches for nothing
            coming.append(merged(*receiver.delivered[group], *arrives))
        receiver.coming = coming
        return np.concatenate(found)

    def _landed(self, peer: str, receiver: ReceiverRank) -> Actions:
        """A piece is there: report it; after the last one that is the last report."""
        receiver.delivered = receiver.coming
        last = self.pieces[receiver.next - 1].piece.last
        delivered = tuple(map(wire.to_wire, receiver.delivered))
        aux = self._aux if last else b""
        report = wire.DeliveryReport(*self.key, receiver.ask.piece, last, True, delivered, receiver.num_bytes, "", aux)
        if last:
            receiver.done = receiver.ok = True
            if self._all_asked and all(receiver.ok for receiver in self.receivers.values()):
                self.verdict = settle(self.verdict, DELIVERED)
        return [SendMessage(peer, report)]

    def _end(self, verdict: Verdict, now: float) -> Actions:
        """The end: every receiver that has had no last report gets it now, or when its write is over."""
        self.verdict = settle(self.verdict, verdict)
        if self.quiet_until is None:
            self.quiet_until = now + self._limits.grace
        if self.verdict.outcome is Outcome.DELIVERED:
            return []
        acts: Actions = []
        for peer, receiver in self.receivers.items():
            if not receiver.moving and not receiver.done:
                receiver.done = True
                report = wire.DeliveryReport(
                    *self.key, receiver.ask.piece, True, False, reason=self.verdict.reason[:1000]
                )
                acts.append(SendMessage(peer, report))
        return acts


def _uneven(sources: Sequence[Places], targets: Sequence[Places]) -> str:
    """The two sides do not speak of the same blocks."""
    mine, theirs = ([len(places) for places in side] for side in (sources, targets))
    return "" if mine == theirs else f"the receiver's lists have {theirs} blocks, the sender's {mine}"


def receiver_rank_of(
    ask: wire.Ask, fragments: Sequence[tuple[Fragment, ...]], page_bytes: Sequence[int], now: float
) -> ReceiverRank:
    """A receiver rank from its ask; its slots are checked."""
    if len(ask.wants) != len(page_bytes):
        fact = f"it names {len(ask.wants)} groups, there are {len(page_bytes)}"
        raise InputError(say(f"an ask for {ask.request}", fact, "name every group"))
    targets = tuple(wire.wanted_places(want) for want in ask.wants)
    return ReceiverRank(ask, targets, tuple(fragments), tuple(page_bytes), now + ask.patience)
