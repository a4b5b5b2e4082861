"""BackgroundCalls: what a cache under test is asked about its slow tier, and its bytes; and what it is told of the
future. A part of Subject."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuzzing.lasting import Lasting
from fuzzing.world import build
from fuzzing.world.content import Content
from fuzzing.world.plain import Ask, PlanFacts
from quire import Cache, Plan, Prefetch, Prepared, Refusal, Request
from quire.core.records.hint_words import BACKS

WORDS = (None, *BACKS)  # hints by number


class BackgroundCalls:
    """Copies down, prefetches, and their moves."""

    cache: Cache
    content: Content
    plans: dict[int, Plan]
    prefetches: dict[str, Prefetch]
    lasting: Lasting
    _plan: Callable[[Plan], PlanFacts]
    _request: Callable[[Ask], Request | Prepared]

    def copy_down(self, limit: int) -> PlanFacts:
        """Copies in the slow tier, ahead."""
        return self._plan(self.cache.copy_down(limit))

    def prefetch(self, key: str, ask: Ask, deadline: float | None) -> tuple[Any, PlanFacts | None]:
        """Bring up what a request will need, under a key; or what that lacks."""
        made = self.cache.prefetch(self._request(ask), deadline)
        if isinstance(made, Refusal):
            return (made.group, made.need, made.have), None
        self.prefetches[key] = made
        return made.end, self._plan(made.plan)

    def hint(self, ask: Ask, back: int, keep: int) -> int:
        """Text that is stored comes back then."""
        return self.cache.hint(build.int32(ask.tokens), WORDS[back], build.SCOPES[ask.scope], keep)

    def close_prefetch(self, key: str) -> None:
        """Its request is cancelled."""
        self.prefetches.pop(key).close()

    def open_prefetches(self) -> tuple[str, ...]:
        """Those that hold something."""
        still = self.cache.open_prefetches()
        return tuple(next(key for key, one in self.prefetches.items() if one is prefetch) for prefetch in still)

    def copy(self, number: int, places: Sequence[int], failed: Sequence[int] = ()) -> None:
        """Carry out some moves of a background plan; what fails leaves rubbish."""
        moves = self.plans[number].moves.tolist()
        for place in places:
            self.content.copy(moves[place][1:6], place in failed)
