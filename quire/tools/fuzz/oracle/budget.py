"""The tokens of a step by definition: who may compute how much. Knows no pages."""

from __future__ import annotations

from quire.tools.fuzz.oracle.state import State
from quire.tools.fuzz.plain import Budget


def grant(state: State, budget: Budget, left: list[int | None], start: int, end: int) -> tuple[int, int] | None:
    """The whole rest, or with a chunk limit as many whole blocks as fit; `left` is charged exactly that."""
    tokens = left[0]
    stop = end
    if budget.max_chunk is not None:
        room = budget.max_chunk if tokens is None else min(budget.max_chunk, tokens)
        if room < end - start:
            stop = (start + room) // state.world.block_size * state.world.block_size
            if stop <= start:
                return None
    if tokens is not None:
        if stop - start > tokens:
            return None
        left[0] = tokens - (stop - start)
    return start, stop
