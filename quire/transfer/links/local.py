"""LocalHub: links between endpoints of one process, on any clock. A `fate` delays, repeats and loses: for tests.

hub = LocalHub();  a = hub.link("a", pages);  b = hub.link("b", pages)
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import count

from quire.core.records.errors import InputError, StateError, say
from quire.tiers.base import Bytes
from quire.transfer.geometry.byte_rows import Rows
from quire.transfer.geometry.slices import Places
from quire.transfer.links.link import Door, Lost, News, Received, WriteDone, check_source

NOTICED = 0.001  # seconds until the other end sees that a link was closed
Fate = Callable[[str, str, str], Sequence[float]]  # what, from, to -> delays of its copies; none: it is lost


def _at_once(what: str, source: str, target: str) -> Sequence[float]:
    return (0.0,)


class LocalHub:
    """What connects the links of one process."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, fate: Fate = _at_once, *, fenced: bool = True
    ) -> None:
        self.clock = clock
        self.fate = fate
        self.fenced = fenced  # False: what is under way lands even after its door was shut, as with a remote writer
        self.links: dict[str, LocalLink] = {}
        self._numbers = count(1)
        self._moment: float | None = None  # of what is happening, which may be looked at later
        self._heap: list[tuple[float, int, str, Callable[[], list[News]]]] = []

    def __repr__(self) -> str:
        return f"LocalHub({list(self.links)})"

    def link(self, name: str, pages: Sequence[Bytes]) -> LocalLink:
        """A new link; a name can be used again when its link was closed or killed."""
        if name in self.links:
            raise InputError(say(f"link {name!r}", "that name is in use", "close it first"))
        self.links[name] = LocalLink(self, name, pages)
        return self.links[name]

    def kill(self, name: str) -> None:
        """As if its process had died: what it had under way may still land, the others learn that it is lost."""
        dead = self.links.pop(name, None)
        if dead is None:
            return
        dead.dead = True
        dead.news.clear()
        for other in self.links.values():
            self._post(other.name, 0.0, lambda other=other: other.lose(name, "it has died"))  # type: ignore[misc]

    def _post(self, name: str, delay: float, act: Callable[[], list[News]]) -> None:
        """Do this at that link, later."""
        begin = self.clock() if self._moment is None else self._moment
        heapq.heappush(self._heap, (begin + delay, next(self._numbers), name, act))

    def due(self) -> float | None:
        """When the next thing happens."""
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        """Process what is due; news goes to the links' own lists."""
        while self._heap and self._heap[0][0] <= now:
            self._moment, _, name, act = heapq.heappop(self._heap)
            news = act()
            self._moment = None
            link = self.links.get(name)
            if link is not None:
                link.news += news


class LocalLink:
    """One end. Peers are names of other links."""

    def __init__(self, hub: LocalHub, name: str, pages: Sequence[Bytes]) -> None:
        self.hub = hub
        self.name = name
        self.pages = list(pages)
        self.dead = False
        self.news: list[News] = []
        self._doors: dict[int, Door] = {}
        self._incoming: dict[int, int] = {}  # writes under way, by door
        self._outgoing: dict[int, str] = {}  # own writes under way: ticket -> peer

    def __repr__(self) -> str:
        return f"LocalLink({self.name!r}{', closed' if self.dead else ''}, {len(self._outgoing)} writes under way)"

    def send(self, peer: str, message: bytes) -> bool:
        """Messages arrive in this process's order, unless fate has it otherwise."""
        if self.dead or peer not in self.hub.links:
            return False
        for delay in self.hub.fate("message", self.name, peer):
            self.hub._post(peer, delay, lambda: [Received(self.name, message)])
        return True

    def write(self, peer: str, door: int, rows: Rows) -> int:
        """One copy per row, when it arrives."""
        check_source(rows, self.pages)
        ticket = next(self.hub._numbers)
        other = self.hub.links.get(peer)
        delays = self.hub.fate("write", self.name, peer)
        if other is None or self.dead or not delays:
            self.news.append(WriteDone(ticket, "it is out of reach"))
            return ticket
        self._outgoing[ticket] = peer
        first = min(delays[0] / 100, 0.001)
        self.hub._post(peer, first, lambda: self._begin(other, door, delays[0] - first, rows, ticket))
        return ticket

    def _begin(self, other: LocalLink, number: int, rest: float, rows: Rows, ticket: int) -> list[News]:
        """At the receiver: the first bytes are here; without a fence the others cannot be stopped any more."""
        other._incoming[number] = other._incoming.get(number, 0) + 1
        self.hub._post(other.name, rest, lambda: self._land(other, number, rows, ticket))
        return []

    def _land(self, other: LocalLink, number: int, rows: Rows, ticket: int) -> list[News]:
        """At the receiver: the bytes arrive, unless its door is shut or it is gone."""
        other._incoming[number] -= 1
        if not other._incoming[number]:
            del other._incoming[number]
        if self.hub.fenced and ticket not in self._outgoing:
            return []  # reported as over before: its source may have another owner by now
        door = other._doors.get(number)
        problem = None
        if other.dead:
            problem = "it has died"
        elif door is None or not (door.admits(rows) or (not self.hub.fenced and _was_open(door, rows))):
            problem = "its door is shut"
        else:
            other.fill(self, rows)
        if ticket in self._outgoing:
            for delay in self.hub.fate("moved", other.name, self.name)[:1] or (0.0,):
                self.hub._post(self.name, delay, lambda: self._moved(ticket, problem))
        return []

    def fill(self, source: LocalLink, rows: Rows) -> None:
        """The bytes themselves."""
        for group, start, target, size in rows.tolist():
            goal = self.pages[group].reshape(-1)
            goal[target : target + size] = source.pages[group].reshape(-1)[start : start + size]

    def _moved(self, ticket: int, problem: str | None) -> list[News]:
        return [WriteDone(ticket, problem)] if self._outgoing.pop(ticket, None) is not None else []

    def lose(self, peer: str, reason: str) -> list[News]:
        """A peer is gone, and writes to it are over; without a fence only when they have come to their end."""
        over = [ticket for ticket, other in self._outgoing.items() if other == peer and self.hub.fenced]
        news: list[News] = [WriteDone(ticket, reason) for ticket in over]
        for ticket in over:
            del self._outgoing[ticket]
        return [*news, Lost(peer, reason)]

    def door(self, places: Sequence[Places]) -> Door:
        """Let peers fill these slots."""
        door = Door(next(self.hub._numbers), places, self.pages, self._shut)
        self._doors[door.number] = door
        return door

    def _shut(self, door: Door) -> bool:
        if not self.hub.fenced and self._incoming.get(door.number):
            return False
        self._doors.pop(door.number, None)
        return True

    def poll(self, timeout: float = 0.0) -> list[News]:
        """What has happened here; never waits."""
        if self.dead and not self.news:
            raise StateError(say(f"link {self.name!r}", "it was closed", "open a new one"))
        if not self.dead:
            self.hub.run(self.hub.clock())
        news, self.news = self.news, []
        return news

    def fileno(self) -> int:
        """There is none: what happens here has no descriptor."""
        return -1

    def close(self, peer: str | None = None) -> bool:
        """Forget a peer; or leave the hub."""
        if peer is not None:
            self.news += self.lose(peer, "closed")
            if peer in self.hub.links:
                lose = self.hub.links[peer].lose
                self.hub._post(peer, NOTICED, lambda: lose(self.name, "it has closed the link"))
            return self.hub.fenced
        self.dead = True
        self.hub.links.pop(self.name, None)
        for peer in sorted(set(self._outgoing.values())):
            self.news += self.lose(peer, "closed")
        for other in list(self.hub.links.values()):
            other.news += other.lose(self.name, "closed")
        return True


def _was_open(door: Door, rows: Rows) -> bool:
    shut, door.is_open = door.is_open, True
    admits = door.admits(rows)
    door.is_open = shut
    return admits
