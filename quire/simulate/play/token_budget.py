"""How many prompt tokens of a request one step computes under its budgets. Knows no cache."""

from __future__ import annotations


def part_of(start: int, end: int, left: int | None, max_chunk: int | None) -> int | None:
    """Tokens of one step from `start` on; None: it does not fit.

    `end` is where the step ends at the latest: the prompt's end, or a snapshot of a recurrent state before it.
    """
    tokens = end - start
    if max_chunk is not None:
        tokens = min(tokens, max_chunk, tokens if left is None else left)
    fits = tokens > 0 and (left is None or tokens <= left)
    return tokens if fits else None
