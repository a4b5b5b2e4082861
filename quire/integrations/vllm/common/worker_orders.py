"""Orders and reports: what the scheduler's side sends the workers each step, and what they answer. Plain data.

Both travel between processes, pickled by vLLM. A job is one copy of some pages, in either direction, by every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Part(NamedTuple):
    """Pages of one layer group: vLLM's block beside our slot."""

    group: int
    blocks: list[int]
    slots: list[int]


class BadPage(NamedTuple):
    """A page whose bytes could not be copied, or are not those that were stored."""

    group: int
    slot: int


@dataclass(slots=True)
class Copy:
    """One job."""

    job: int
    request_id: str
    parts: list[Part]

    def pages(self) -> list[BadPage]:
        """All of them, for a job that failed as a whole."""
        return [BadPage(part.group, slot) for part in self.parts for slot in part.slots]


@dataclass(slots=True)
class StepOrders:
    """Of one step. vLLM waits for the requests in `refused` as for those that load: they are reported as failed.

    `early` are stores of what steps before have computed: they begin before this one writes anything. `flush` names
    stores, of steps before or early ones, whose blocks vLLM has handed out again: they must end first.
    """

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    flush: list[int] = field(default_factory=list)
    early: list[Copy] = field(default_factory=list)


@dataclass(slots=True)
class WorkerReport:
    """Jobs that ranks have ended, and what went wrong; vLLM adds up those of all ranks."""

    ended: dict[int, int] = field(default_factory=dict)  # job: ranks
    bad: dict[int, list[BadPage]] = field(default_factory=dict)

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        """With another rank's, of the same step."""
        ended, bad = dict(self.ended), {job: list(pages) for job, pages in self.bad.items()}
        for job, ranks in other.ended.items():
            ended[job] = ended.get(job, 0) + ranks
        for job, pages in other.bad.items():
            bad.setdefault(job, []).extend(pages)
        return WorkerReport(ended, bad)
