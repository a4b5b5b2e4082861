"""The tokens of a step by definition: who may compute how much. Knows no pages."""

from __future__ import annotations

from fuzzing.oracle.charge import next_stop
from fuzzing.world.plain import Ask, Budget, World


class Purse:
    """What is left of a step's tokens, and the longest part of a prompt."""

    def __init__(self, world: World, budget: Budget) -> None:
        limits = [limit for limit in (world.max_chunk, budget.max_chunk) if limit is not None]
        self.world, self.left, self.chunk = world, budget.token_budget, min(limits, default=None)

    def grant(self, ask: Ask, start: int, end: int, junction: int) -> tuple[int, int] | None:
        """The whole rest, or with a chunk limit as many tokens as fit, no uncut span parted; exactly that is paid."""
        stop = end = next_stop(self.world, ask, start, end, junction)
        if self.chunk is not None:
            room = self.chunk if self.left is None else min(self.chunk, self.left)
            if room < end - start:
                stop = max(place for place in range(start + room + 1) if not ask.is_uncut(place))
                if stop <= start:
                    return None
        if self.left is not None:
            if stop - start > self.left:
                return None
            self.left -= stop - start
        return start, stop

    def lack(self, ask: Ask, start: int, num_tokens: int, had: int | None) -> tuple[int, int]:
        """What is short: with chunks the tokens up to the first place where a step may end, else all of them."""
        if self.chunk is None or had == 0:
            return num_tokens, had or 0
        first = next(place for place in range(start + 1, start + num_tokens + 1) if not ask.is_uncut(place))
        return first - start, self.chunk if had is None else min(self.chunk, had)
