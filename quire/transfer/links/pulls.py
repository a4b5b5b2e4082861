"""Pulls: what one peer has named for reading and is not over yet, within limits. Knows no NIXL and no sockets."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.transfer.links.connection import Broken

MOST_WRITES = 4096  # of one peer, named and not over; an endpoint has one per session under way
MOST_READS = 1 << 14  # of one peer, under way
MOST_ROWS = 1 << 22  # of these READs


@dataclass(slots=True)
class PulledWrite:
    """One write of that peer."""

    reads: int = 0  # under way
    is_named: bool = False  # its last PULL has come
    is_spoilt: bool = False  # a part of it was refused, or could not be read


@dataclass(slots=True, eq=False)
class Pulls:
    """One connection's writes by ticket, and its READs under way."""

    writes: dict[int, PulledWrite] = field(default_factory=dict)
    reads: int = 0
    rows: int = 0

    def name(self, ticket: int, *, last: bool) -> PulledWrite:
        """A PULL has come: the write it belongs to."""
        write = self.writes.get(ticket)
        if write is None:
            if len(self.writes) >= MOST_WRITES:
                raise Broken(f"it names a write while {MOST_WRITES} are not over")
            write = self.writes[ticket] = PulledWrite()
        if write.is_named:
            raise Broken("it goes on with a write that it has ended")
        write.is_named = last
        return write

    def begin(self, write: PulledWrite, rows: int) -> None:
        """A READ of so many rows begins."""
        if self.reads >= MOST_READS or self.rows + rows > MOST_ROWS:
            raise Broken(f"it names more to read while {self.reads} READs of {self.rows} rows are under way")
        write.reads += 1
        self.reads += 1
        self.rows += rows

    def end(self, write: PulledWrite, rows: int, *, good: bool) -> None:
        """It has ended."""
        write.reads -= 1
        self.reads -= 1
        self.rows -= rows
        write.is_spoilt = write.is_spoilt or not good

    def take_over(self, ticket: int) -> PulledWrite | None:
        """A write that is over: all of it was named and every READ has ended. It is forgotten with this."""
        write = self.writes.get(ticket)
        if write is None or not write.is_named or write.reads:
            return None
        return self.writes.pop(ticket)
