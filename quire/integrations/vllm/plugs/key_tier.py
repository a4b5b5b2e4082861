"""KeyTier: pages by vLLM's keys below its host cache. Knows the interface of secondary tiers, needs no vLLM.

    complete_store ─► submit_store ─► disk, shared store    a row of the host cache is one page, with all ranks' parts
    lookup: HIT ────► submit_load ──► host cache            what is not as it was written is a failed load, a miss after
            RETRY: the store has been asked, with all that the step looks up

All calls come from the scheduler's thread and return at once; `finished` gives each job's end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quire.integrations.places.joined_jobs import ANSWER_AFTER, joined
from quire.integrations.places.open_places import both_of
from quire.integrations.vllm.plugs.key_policy import Context
from quire.integrations.vllm.plugs.tier_options import TierOptions
from quire.tiers.base import Bytes
from quire.tiers.disk.keyed import KeyJobsDone
from quire.tiers.shared.keyed import KeyLookups


@dataclass(slots=True)
class RequestKeys:
    """What was moved for a request: its keys in the order of its text, as far as that is known."""

    keys: dict[bytes, None] = field(default_factory=dict)
    loaded: set[bytes] = field(default_factory=set)


class KeyTier:
    """A disk, a shared store or both below one host cache."""

    def __init__(
        self, view: memoryview, options: TierOptions, fingerprint: Callable[[int], bytes], **more: Any
    ) -> None:
        """`fingerprint`: of pages of so many bytes. `more` goes to the disk."""
        self._rows: Bytes = np.frombuffer(view.cast("B"), np.uint8).reshape(view.shape[0], -1)  # type: ignore[index]
        size = self._rows.shape[1]
        self.disk, self.store = both_of(options, fingerprint(size), size, **more)
        self._lookups = None if self.store is None else KeyLookups(self.store.exist, ANSWER_AFTER * options.wait)
        self.jobs = joined(
            options, max(1, int(options.waiting * len(self._rows))), self.disk, self.store, self._lookups
        )
        self._refused: list[KeyJobsDone] = []

    def has(self, key: bytes, request: str = "") -> bool | None:
        """Whether it is worth loading: there, and not given up a moment ago. None: the store has been asked."""
        if self._on_disk(key):
            return True
        if self._lookups is None or not self.jobs.parts[-1].is_well(key):
            return False
        return self._lookups.look(key, request)

    def _on_disk(self, key: bytes) -> bool:
        return self.disk is not None and key in self.disk and self.jobs.parts[0].is_well(key)

    def flush(self) -> None:
        """A step is over: the store is asked for what its lookups did not know."""
        if self._lookups is not None:
            self._lookups.flush()

    def submit(
        self, number: int, keys: Collection[bytes], rows: Sequence[int], is_load: bool, context: Context
    ) -> None:
        """A job; its end is among `finished`."""
        moved, places = list(keys), [self._rows[at] for row in rows if 0 <= (at := int(row)) < len(self._rows)]
        if len(places) < len(moved):  # a row that there is not
            self._refused.append(KeyJobsDone(number, is_load, (), tuple(moved), 0.0, 0))
            return
        request = context.get_state(RequestKeys) or RequestKeys()
        context.set_state(request)
        request.keys.update(dict.fromkeys(keys))
        if not is_load:
            self.jobs.submit_store(number, moved, places)
            return
        request.loaded.update(keys)
        last = len(self.jobs.parts) - 1
        self.jobs.submit_load(number, moved, places, [0 if self._on_disk(key) else last for key in moved])

    def finished(self) -> list[KeyJobsDone]:
        """Jobs that are over."""
        refused, self._refused = self._refused, []
        return refused + self.jobs.finished()

    def end_request(self, context: Context) -> None:
        """What it used, as one text; what the store said of it is forgotten."""
        if self._lookups is not None:
            self._lookups.end(context.req_id)
        request = context.get_state(RequestKeys)
        if request is None or self.disk is None:
            return
        ends = {key: context.get_offload_key_position(key) for key in request.keys}
        keys = list(request.keys) if None in ends.values() else sorted(ends, key=lambda key: ends[key] or 0)
        for group in sorted({key[-4:] for key in keys}):  # the number of its KV cache group
            ours = [key for key in keys if key[-4:] == group]
            self.disk.use(ours, request.loaded.intersection(ours))

    def close(self) -> bool:
        """Make it durable, and let go of the host cache's memory; False: a part does not answer."""
        ended = self.jobs.close()
        self._rows = self._rows[:0].copy()
        return ended
