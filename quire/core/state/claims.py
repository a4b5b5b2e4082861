"""Claims: the holds of one call, as its caller has them; and what becomes of them when the caller loses them.

The cache knows what is claimed, and the caller's handle only weakly. When the handle is garbage collected that may be
in any thread, in the middle of any call: it is noted, and the next call gives back what was claimed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from quire.core.records.errors import StateError, say, shown
from quire.core.state.claim import Claim, Refusal, let_go

OpenClaims = dict["weakref.ref[Claims]", list[Claim]]  # of one cache, by their handles


class Claims:
    """The claims of one call, in order. Admit them or drop them; leaving a `with` block drops what was not admitted."""

    __slots__ = ("__weakref__", "_claims", "_lock", "_open", "_ref", "refused")

    def __init__(self, lock: threading.RLock, open_claims: OpenClaims, abandoned: list[weakref.ref[Claims]]) -> None:
        self._lock = lock
        self._open = open_claims  # the cache's own; these are among them until they are admitted or given back
        self._claims: list[Claim] = []
        self.refused: list[Refusal] = []
        self._ref: weakref.ref[Claims] | None = weakref.ref(self, abandoned.append)
        open_claims[self._ref] = self._claims

    @property
    def _settled(self) -> bool:
        """They were admitted or given back, all of them."""
        return self._ref is None or self._ref not in self._open

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims)

    def __getitem__(self, place: int) -> Claim:
        return self._claims[place]

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ref is not None:  # else they were admitted
            self.drop()

    def drop(self) -> None:
        """Give back what was not admitted; afterwards it is as if it had never been asked for."""
        with self._lock:
            if not self._settled:
                drop_from(self, 0)
                settle(self)

    def close(self) -> None:
        """The same as `drop`; of admitted or dropped claims nothing is left to give back."""
        self.drop()

    def leave_out(self, claim: Claim) -> None:
        """Give back one of them; the others stay, in their order."""
        with self._lock:
            if self._settled or not any(claim is one for one in self._claims):
                fact = "they were admitted or dropped" if self._settled else "it is none of these"
                raise StateError(say(f"leaving out {shown(claim)}", fact, "leave out open claims, each once"))
            self._claims.remove(claim)
            let_go(claim)

    def __repr__(self) -> str:
        state = "settled" if self._settled else "open"
        return f"Claims({len(self._claims)} {state}, {len(self.refused)} refused)"


def drop_from(claims: Claims, place: int) -> list[Claim]:
    """Give back the claims from `place` on, in reverse order, and return them; under the cache's lock."""
    dropped = claims._claims[place:]
    for claim in reversed(dropped):
        let_go(claim)
    del claims._claims[place:]
    return dropped


def settle(claims: Claims) -> None:
    """None of them is open any more: all are sequences, or were given back."""
    claims._claims.clear()
    if claims._ref is not None:
        claims._open.pop(claims._ref, None)
        claims._ref = None  # their loss need not be noted any more
