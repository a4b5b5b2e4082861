"""KeyTier: pages by vLLM's keys below its host cache. Knows the interface of secondary tiers, needs no vLLM.

    complete_store ─► submit_store ─► disk            a row of the host cache is one page, with all ranks' parts
    lookup: HIT ────► submit_load ──► host cache      what is not as it was written is a failed load, and a miss after

All calls come from the scheduler's thread and return at once; `finished` gives each job's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quire.integrations.vllm.plugs.key_policy import Context
from quire.integrations.vllm.plugs.tier_options import TierOptions
from quire.tiers.disk import DiskIO, slots_for
from quire.tiers.disk.keyed import KeyDisk, KeyJobs, KeyJobsDone

AGAIN_AFTER = 60.0  # seconds after which a key that could not be loaded may be asked for again


@dataclass(slots=True)
class RequestKeys:
    """What was moved for a request: its keys in the order of its text, as far as that is known."""

    keys: dict[bytes, None] = field(default_factory=dict)
    loaded: set[bytes] = field(default_factory=set)


class KeyTier:
    """One disk below one host cache."""

    def __init__(
        self, view: memoryview, options: TierOptions, fingerprint: Callable[[int], bytes], **more: Any
    ) -> None:
        """`fingerprint`: of pages of so many bytes. `more` goes to the disk."""
        rows = np.frombuffer(view.cast("B"), np.uint8).reshape(view.shape[0], -1)  # type: ignore[index]
        size = rows.shape[1]
        num_slots = slots_for(options.bytes, (size,))
        self.disk = KeyDisk(
            options.folder, fingerprint(size), size, num_slots, eviction=options.eviction,
            io=DiskIO(deadline=options.deadline), **more,
        )  # fmt: skip
        most = max(1, int(options.waiting * len(rows)))
        self.jobs = KeyJobs(self.disk, rows, most_rows=most, patience=1.5 * options.deadline)
        self._unwell: dict[bytes, float] = {}  # keys that could not be loaded, and until when they are misses

    def has(self, key: bytes) -> bool:
        """Whether it is worth loading: there, and not given up a moment ago. In memory; nothing waits for the disk."""
        return key in self.disk and time.monotonic() >= self._unwell.get(key, 0.0)

    def submit(
        self, number: int, keys: Collection[bytes], rows: Sequence[int], is_load: bool, context: Context
    ) -> None:
        """A job; its end is among `finished`."""
        request = context.get_state(RequestKeys) or RequestKeys()
        context.set_state(request)
        request.keys.update(dict.fromkeys(keys))
        if is_load:
            request.loaded.update(keys)
        (self.jobs.submit_load if is_load else self.jobs.submit_store)(number, list(keys), [int(row) for row in rows])

    def finished(self) -> list[KeyJobsDone]:
        """Jobs that are over. A key that could not be loaded is a miss for a while: else vLLM would ask for it again at
        every step, and the request wait for ever."""
        done = self.jobs.finished()
        for job in done:
            if job.is_load and job.bad:
                now = time.monotonic()
                kept = {key: until for key, until in self._unwell.items() if until > now}
                self._unwell = kept | dict.fromkeys(job.bad, now + AGAIN_AFTER)
            elif not job.is_load:
                for key in job.good:
                    self._unwell.pop(key, None)
        return done

    def end_request(self, context: Context) -> None:
        """What it used, as one text."""
        request = context.get_state(RequestKeys)
        if request is None:
            return
        ends = {key: context.get_offload_key_position(key) for key in request.keys}
        keys = list(request.keys) if None in ends.values() else sorted(ends, key=lambda key: ends[key] or 0)
        for group in sorted({key[-4:] for key in keys}):  # the number of its KV cache group
            ours = [key for key in keys if key[-4:] == group]
            self.disk.use(ours, request.loaded.intersection(ours))

    def close(self) -> bool:
        """Make it durable, and let go of the host cache's memory; False: the disk does not answer."""
        return self.jobs.close()
