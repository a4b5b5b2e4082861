"""Places below an engine's host memory, and jobs that concern several: a disk, a shared store. Knows no engine.

    store ─► every part                     over when all of them are: its memory may go then; kept if one has it
    load  ─► the part that has each page    over when all of them are

One part that hangs or fails keeps none of the others from its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from quire.integrations.places.place_options import PlaceOptions
from quire.tiers.base import Bytes
from quire.tiers.disk.keyed import KeyDisk, KeyJobs, KeyJobsDone
from quire.tiers.shared.keyed import KeyLookups, KeyStore

ANSWER_AFTER = 2.0  # times the wait: a store's answer that has not come by then is a no
DONE_AFTER = 1.5  # times the deadline: a job that waits for a place that hangs is given up
AGAIN_AFTER = 60.0  # seconds after which a key that could not be loaded may be asked for again


class TierPart:
    """One place. A key that could not be loaded from it is a miss there for a while: else an engine would ask for it
    again at every step, and the request wait for ever."""

    def __init__(
        self, jobs: KeyJobs, lookups: KeyLookups | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.jobs, self.lookups, self._clock = jobs, lookups, clock
        self.unwell: dict[bytes, float] = {}  # until when

    def is_well(self, key: bytes) -> bool:
        """Whether it may be asked for."""
        return self._clock() >= self.unwell.get(key, 0.0)

    def finished(self) -> list[KeyJobsDone]:
        """What is over here."""
        done = self.jobs.finished()
        for job in done:
            if job.is_load and job.bad:
                now = self._clock()
                kept = {key: until for key, until in self.unwell.items() if until > now}
                self.unwell = kept | dict.fromkeys(job.bad, now + AGAIN_AFTER)
            elif not job.is_load:
                for key in job.good:
                    self.unwell.pop(key, None)
            if self.lookups is not None:
                self.lookups.mark(job.bad if job.is_load else job.good, not job.is_load)
        return done


@dataclass(slots=True)
class _Joined:
    """A job of several parts."""

    keys: tuple[bytes, ...]
    left: int  # parts that are not over
    good: set[bytes] = field(default_factory=set)
    seconds: float = 0.0
    page_bytes: int = 0


class JoinedJobs:
    """Jobs of several parts, as of one. For one thread."""

    def __init__(self, parts: Sequence[TierPart]) -> None:
        self.parts = tuple(parts)
        self._jobs: dict[int, _Joined] = {}

    def submit_store(self, number: int, keys: Sequence[bytes], pages: Sequence[Bytes]) -> None:
        """Keep these pages under these keys, everywhere."""
        self._jobs[number] = _Joined(tuple(keys), len(self.parts))
        for part in self.parts:
            part.jobs.submit_store(number, keys, pages)

    def submit_load(self, number: int, keys: Sequence[bytes], pages: Sequence[Bytes], where: Sequence[int]) -> None:
        """Fill these pages; `where`: each key's part, by number."""
        asked = sorted(set(where)) or [0]
        self._jobs[number] = _Joined(tuple(keys), len(asked))
        for nth in asked:
            ours = [(key, page) for key, page, at in zip(keys, pages, where, strict=True) if at == nth]
            self.parts[nth].jobs.submit_load(number, [key for key, _ in ours], [page for _, page in ours])

    def finished(self) -> list[KeyJobsDone]:
        """Jobs that are over in all their parts."""
        return [job for part in self.parts for done in part.finished() for job in self._join(done)]

    def _join(self, done: KeyJobsDone) -> Iterable[KeyJobsDone]:
        job = self._jobs[done.number]
        job.left -= 1
        job.good.update(done.good)
        job.seconds = max(job.seconds, done.seconds)
        job.page_bytes = max(job.page_bytes, done.num_bytes // max(1, len(done.good)))
        if not job.left:
            del self._jobs[done.number]
            good = tuple(key for key in job.keys if key in job.good)
            bad = tuple(key for key in job.keys if key not in job.good)
            yield KeyJobsDone(done.number, done.is_load, good, bad, job.seconds, len(good) * job.page_bytes)

    def drain(self) -> None:
        """Wait until every job is over."""
        for part in self.parts:
            part.jobs.drain()

    def close(self) -> bool:
        """End all parts; False: one does not answer."""
        ended = [part.jobs.close() for part in self.parts]
        return all(ended)


def joined(
    options: PlaceOptions, most_pages: int, disk: KeyDisk | None, store: KeyStore | None,
    lookups: KeyLookups | None = None, ended: Callable[[bool], None] = lambda is_load: None,
) -> JoinedJobs:  # fmt: skip
    """Jobs of whichever there are, the disk first. `lookups`: of the store; `ended`: as of `KeyJobs`."""
    parts = []
    for place, patience in ((disk, options.deadline), (store, options.wait)):
        if place is not None:
            jobs = KeyJobs(place, most_pages=most_pages, patience=DONE_AFTER * patience, ended=ended)
            parts.append(TierPart(jobs, lookups if place is store else None))
    return JoinedJobs(parts)
