"""Orders: prompts that one engine has another one compute. Knows no sessions, nor what an order says.

here     give ... received, or failed: whom it was given to is lost
there    put ... take, to be sent or refused ... take_withdrawn: its peer has cancelled it, or is gone
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import suppress
from typing import NamedTuple

from quire.transfer.session.peer_index import PeerIndex
from quire.transfer.wire import messages as wire
from quire.transfer.wire.verdict import Key, Limits

REMEMBERED = 4096  # orders that were taken, refused or withdrawn


class TakenOrder(NamedTuple):
    """A prompt that a peer wants computed: the key it will ask under, and what its engine says about it."""

    key: Key
    body: bytes


class Orders:
    """One endpoint's, in both directions. `accepts`: this engine looks for orders of others."""

    def __init__(self, limits: Limits, accepts: bool) -> None:
        self._limits = limits
        self._accepts = accepts
        self._found: deque[TakenOrder] = deque()
        self._withdrawn: deque[Key] = deque(maxlen=REMEMBERED)  # after they were taken
        self._by: OrderedDict[Key, str] = OrderedDict()  # who has given it
        self._by_peer = PeerIndex()  # the same by peer
        self._refused: OrderedDict[tuple[Key, str], str] = OrderedDict()  # to whom, and why
        self._given: dict[Key, str] = {}  # ours, not asked for yet: to whom
        self._given_to = PeerIndex()  # the same by peer
        self._failed: dict[Key, str] = {}  # and those that were lost with their peer

    # -- what others want --------------------------------------------------------------------------------------------

    def put(self, peer: str, order: wire.Order) -> None:
        """Keep it until it is taken; a second one of its key changes nothing."""
        key = wire.key_of(order)
        if key in self._by:
            return
        waits = sum(len(found.body) for found in list(self._found))
        if not self._accepts:
            self.refuse(key, peer, "no prompts are computed for others here")
        elif len(self._found) >= self._limits.messages or waits + len(order.body) > self._limits.parked_bytes:
            self.refuse(key, peer, "too many prompts wait to be computed")
        else:
            self._refused.pop((key, peer), None)
            self._by[key] = peer
            self._by_peer.add(peer, key)
            self._found.append(TakenOrder(key, order.body))
            if len(self._by) > REMEMBERED:
                oldest, whose = self._by.popitem(last=False)
                self._by_peer.discard(whose, oldest)

    def refuse(self, key: Key, peer: str, reason: str) -> None:
        """That peer's ask for it is answered with this; no other peer's."""
        self._refused[key, peer] = reason
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    def refusal(self, key: Key, peer: str) -> str | None:
        """Why that peer's order is not served, if it is not."""
        return self._refused.get((key, peer))

    def withdraw(self, key: Key, peer: str) -> bool:
        """It is not wanted any more; False when it is not that peer's."""
        if self._by.get(key) != peer:
            return False
        del self._by[key]
        self._by_peer.discard(peer, key)
        for order in [order for order in list(self._found) if order.key == key]:
            with suppress(ValueError):  # taken at this moment, by another thread
                self._found.remove(order)
                return True
        self._withdrawn.append(key)
        return True

    def take(self) -> list[TakenOrder]:
        """What has come, in order; on any thread."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def take_withdrawn(self) -> list[Key]:
        """Of what was taken, what is not wanted any more; on any thread."""
        return [self._withdrawn.popleft() for _ in range(len(self._withdrawn))]

    # -- what we want ------------------------------------------------------------------------------------------------

    def give(self, key: Key, peer: str, sent: bool) -> None:
        """It was sent to that peer, or could not be."""
        if sent:
            self._drop_given(key)
            self._given[key] = peer
            self._given_to.add(peer, key)
        else:
            self._failed[key] = f"{peer} could not be asked"

    def failure(self, key: Key) -> str | None:
        """Why what was ordered will not come, if that is known."""
        return self._failed.get(key)

    def settle(self, key: Key) -> str | None:
        """It is asked for, or given up; returns the peer to notify."""
        self._failed.pop(key, None)
        return self._drop_given(key)

    def lost(self, peer: str, reason: str) -> list[Key]:
        """A peer is gone: what it has ordered is withdrawn, and returned; what it was to compute will not come."""
        for key in self._given_to.keys_of(peer):
            self._drop_given(key)
            self._failed[key] = f"{peer} was lost: {reason}"
        theirs = self._by_peer.keys_of(peer)
        for key in theirs:
            self.withdraw(key, peer)
        return theirs

    def _drop_given(self, key: Key) -> str | None:
        """It is not under way any more; to whom it was given, if it was."""
        peer = self._given.pop(key, None)
        if peer is not None:
            self._given_to.discard(peer, key)
        return peer
