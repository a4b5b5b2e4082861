"""Reports: what a step did and where its time went, and the sums over all steps. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step."""

    num_tokens: int  # computed; never more than max_num_tokens
    num_branches: int  # that computed something
    num_admitted: int
    num_waiting: int  # branches without pages
    seconds: dict[str, float]  # by part: schedule, moves, pack, model, advance (on a GPU it waits there for the model)


@dataclass(slots=True)
class OverlapCounts:
    """What running ahead has done."""

    num_steps: int = 0  # launched while another was in flight
    num_ahead: int = 0  # tokens computed of which the host had not read the one before
    num_waits: int = 0  # steps that an answer sat out: the host had to read its token first
    num_drains: int = 0  # times that all was read before the next step was decided
    num_dropped: int = 0  # rows computed in vain: their answer had ended, or lost its pages


@dataclass(slots=True)
class Stats:
    """Sums over all steps."""

    num_steps: int = 0
    num_tokens: int = 0
    most_tokens: int = 0  # in one step
    num_admitted: int = 0
    num_setbacks: int = field(default=0, repr=False)  # promises that failed moves have changed
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, report: StepReport) -> None:
        """One more step."""
        self.num_steps += 1
        self.num_tokens += report.num_tokens
        self.most_tokens = max(self.most_tokens, report.num_tokens)
        self.num_admitted += report.num_admitted
        for part, spent in report.seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + spent


class Stopwatch:
    """Where the time of one step goes."""

    __slots__ = ("_last", "seconds")

    def __init__(self) -> None:
        self._last = perf_counter()
        self.seconds: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """What has passed since the last mark was spent on this."""
        now = perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
