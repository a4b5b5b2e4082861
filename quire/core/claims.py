"""Claims: the holds of one call, as its caller has them; and what becomes of them when the caller loses them.

The cache knows every open batch of claims and its handle only weakly. A handle that is garbage collected cannot give
anything back there and then: that may happen in any thread, in the middle of any call. The next call does it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator

from quire.core.claim import Claim, Refusal, never_fits
from quire.core.errors import StateError, say
from quire.core.prepare import Prepared, Purpose, check_ids, ready_for
from quire.core.request import Request
from quire.core.state import State


class OpenBatch:
    """The open claims of one call, as the cache knows them."""

    __slots__ = ("claims", "handle")

    def __init__(self, handle: Claims) -> None:
        self.claims = handle.claims  # the handle's own list
        self.handle = weakref.ref(handle)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)


class Claims:
    """The claims of one call, in order. Admit them or drop them; leaving a `with` block drops what was not admitted."""

    __slots__ = ("__weakref__", "_batch", "_lock", "claims", "refused", "settled", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._lock = state.lock
        self.claims: list[Claim] = []
        self.refused: list[Refusal] = []
        self.settled = False
        self._batch = OpenBatch(self)
        state.open_claims[self._batch] = None

    def __len__(self) -> int:
        return len(self.claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __getitem__(self, place: int) -> Claim:
        return self.claims[place]

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.settled:
            self.drop()

    def __del__(self) -> None:
        """Lost without `drop`: they are given back with the next call of the cache, if it lives on."""
        if self.settled or self.state.door() is None:
            return
        self.state.abandoned.append(self._batch)
        warnings.warn(f"{self!r} was neither admitted nor dropped", ResourceWarning, stacklevel=2, source=self)

    def drop(self) -> None:
        """Give back what was not admitted; afterwards it is as if it had never been asked for."""
        with self._lock:
            if not self.settled:
                self.drop_from(0)
                self.settled = True
                self.state.open_claims.pop(self._batch, None)

    def close(self) -> None:
        """The same as `drop`; of admitted or dropped claims nothing is left to give back."""
        self.drop()

    def leave_out(self, claim: Claim) -> None:
        """Give back one of them; the others stay, in their order."""
        with self._lock:
            if self.settled or claim not in self.claims:
                fact = "they were admitted or dropped" if self.settled else "it is none of these"
                raise StateError(say(f"leaving out {claim!r}", fact, "leave out open claims, each once"))
            self.claims.remove(claim)
            claim.let_go(self.state)

    def drop_from(self, place: int) -> list[Claim]:
        """Give back the claims from `place` on, in reverse order, and return them."""
        with self._lock:
            dropped = self.claims[place:]
            for claim in reversed(dropped):
                claim.let_go(self.state)
            del self.claims[place:]
            return dropped

    def __repr__(self) -> str:
        state = "settled" if self.settled else "open"
        return f"Claims({len(self.claims)} {state}, {len(self.refused)} refused)"


def claim_batch(state: State, requests: Iterable[Request | Prepared], purpose: Purpose) -> Claims:
    """Hold every reusable page of the batch before any slot moves."""
    ready = ready_for(state, requests, purpose)
    check_ids(state, ready)
    batch = Claims(state)
    try:
        for prepared in ready:
            never = never_fits(state, prepared, purpose)
            if never is None:
                batch.claims.append(Claim(state, prepared, purpose))
                state.timed = state.timed or prepared.timed
            else:
                batch.refused.append(never)
    except BaseException:  # an interrupt, no memory: all of them or none
        batch.drop()
        raise
    return batch


def give_back(state: State) -> None:
    """What was claimed and lost is given back, the last first. Between two acts only: never inside one."""
    while state.abandoned:
        batch = state.abandoned.pop()
        del state.open_claims[batch]
        for claim in reversed(batch.claims):
            claim.let_go(state)


def open_claims(state: State) -> list[Claims]:
    """Those that were neither admitted nor dropped, in the order they were made."""
    handles = (batch.handle() for batch in state.open_claims)
    return [claims for claims in handles if claims is not None]
