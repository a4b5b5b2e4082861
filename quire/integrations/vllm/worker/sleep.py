"""Sleep: vLLM gives its device memory away and takes it back, and pages in host memory may stay. Knows no vLLM.

vLLM                      scheduler's side                         each rank
sleep: caches are reset   WeightsEpoch sets aside what was kept
       KV memory goes                                              SleepingMover.rest: copies end, none begin
wake:  KV memory is back                                           SleepingMover.wake
       ranks are asked    RankNote says that they slept: it counts again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quire.core.records.errors import InputError, StateError, say
from quire.integrations.vllm.common.worker_orders import Copy
from quire.integrations.vllm.worker.host_pages import Ended
from quire.integrations.vllm.worker.worker_side import PageMover


class RankNote(NamedTuple):
    """What a rank says when vLLM asks it: at start, and from 0.33 on when it wakes."""

    slots: int
    sleeps: int  # so often it slept


class SleepingMover:
    """A mover that can rest: then nothing of vLLM's device memory is read or written."""

    def __init__(self, mover: PageMover) -> None:
        self.mover = mover
        self.num_sleeps = 0
        self._is_asleep = False
        self._open: set[int] = set()

    def load(self, copy: Copy) -> None:
        """Begin to copy our slots into vLLM's blocks."""
        self._check_awake()
        self.mover.load(copy)
        self._open.add(copy.job)

    def store(self, copy: Copy) -> None:
        """Begin to copy vLLM's blocks into our slots."""
        self._check_awake()
        self.mover.store(copy)
        self._open.add(copy.job)

    def flush(self, jobs: Iterable[int]) -> None:
        """Wait until these have ended."""
        self.mover.flush(jobs)

    def take_ended(self) -> list[Ended]:
        """Copies that have ended since the last call."""
        ended = self.mover.take_ended()
        self._open.difference_update(one.copy.job for one in ended)
        return ended

    def rest(self) -> None:
        """vLLM's memory goes: whatever is under way ends first. Twice is once."""
        if not self._is_asleep:
            self.mover.flush(self._open)
            self.num_sleeps += 1
            self._is_asleep = True

    def wake(self) -> None:
        """It is back, at the addresses where it was."""
        self._is_asleep = False

    def _check_awake(self) -> None:
        if self._is_asleep:
            raise StateError(say("a copy", "vLLM sleeps, and its KV memory is away", "wake it up first"))


def check_slots(notes: Mapping[int, RankNote], slots: int) -> None:
    """Refuse ranks with fewer or more slots than the scheduler's side, which names them."""
    for rank, note in notes.items():
        if note.slots != slots:
            fact = f"rank {rank} has made {note.slots}: the memory it may have was changed, or is another machine's"
            raise InputError(say(f"{slots} pages in host memory", fact, "give 'host' in bytes"))
