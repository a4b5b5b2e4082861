"""LastingEngine: the toy engine with a disk, or a store that machines share, below its host memory. Real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quire import Cache, Request
from quire.integrations.vllm.common.cache_groups import HOST, cache_config, slot_bytes
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.common.request_identity import scope_of
from quire.integrations.vllm.outer.outer_pages import OuterPages
from quire.integrations.vllm.outer.page_memory import MemoryShape, PageMemory
from quire.integrations.vllm.reports.kv_events import EventTranslator
from quire.integrations.vllm.scheduler_side import SchedulerSide
from quire.integrations.vllm.worker.host_pages import HostPages, RankMemory, part_bytes
from quire.tiers.disk.calls.files import Files
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import ToyRequest

SECONDS = 120.0  # for a thread that must come to its end on a busy machine
WHICH = bytes(range(32))  # stands for a model's fingerprint


class LastingEngine(ToyEngine):
    """`at` is a folder for the memory that processes share; `below` has the options `disk`, `shared` and so on."""

    def __init__(self, seed: int, at: Path, below: dict[str, Any], files: Files | None = None, **more: Any) -> None:
        self.at, self.below, self.files = at, {"wait": SECONDS} | below, files
        super().__init__(seed, **more)

    def open_pages(self, slots: int) -> list[HostPages]:
        made = []
        for rank, kv in enumerate(self.kv):
            memory = PageMemory.make(
                "pages", MemoryShape(slots, self.ranks, max(part_bytes(kv)), len(kv), "toy"), self.at
            )
            made.append(HostPages(kv, slots, checksums=True, memory=RankMemory.of_rank(memory, rank)))
        return made

    def open_side(self, model: Any, slots: int) -> SchedulerSide:
        options = ConnectorOptions(host=slots * slot_bytes(model, self.ranks), receipts=True)
        options, memory = replace(options, **self.below), PageMemory.take("pages", self.at)
        size = memory.shape.whole_page
        config = cache_config(model, options, world_size=self.ranks, max_length=256, events=True, page_bytes=size)
        cache = Cache(config)
        self.outer = OuterPages(cache, memory, options, WHICH, files=self.files)
        events, clock = EventTranslator(cache), lambda: self.clock
        return SchedulerSide(cache, options, world_size=self.ranks, clock=clock, events=events, outer=self.outer)

    def come(self, request: ToyRequest) -> None:
        """vLLM would step on; here time passes until the threads have done what they were asked."""
        if self.rng.random() < 0.7:
            self.settle()

    def settle(self) -> None:
        """What was asked of the threads so far is done."""
        if self.outer.keeper is not None:
            self.outer.keeper.idle(SECONDS)
        if self.outer.shared is not None:
            assert self.outer.shared.wait_until_idle(SECONDS)

    def nothing_is_held(self) -> None:
        self.settle()
        for _ in range(100):  # a copy down may be under way, by the keeper's own choice
            if not self.cache.background_plans():
                break
            self.settle()
        super().nothing_is_held()
        assert not self.cache.open_prefetches()
        self.events_tell_what_is_there()

    def events_tell_what_is_there(self) -> None:
        """Of host memory: all of it, but for pages that came up for a request that is over."""
        self._hear_events()
        assert self.events is not None
        groups, nameless = range(len(self.kv_groups)), self.events.num_nameless
        assert len(self.published) + nameless == self.cache.usage(HOST).idle  # all groups have one pool
        there = set()
        for nth, request in enumerate(self.texts):
            asked = Request(("told", nth), np.array(request.all_token_ids, np.int32), scope_of(request, 0))
            with self.cache.find(asked) as found:
                for group in groups:
                    at = zip(found.blocks(group).tolist(), found.tiers(group).tolist(), strict=True)
                    there |= {(group, request.block_hashes[block]) for block, tier in at if tier == HOST}
        assert len(there - self.published) <= nameless
