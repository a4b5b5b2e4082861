"""Claims: the holds of one call, as its caller has them; and what becomes of them when the caller loses them.

The cache knows what is claimed, and the caller's handle only weakly. When the handle is garbage collected that may be
in any thread, in the middle of any call: it is noted, and the next call gives back what was claimed.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator

from quire.core.admission.claim import Claim, Refusal, never_fits
from quire.core.admission.prepare import Prepared, Purpose, check_ids, ready_for
from quire.core.records.errors import StateError, say, shown
from quire.core.records.request import Request
from quire.core.state.state import State


class Claims:
    """The claims of one call, in order. Admit them or drop them; leaving a `with` block drops what was not admitted."""

    __slots__ = ("__weakref__", "_lock", "_ref", "claims", "refused", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._lock = state.lock
        self.claims: list[Claim] = []
        self.refused: list[Refusal] = []
        self._ref: weakref.ref[Claims] | None = weakref.ref(self, state.abandoned.append)
        state.open_claims[self._ref] = self.claims

    @property
    def settled(self) -> bool:
        """They were admitted or given back, all of them."""
        return self._ref is None or self._ref not in self.state.open_claims

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

    def drop(self) -> None:
        """Give back what was not admitted; afterwards it is as if it had never been asked for."""
        with self._lock:
            if not self.settled:
                self.drop_from(0)
                ended(self)

    def close(self) -> None:
        """The same as `drop`; of admitted or dropped claims nothing is left to give back."""
        self.drop()

    def leave_out(self, claim: Claim) -> None:
        """Give back one of them; the others stay, in their order."""
        with self._lock:
            if self.settled or claim not in self.claims:
                fact = "they were admitted or dropped" if self.settled else "it is none of these"
                raise StateError(say(f"leaving out {shown(claim)}", fact, "leave out open claims, each once"))
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


def ended(claims: Claims) -> None:
    """None of them is open any more: all are sequences, or were given back."""
    claims.claims.clear()
    if claims._ref is not None:
        claims.state.open_claims.pop(claims._ref, None)
        claims._ref = None  # nobody waits to hear that they were lost


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
    """What was claimed and lost is given back, the last first. Between two acts only: never inside one.

    A finalizer may have ended them since they were noted, or may have kept them: then they are settled.
    """
    lost = 0
    while state.abandoned:  # another thread may have been here before
        claims = state.open_claims.pop(state.abandoned.pop(), [])
        lost += len(claims)
        for claim in reversed(claims):
            claim.let_go(state)
        claims.clear()
    if not lost:
        return
    fact = f"{lost} of them were lost, neither admitted nor dropped: they are given back"
    warnings.warn(say("claims", fact, "use a `with` block"), ResourceWarning, stacklevel=4)


def open_claims(state: State) -> list[Claims]:
    """Those that were neither admitted nor dropped, in the order they were made."""
    return [claims for ref in state.open_claims if (claims := ref()) is not None]
