"""Claims: the holds of one call, as its caller has them; and what becomes of them when the caller loses them.

The cache knows what is claimed, and the caller's handle only weakly. When the handle is garbage collected that may be
in any thread, in the middle of any call: it is noted, and the next call gives back what was claimed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager

from quire.core.records.errors import StateError, UnknownError, say, shown
from quire.core.state.claim import Claim, Promise, Refusal, claim_of, let_go, promise_of

OpenClaims = dict["weakref.ref[Claims]", list[Promise]]  # of one cache, by their handles


class Claims:
    """The claims of one call, in order. Admit them or drop them; leaving a `with` block drops what was not admitted."""

    __slots__ = ("__weakref__", "_lock", "_open", "_promises", "_ref", "refused")

    def __init__(
        self, lock: AbstractContextManager[bool], open_claims: OpenClaims, abandoned: list[weakref.ref[Claims]],
        promises: list[Promise],
    ) -> None:  # fmt: skip
        self._lock = lock
        self._open = open_claims  # the cache's own; these are among them until they are admitted or given back
        self._promises = promises
        self.refused: list[Refusal] = []
        self._ref: weakref.ref[Claims] | None = weakref.ref(self, abandoned.append)
        open_claims[self._ref] = promises

    @property
    def _settled(self) -> bool:
        """They were admitted or given back, all of them."""
        return self._ref is None or self._ref not in self._open

    def __len__(self) -> int:
        return len(self._promises)

    def __iter__(self) -> Iterator[Claim]:
        return map(claim_of, self._promises)

    def __getitem__(self, place: int) -> Claim:
        return claim_of(self._promises[place])

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ref is not None:  # else they were admitted
            self.drop()

    def drop(self) -> None:
        """Give back what was not admitted; afterwards it is as if it had never been asked for."""
        with self._lock:
            if not self._settled:
                drop_from(self._promises, 0)
                settle(self)

    def close(self) -> None:
        """The same as `drop`; of admitted or dropped claims nothing is left to give back."""
        self.drop()

    def leave_out(self, claim: Claim) -> None:
        """Give back one of them; the others stay, in their order."""
        with self._lock:
            promise = promise_of(claim) if isinstance(claim, Claim) else None
            if self._settled or promise is None or promise not in self._promises:
                fact = "they were admitted or dropped" if self._settled else "it is none of these"
                raise StateError(say(f"leaving out {shown(claim)}", fact, "leave out open claims, each once"))
            self._promises.remove(promise)
            _end(promise)

    def __repr__(self) -> str:
        state = "settled" if self._settled else "open"
        return f"Claims({len(self._promises)} {state}, {len(self.refused)} refused)"


def promises_in(claims: Claims) -> list[Promise]:
    """What the cache keeps of them, in order: the list itself."""
    return claims._promises


def open_promises(claims: Claims, open_claims: OpenClaims) -> list[Promise]:
    """The same of claims that are open, of the cache whose open claims these are."""
    if claims._open is not open_claims:
        raise UnknownError(say("admit of these claims", "another cache made them", "admit them there"))
    if claims._settled:
        raise StateError(say("admit of these claims", "they were admitted or dropped before", "claim again"))
    return claims._promises


def drop_from(promises: list[Promise], place: int) -> list[Promise]:
    """Give back those from `place` on, in reverse order, and return them; under the cache's lock."""
    dropped = promises[place:]
    for promise in reversed(dropped):
        _end(promise)
    del promises[place:]
    return dropped


def end_promises(promises: list[Promise]) -> None:
    """They are kept: none is left in the list, and their handles are the callers' alone."""
    for promise in promises:
        promise.handle = None
    promises.clear()


def settle(claims: Claims) -> None:
    """None of them is open any more: all are sequences, or were given back, and none is left in the list."""
    if claims._ref is not None:
        claims._open.pop(claims._ref, None)
        claims._ref = None  # their loss need not be noted any more


def _end(promise: Promise) -> None:
    """It holds nothing any more, and its handle is the caller's alone."""
    let_go(promise)
    promise.handle = None
