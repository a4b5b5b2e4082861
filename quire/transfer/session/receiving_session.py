"""Receiving: the receiver's half of a session, as plain data. Acts on nothing; knows no link and no cache.

asked --every writer's last report, nothing missing--> delivered
  \\--one failed report, a lost peer, a hole, a deadline--> failed        \\--either side--> cancelled
quiet: every writer that was asked has sent its last report, or the door is proven shut.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.records.errors import QuireError
from quire.transfer.geometry.slices import Spans
from quire.transfer.geometry.wants import holes
from quire.transfer.session.actions import Actions, SendMessage
from quire.transfer.wire import messages as wire
from quire.transfer.wire.aux import Aux, AuxRoom, unpack
from quire.transfer.wire.verdict import DELIVERED, Key, Limits, Verdict, broken, cancelled, failed, in_words, settle

PIECE = 0  # a receiver posts one piece: the whole prompt


class Receiving:
    """One prompt on its way here, from one or more sender ranks.

    `writers` were asked; `expected` of them answer (one group of ranks, when it was not known which).
    """

    def __init__(
        self, key: Key, wants: tuple[Spans, ...], writers: Sequence[str], *, expected: int, limits: Limits, now: float,
        aux_room: AuxRoom | None = None,
    ) -> None:  # fmt: skip
        self.key = key
        self.wants = wants
        self.writers = dict.fromkeys(writers)  # sealed before the first message leaves
        self._expected = expected
        self._limits = limits
        self._aux_room = aux_room  # None: nothing but pages is waited for
        self.aux: Aux | None = None
        self.reports: dict[str, wire.DeliveryReport] = {}  # last ones by writer: writers are counted, not messages
        self.num_bytes = 0
        self.verdict: Verdict | None = None
        self.stuck = False
        self.closed_at: float | None = None  # when the link to those who stayed silent was closed
        self.proven = False  # the door is shut permanently
        self._noticed = False
        self._until = now + limits.transfer
        self.quiet_until: float | None = None

    def __repr__(self) -> str:
        said = f"{len(self.reports)} of {len(self.writers)} have sent their last report"
        return f"Receiving({self.key}, from {list(self.writers)}, {said}, {in_words(self)})"

    # -- what happens to it ------------------------------------------------------------------------------------------

    def unsent(self, peer: str, now: float) -> Actions:
        """A writer could not be asked, nor those after it: the others are writers to stop, and are waited for."""
        names = list(self.writers)
        for name in names[names.index(peer) :]:
            del self.writers[name]
        return self._end(failed(f"{peer} could not be asked"), now)

    def heard(self, peer: str, report: wire.DeliveryReport, now: float) -> Actions:
        """A writer's report. Repeated reports count once; only a last report counts at all."""
        if peer not in self.writers:
            return self._end(broken(f"{peer} was not asked, and reports"), now)
        if report.piece != PIECE:
            return self._end(broken(f"{peer} reports piece {report.piece}, which was never posted"), now)
        known = self.reports.get(peer)
        if known is not None:
            again = report.ok == known.ok or not report.last
            return [] if again else self._end(broken(f"{peer} has sent two last reports that differ"), now)
        if not report.last and report.ok:
            return []
        if self.quiet_until is not None and now >= self.quiet_until:
            return []  # too late to prove anything
        self.reports[peer] = report
        if not report.ok:
            return self._end(failed(f"{peer}: {report.reason}"), now)
        if not self._well_formed(report):
            return self._end(broken(f"{peer} does not say group by group what it delivered"), now)
        if sum(known.ok for known in self.reports.values()) > self._expected:
            return self._end(broken(f"{peer} is one writer more than the {self._expected} expected"), now)
        self.num_bytes += report.num_bytes
        return self._aux(peer, report, now) or self._complete(now)

    def cancel(self, reason: str, now: float, *, by_peer: str | None = None) -> Actions:
        """Either side does not want it any more; peers that may still write hear of it, once."""
        return self._end(cancelled(reason, by_peer is not None), now, but=by_peer)

    def fail(self, reason: str, now: float) -> Actions:
        """It cannot go on; writers that were asked hear of it."""
        return self._end(failed(reason), now)

    def spoil(self, reason: str) -> None:
        """It was delivered, and could not be put in its place: it is not here."""
        self.verdict = settle(self.verdict, broken(f"its pages could not be put in place: {reason}"))

    def lost(self, peer: str, now: float) -> Actions:
        """A writer is gone; if it owes a report it will never come."""
        if peer not in self.writers or peer in self.reports:
            return []
        return self._end(failed(f"{peer} was lost"), now)

    def tick(self, now: float) -> Actions:
        """The deadline; reports that came with it were heard before."""
        if self.verdict is None and now >= self._until:
            return self._end(failed("it was not delivered in time"), now)
        return []

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """No writer writes into its pages any more."""
        return self.verdict is not None and (self.proven or not self.silent)

    @property
    def silent(self) -> list[str]:
        """Writers that owe a last report."""
        return [peer for peer in self.writers if peer not in self.reports]

    # -- how it goes on ----------------------------------------------------------------------------------------------

    def _well_formed(self, report: wire.DeliveryReport) -> bool:
        pairs = [pair for spans in report.delivered for pair in spans]
        return len(report.delivered) == len(self.wants) and all(start <= end for start, end in pairs)

    def _aux(self, peer: str, report: wire.DeliveryReport, now: float) -> Actions:
        if not report.aux or self._aux_room is None:
            return []
        try:
            aux = unpack(report.aux, self.key, self._aux_room)
        except QuireError as error:
            return self._end(broken(f"{peer}: {error}"), now)
        if self.aux is not None and aux != self.aux:
            return self._end(broken(f"{peer} sends other auxiliary data than the writers before it"), now)
        self.aux = aux
        return []

    def _complete(self, now: float) -> Actions:
        if self.verdict is not None:
            return []
        good = [report for report in self.reports.values() if report.ok]
        if len(good) < self._expected:
            return []
        for peer, report in self.reports.items():
            missing = holes(self.wants, [wire.from_wire(spans) for spans in report.delivered])
            if any(missing):
                return self._end(failed(f"{peer} did not deliver {_named(missing)}"), now)
        if self._aux_room is not None and self.aux is None:
            return self._end(failed("no writer sent the auxiliary data"), now)
        return self._end(DELIVERED, now)

    def _end(self, verdict: Verdict, now: float, *, but: str | None = None) -> Actions:
        """Notify writers that owe a report, once, that their pages are not wanted; not the one that said so."""
        self.verdict = settle(self.verdict, verdict)
        if self.quiet_until is None:
            self.quiet_until = now + self._limits.grace
        if self._noticed:
            return []
        self._noticed = True
        notice = wire.Cancel(*self.key, self.verdict.reason[:1000])
        return [SendMessage(peer, notice) for peer in self.silent if peer != but]


def _named(missing: tuple[Spans, ...]) -> str:
    parts = [f"blocks {[(s.start, s.end) for s in spans]} of group {g}" for g, spans in enumerate(missing) if spans]
    return ", ".join(parts)
