"""Jobs: copies of pages that workers have under way, in either direction, and for whom. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quire.integrations.vllm.common.worker_orders import BadPage, Part, WorkerReport

Owner = TypeVar("Owner")


@dataclass(slots=True, eq=False)
class CopyJob:
    """A copy under way: a load, or a store, which has ordinals."""

    number: int
    end: int  # tokens whose pages are there when it is done
    parts: list[Part]
    ordinals: dict[int, list[int]]  # of a store, by group: which block of the text each page is; none of a load
    since: float
    ranks: int = 0  # that have ended it
    ended: bool = False
    bad: set[BadPage] = field(default_factory=set)
    lost: AbstractSet[int] = frozenset()  # vLLM's blocks of a store that were handed out again before it was heard of

    def bad_blocks(self) -> dict[int, list[int]]:
        """Blocks of a store whose pages could not be copied, by group."""
        if not self.bad:
            return {}
        return {
            part.group: [
                block for block, slot in zip(self.ordinals[part.group], part.slots, strict=True)
                if BadPage(part.group, slot) in self.bad
            ]
            for part in self.parts
        }  # fmt: skip


class OpenJobs(Generic[Owner]):
    """Of one engine; a job is done when all of `world_size` ranks have ended it, over however many steps."""

    def __init__(self, world_size: int, clock: Callable[[], float]) -> None:
        self._world_size, self._clock = world_size, clock
        self._open: dict[int, tuple[Owner, CopyJob]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[Owner, CopyJob]]:
        return iter(self._open.values())

    def begin(self, owner: Owner, end: int, parts: list[Part], ordinals: dict[int, list[int]]) -> CopyJob:
        """A new one, under a number that no other has."""
        self._last += 1
        job = CopyJob(self._last, end, parts, ordinals, self._clock())
        self._open[job.number] = owner, job
        return job

    def owner(self, number: int) -> Owner:
        """For whom it is."""
        return self._open[number][0]

    def hear(self, report: WorkerReport) -> Iterator[tuple[Owner, CopyJob]]:
        """What ranks have ended since; yields the jobs that are done now, which are open no longer."""
        for number, ranks in report.ended.items():
            owner, job = self._open.get(number, (None, None))
            if owner is None or job is None:
                continue
            job.ranks += ranks
            job.bad.update(report.bad.get(number, ()))
            if job.ranks >= self._world_size:
                del self._open[number]
                job.ended = True
                yield owner, job

    def is_any_younger(self, seconds: float) -> bool:
        """Whether some job began less than so long ago."""
        now = self._clock()
        return any(now - job.since < seconds for _, job in self._open.values())
