"""Orders: prompts that one engine has another one compute. Knows no sessions, nor what an order says.

here     give ... received, or failed: whom it was given to is lost
there    put ... take, to be sent or refused ... take_withdrawn: whoever gave it has cancelled it, or is gone
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import suppress

from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key, Limits

REMEMBERED = 4096  # orders that were taken, refused or withdrawn


class Orders:
    """One endpoint's, in both directions. `accepts`: somebody here looks for what others want."""

    def __init__(self, limits: Limits, accepts: bool) -> None:
        self._limits = limits
        self._accepts = accepts
        self._found: deque[tuple[Key, bytes]] = deque()
        self._withdrawn: deque[Key] = deque(maxlen=REMEMBERED)  # after they were taken
        self._by: OrderedDict[Key, str] = OrderedDict()  # who has given it
        self._refused: OrderedDict[tuple[Key, str], str] = OrderedDict()  # to whom, and why
        self._given: dict[Key, str] = {}  # ours, not asked for yet: to whom
        self._failed: dict[Key, str] = {}  # and those that were lost with their peer

    # -- what others want --------------------------------------------------------------------------------------------

    def put(self, peer: str, order: wire.Order) -> None:
        """Keep it until it is taken; a second one of its key changes nothing."""
        key = wire.key_of(order)
        if key in self._by:
            return
        waits = sum(len(body) for _, body in list(self._found))
        if not self._accepts:
            self.refuse(key, peer, "no prompts are computed for others here")
        elif len(self._found) >= self._limits.messages or waits + len(order.body) > self._limits.parked_bytes:
            self.refuse(key, peer, "too many prompts wait to be computed")
        else:
            self._refused.pop((key, peer), None)
            self._by[key] = peer
            self._found.append((key, order.body))
            _keep(self._by)

    def refuse(self, key: Key, peer: str, reason: str) -> None:
        """That peer's ask for it is answered with this; nobody else's."""
        self._refused[key, peer] = reason
        _keep(self._refused)

    def refusal(self, key: Key, peer: str) -> str | None:
        """Why that peer's order is not served, if it is not."""
        return self._refused.get((key, peer))

    def withdraw(self, key: Key, peer: str) -> bool:
        """It is not wanted any more; False when it is not that peer's."""
        if self._by.get(key) != peer:
            return False
        del self._by[key]
        for order in [order for order in list(self._found) if order[0] == key]:
            with suppress(ValueError):  # taken at this moment, by another thread
                self._found.remove(order)
                return True
        self._withdrawn.append(key)
        return True

    def take(self) -> list[tuple[Key, bytes]]:
        """What has come, in order; on any thread."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def take_withdrawn(self) -> list[Key]:
        """Of what was taken, what is not wanted any more; on any thread."""
        return [self._withdrawn.popleft() for _ in range(len(self._withdrawn))]

    # -- what we want ------------------------------------------------------------------------------------------------

    def give(self, key: Key, peer: str, said: bool) -> None:
        """It was said to that peer, or could not be."""
        if said:
            self._given[key] = peer
        else:
            self._failed[key] = f"{peer} could not be asked"

    def failure(self, key: Key) -> str | None:
        """Why what was ordered will not come, if that is known."""
        return self._failed.get(key)

    def settle(self, key: Key) -> str | None:
        """It is asked for, or given up; whom to tell."""
        self._failed.pop(key, None)
        return self._given.pop(key, None)

    def lost(self, peer: str, reason: str) -> list[Key]:
        """A peer is gone: what it has ordered is withdrawn, and returned; what it was to compute will not come."""
        for key in [key for key, other in self._given.items() if other == peer]:
            del self._given[key]
            self._failed[key] = f"{peer} was lost: {reason}"
        theirs = [key for key, other in self._by.items() if other == peer]
        for key in theirs:
            self.withdraw(key, peer)
        return theirs


def _keep(names: OrderedDict[Key, str] | OrderedDict[tuple[Key, str], str]) -> None:
    if len(names) > REMEMBERED:
        names.popitem(last=False)
