"""ToyEngine: drives both sides of the connector as vLLM's scheduler and workers do, with dice for what happens when.

Needs no vLLM. A block's right bytes are known from its text, so every load, and every page in host memory, is checked.
Like vLLM it asks several times before it places, keeps the blocks of a load until every rank has ended it, hands out
freed blocks again at once, and with `ahead` orders a step before it has heard of the last one.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from quire import Cache, Found, Request, check
from quire.core.records.config import Eviction
from quire.integrations.vllm.common import worker_orders as orders
from quire.integrations.vllm.common.cache_groups import HOST, cache_config, slot_bytes
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.common.request_identity import scope_of
from quire.integrations.vllm.common.worker_orders import StepOrders, WorkerReport
from quire.integrations.vllm.reports.kv_events import EventTranslator, StoredBlocks
from quire.integrations.vllm.requests.state_tables import StateOffer
from quire.integrations.vllm.scheduler_side import SchedulerSide
from quire.integrations.vllm.worker.host_pages import HostPages
from quire.integrations.vllm.worker.worker_side import WorkerSide
from tests.integrations.toy_parts import LAYERS, SIZE, STRIP, WINDOW, Tables, ToyMover, ToyRequest, digest, groups


class Part(NamedTuple):
    """Tokens of a request in a step, and its blocks when that was ordered."""

    request: ToyRequest
    tables: Tables
    start: int
    end: int


class Step(NamedTuple):
    """One that was ordered."""

    orders: StepOrders
    parts: list[Part]
    own_hits: list[Part]  # what vLLM found on its device


def frozen(request: ToyRequest) -> Tables:
    return [list(table) for table in request.tables]


class ToyEngine:
    """One engine: a scheduler with few blocks and some ranks."""

    eviction: Eviction = "adaptive"
    longest = 256  # tokens of a request

    def __init__(
        self, seed: int, *, hybrid: bool = True, ranks: int = 1, ahead: bool = False, late: float = 0.0,
        failing: float = 0.0, host: int = 24, blocks: int = 40,
    ) -> None:  # fmt: skip
        self.rng, self.own = random.Random(seed), 0.25
        self.skips = 0.0  # how often one that runs is left out of a step
        self.kv_groups, self.ranks, self.ahead, self.num_blocks = self.open_groups(hybrid), ranks, ahead, blocks
        tensors = [SimpleNamespace(size=blocks * STRIP * LAYERS[0])]  # groups lie over each other
        model = SimpleNamespace(kv_cache_groups=self.kv_groups, kv_cache_tensors=tensors, num_blocks=blocks)
        self.clock = 0.0
        self.kv = [[[torch.zeros((blocks, STRIP), dtype=torch.uint8) for _ in g.layer_names] for g in self.kv_groups]
                   for _ in range(ranks)]  # fmt: skip
        slots = host * len(self.kv_groups)  # for so many blocks of all of them
        pages = self.open_pages(slots)
        self.side = self.open_side(model, slots)
        self.cache, self.events = self.side.cache, self.side.events
        self.movers = [ToyMover(one, self.rng, late, failing) for one in pages]
        self.workers = [WorkerSide(mover) for mover in self.movers]
        self.free = [list(range(1, blocks)) for _ in self.kv_groups]
        self.waiting: list[ToyRequest] = []
        self.running: list[ToyRequest] = []
        self.loading: dict[str, ToyRequest] = {}
        self.under_way: list[Step] = []
        self.own_hits: list[Part] = []
        self.preempted: set[str] = set()
        self.fresh: list[int] = []  # blocks that were handed out since the last order
        self.seen: Counter[str] = Counter()
        self._truth: dict[tuple[ToyRequest, int, int, int, int], torch.Tensor] = {}
        self.published: set[tuple[int, bytes]] = set()
        self.texts: list[ToyRequest] = []

    def open_groups(self, hybrid: bool) -> list[Any]:
        """The model's."""
        return groups(hybrid)

    def open_pages(self, slots: int) -> list[HostPages]:
        """Host memory of each rank."""
        return [HostPages(kv, slots, checksums=True) for kv in self.kv]

    def open_side(self, model: Any, slots: int) -> SchedulerSide:
        """The scheduler's side, and its cache."""
        options = ConnectorOptions(slots * slot_bytes(model, self.ranks), self.eviction, receipts=True)
        cache = Cache(cache_config(model, options, world_size=self.ranks, max_length=self.longest, events=True))
        events, clock = EventTranslator(cache), lambda: self.clock
        return SchedulerSide(cache, options, world_size=self.ranks, clock=clock, events=events)

    def come(self, request: ToyRequest) -> None:
        """Its pages are on their way: it is passed over."""

    # -- what a block must hold ------------------------------------------------------------------------------------

    def truth(self, request: ToyRequest, block: int, group: int, layer: int, rank: int) -> torch.Tensor:
        place = (request, block, group, layer, rank)  # a token that is known does not change
        if place not in self._truth:
            text = digest(request, request.all_token_ids[: (block + 1) * SIZE], group, layer, rank)
            self._truth[place] = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        return self._truth[place]

    def expect(self, request: ToyRequest, tables: Tables, block: int, where: str) -> None:
        """A block that was loaded, or that is read, has its right bytes on every rank."""
        for rank, kv in enumerate(self.kv):
            for group, layers in enumerate(kv):
                at = tables[group][block]
                for nth, layer in enumerate(layers):
                    if at and not torch.equal(layer[at], self.truth(request, block, group, nth, rank)):
                        raise AssertionError(f"{where}: block {block} of {request.request_id}, group {group}, is wrong")

    def fill(self, request: ToyRequest, tables: Tables, start: int, end: int) -> None:
        """KV of tokens: whole blocks become right, a part of one is worth nothing yet."""
        for block in range(start // SIZE, -(-end // SIZE)):
            whole = (block + 1) * SIZE <= min(end, request.num_tokens)
            for rank, kv in enumerate(self.kv):
                for group, layers in enumerate(kv):
                    for nth, layer in enumerate(layers):
                        if tables[group][block]:
                            right = self.truth(request, block, group, nth, rank) if whole else 255
                            layer[tables[group][block]] = right

    # -- vLLM's scheduler ------------------------------------------------------------------------------------------

    def add(self, request: ToyRequest) -> None:
        self.texts.append(request)
        self.side.arrive(request)
        self.waiting.append(request)

    def allocate(self, request: ToyRequest, end: int, computed: int) -> bool:
        """Blocks up to `end`; those that a window has passed are null. False: there are too few."""
        need = -(-end // SIZE)
        for group, free in enumerate(self.free):
            if need - len(request.tables[group] if request.tables else []) > len(free):
                return False
        request.tables = request.tables or [[] for _ in self.free]
        for group, (table, free) in enumerate(zip(request.tables, self.free, strict=True)):
            passed = max(0, computed - WINDOW + 1) // SIZE if group else 0
            while len(table) < need:
                table.append(0 if len(table) < passed else free.pop(self.rng.randrange(len(free))))
                self.fresh.append(table[-1])
            for block in range(min(passed, len(table))):
                if table[block]:
                    free.append(table[block])
                    table[block] = 0
        return True

    def _release(self, request: ToyRequest) -> None:
        for table, free in zip(request.tables, self.free, strict=False):
            free.extend(block for block in table if block)
        request.tables = []

    def _admit(self, request: ToyRequest) -> bool:
        """As vLLM does: look, find blocks, place. Some of the prompt may be in vLLM's own cache."""
        local = self.rng.randrange(request.num_tokens) if self.rng.random() < self.own else 0
        local -= local % SIZE
        for _ in range(self.rng.choice([1, 1, 3])):
            gain = self.side.look(request, local)
        if gain is None:
            self.come(request)
            return False
        if self.rng.random() < 0.1 or not self.allocate(request, local + gain or 1, local + gain):
            return False
        if local:  # vLLM's own hit: right bytes, in blocks that somebody computed before this step
            self.own_hits.append(Part(request, frozen(request), 0, local))
        self.side.place(request, request.tables, gain)
        request.num_computed_tokens = local + gain
        if gain:
            request.status, request.loading, request.failed = "loading", self.ranks, False
            self.loading[request.request_id] = request
            self.seen["loads"] += 1
        else:
            request.status = "running"
            self.running.append(request)
        return True

    def _preempt(self, request: ToyRequest) -> None:
        self.running.remove(request)
        self._release(request)
        request.num_computed_tokens, request.status = 0, "waiting"
        self.preempted.add(request.request_id)
        self.waiting.insert(0, request)
        self.seen["preemptions"] += 1

    def abort(self, request: ToyRequest) -> None:
        """Its blocks stay while a load goes into them."""
        if request.status == "over":
            return
        self.seen["aborts"] += 1
        was, request.status = request.status, "over"
        self.side.finish(request)
        if was == "waiting":
            self.waiting.remove(request)
        elif was == "running":
            self.running.remove(request)
            self._release(request)

    def schedule(self) -> None:
        """One call of vLLM's schedule: running ones first, then waiting ones."""
        step: list[ToyRequest] = []
        counts: dict[str, int] = {}
        for request in list(self.running):
            if request not in self.running or (self.skips and self.rng.random() < self.skips):
                continue
            counts[request.request_id] = self.chunk(request)
            if self._make_room(request, counts[request.request_id], step):
                step.append(request)
        if not self.preempted:
            while self.waiting and len(self.running) < 4 and self._admit(self.waiting[0]):
                self.waiting.pop(0)
        scheduled = {request.request_id: counts[request.request_id] for request in step}
        tables = {request.request_id: frozen(request) for request in step}
        states = {request.request_id: self.states(request, scheduled[request.request_id]) for request in step}
        ordered = self.side.order(scheduled, self.preempted, tables.__getitem__, self.fresh, states)
        self.fresh = []
        parts = []
        for request in step:
            start, count = request.num_computed_tokens, scheduled[request.request_id]
            parts.append(Part(request, tables[request.request_id], start, start + count))
            request.num_computed_tokens += count
        self.seen["early"] += len(ordered.early)
        self.under_way.append(Step(ordered, parts, self.own_hits))
        self.preempted, self.own_hits = set(), []

    def chunk(self, request: ToyRequest) -> int:
        """Tokens of it that the next step computes."""
        return min(max(1, request.num_tokens - request.num_computed_tokens), self.rng.choice([1, 3, 7, 30]))

    def states(self, request: ToyRequest, count: int) -> list[StateOffer]:
        """Recurrent states that are done when the next step has computed so many of its tokens."""
        return []

    def _make_room(self, request: ToyRequest, count: int, step: list[ToyRequest]) -> bool:
        """Blocks for so many more tokens; the last that runs makes room, and may be the one that asks."""
        while not self.allocate(request, request.num_computed_tokens + count, request.num_computed_tokens):
            victim = self.running[-1]
            if victim in step:
                step.remove(victim)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    # -- vLLM's workers --------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """The oldest step that was ordered: its KV, its copies, and what ranks report of them."""
        ordered, parts, own_hits = self.under_way.pop(0)
        self.clock += 1.0
        for worker in self.workers:
            worker.flush(ordered)
        for request, tables, start, end in own_hits:
            self.fill(request, tables, start, end)
        for request, tables, start, end in parts:
            for block in range(start // SIZE):
                self.expect(request, tables, block, "read")
            self.fill(request, tables, start, end)
        report: WorkerReport | None = None
        failed: set[str] = set()
        for worker in self.workers:
            worker.start_loads(ordered)
            worker.run_stores(ordered)
            got = worker.received()
            for name in got.ended:
                self.loading[name].loading -= 1
            failed |= got.failed
            told = worker.report()
            if told is not None:
                report = told if report is None else report.aggregate(told)
        for name in failed:
            self.loading[name].failed = True
        for request, _, _, end in parts:
            self._sampled(request, end)
        self.side.hear(report)
        self._loads_ended()
        self._hear_events()

    def _sampled(self, request: ToyRequest, end: int) -> None:
        if request.status != "running" or end < request.num_tokens:
            return
        if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
            request.status = "over"
            self.running.remove(request)
            self.side.finish(request)
            self._release(request)
            self.seen["done"] += 1
        else:
            request.all_token_ids.append(self.rng.randrange(50))

    def _loads_ended(self) -> None:
        for name, request in list(self.loading.items()):
            if request.loading:
                continue
            del self.loading[name]
            if request.status == "over":
                self._release(request)
            elif request.failed:
                self.seen["failed"] += 1
                self._release(request)
                request.num_computed_tokens, request.status = 0, "waiting"
                self.waiting.insert(0, request)
            else:
                for block in range(request.num_computed_tokens // SIZE):
                    self.expect(request, request.tables, block, "loaded")
                self.side.place(request, request.tables, 0)
                self.seen["whole prompts loaded"] += request.num_computed_tokens == request.num_tokens
                request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)  # as vLLM does
                request.status = "running"
                self.running.append(request)
                self.seen["loaded tokens"] += request.num_computed_tokens

    def _hear_events(self) -> None:
        for told in self.events.take() if self.events is not None else ():
            if isinstance(told, StoredBlocks):
                self.published.update((told.group, name) for name in told.hashes)
                names, ids = told.request.block_hashes, told.request.all_token_ids
                first, last = names.index(told.hashes[0]), names.index(told.hashes[-1]) + 1
                assert tuple(names[first:last]) == told.hashes and tuple(ids[first * SIZE : last * SIZE]) == told.tokens
                assert told.parent == (names[first - 1] if first else None)
            else:
                self.published.difference_update((told.group, name) for name in told.hashes)

    # -- all of it -------------------------------------------------------------------------------------------------

    def run(self, requests: list[ToyRequest], abort: float = 0.0) -> None:
        """Until all are over; raises when that takes for ever, which a livelock does."""
        todo = list(requests)
        for step in range(400 * len(requests)):
            while todo and self.rng.random() < 0.4:
                self.add(todo.pop(0))
            if abort and self.rng.random() < abort and self.texts:
                self.abort(self.rng.choice(self.texts))
            self.schedule()
            while len(self.under_way) > self.ahead:
                self.execute()
            if step % 16 == 0:
                check(self.cache)
            if not todo and not self.waiting and not self.running and not self.loading:
                break
        else:
            raise AssertionError("requests are still open: a livelock")
        while self.under_way:
            self.execute()
        while self.side.is_pending:  # vLLM steps on, with nothing to compute
            self.schedule()
            self.execute()
        self.nothing_is_held()

    def nothing_is_held(self) -> None:
        check(self.cache)
        self._hear_events()  # vLLM takes them with every step
        assert self.side.num_open == 0 and not self.side.is_pending
        assert not self.cache.open_finds() and not self.cache.open_writers() and not self.cache.open_plans()
        assert self.cache.usage(HOST).held == 0

    def pages_are_right(self) -> int:
        """Every page that any text finds has its right bytes on every rank, or a checksum that says it has not."""
        looked = 0
        for nth, request in enumerate(self.texts):
            asked = Request(("look", nth), np.array(request.all_token_ids, np.int32), scope_of(request, 0))
            with self.cache.find(asked) as found:
                looked += sum(self._pages_right(request, found, group) for group in range(len(self.kv_groups)))
        return looked

    def _pages_right(self, request: ToyRequest, found: Found, group: int) -> int:
        pairs = list(zip(found.blocks(group).tolist(), found.slots(group).tolist(), strict=True))
        for block, slot in pairs:
            for rank, mover in enumerate(self.movers):
                page = mover.pages.memory[slot]
                truth = [self.truth(request, block, group, nth, rank) for nth in range(LAYERS[group])]
                marked = mover.pages._bad_pages(orders.Part(group, [], [slot]))
                assert torch.equal(page[: STRIP * LAYERS[group]], torch.cat(truth)) or marked, (
                    f"page {slot} of group {group} is wrong"
                )
        return len(pairs)
