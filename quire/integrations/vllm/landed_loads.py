"""LandedLoads: requests whose load has ended and that vLLM has not gone on with. Knows their names only.

They have blocks, and vLLM reaches them in the order of its queue. Some of its versions stop at the first request that
lacks blocks, and when those are the blocks of a load that stands behind it nothing ever runs again. A request that is
told to be asked for again is passed over: so whoever stands before them is, after a step in which nothing ran.
"""

from __future__ import annotations


class LandedLoads:
    """Of one engine."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._is_stuck = False

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Its load has ended, well or not; its blocks are still its own."""
        self._names.add(name)

    def discard(self, name: str) -> None:
        """vLLM has come to it, or it is over."""
        self._names.discard(name)

    def step(self, is_empty: bool) -> None:
        """A step was ordered. After one that computes nothing others make way in the next, and only there: had those
        that landed no room either, nobody would be asked any more."""
        self._is_stuck = is_empty and bool(self._names) and not self._is_stuck

    def go_first(self, name: str) -> bool:
        """Whether this request should be passed over for them."""
        return self._is_stuck and bool(self._names) and name not in self._names
