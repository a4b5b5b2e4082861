"""LandedLoads: requests whose load has finished and that vLLM has not resumed yet. Knows their ids only.

They hold blocks, and vLLM reaches them in the order of its queue. Some versions stop at the first request that lacks
blocks; if the loads behind it hold those blocks, nothing ever runs again. `look` may defer a request, and vLLM skips a
deferred one: after a step that computes nothing, the requests in front are deferred so that vLLM reaches the loads.
"""

from __future__ import annotations


class LandedLoads:
    """Of one engine."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._is_stuck = False

    def add(self, request_id: str) -> None:
        """Its load has finished or failed; it keeps its blocks until vLLM resumes it."""
        self._ids.add(request_id)

    def discard(self, request_id: str) -> None:
        """vLLM has resumed it, or it is over."""
        self._ids.discard(request_id)

    def note_step(self, is_empty: bool) -> None:
        """A step was scheduled. After an empty one the others are deferred for one step, never for two in a row: if the
        loads lack room as well, a smaller request must still get its turn."""
        self._is_stuck = is_empty and bool(self._ids) and not self._is_stuck

    def defers(self, request_id: str) -> bool:
        """Whether this request is to be skipped for them now."""
        return self._is_stuck and bool(self._ids) and request_id not in self._ids
