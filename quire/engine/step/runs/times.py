"""Times of a run: when things happened on the engine's clock, and what a user sees of it. Knows no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NEVER = float("nan")


@dataclass(slots=True, eq=False)
class Times:
    """When things happened, on the engine's clock; 0.0: not yet."""

    submitted: float
    first_token: float = 0.0
    finished: float = 0.0
    asked: float = 0.0  # before it waited for a place; 0.0: it did not
    admitted: float = 0.0  # first got pages
    last_token: float = 0.0
    bound: float = 0.0  # when its first token was to come at the latest; 0.0: nothing was said

    def seen(self, num_tokens: int) -> RunTimes:
        """As a user sees them whose longest answer has so many tokens."""
        start = self.asked or self.submitted
        gaps = num_tokens - 1
        return RunTimes(
            queued=self.admitted - start if self.admitted else NEVER,
            first_token=self.first_token - start if self.first_token else NEVER,
            between_tokens=(self.last_token - self.first_token) / gaps if gaps > 0 and self.first_token else NEVER,
            total=self.finished - start if self.finished else NEVER,
            bound=self.bound - start if self.bound else NEVER,
        )


class RunTimes(NamedTuple):
    """Seconds from the moment it was asked for, a wait for a place included; nan: it did not come to that."""

    queued: float  # until it got pages
    first_token: float  # until the first token was on the host
    between_tokens: float  # from one token of an answer to the next, on average
    total: float  # until its answers were complete
    bound: float = NEVER  # until the first token, as was said when it was accepted with a deadline
