"""PoolScheduler: vLLM's scheduler closer than the toy engine has it: one pool of blocks for all groups, a prefix cache
with blocks that requests share, who is admitted computes in that step, drafts, steps ordered ahead, new weights.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

from quire import Cache
from quire.integrations.vllm.common.cache_groups import cache_config, slot_bytes
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.common.worker_orders import StepOrders
from quire.integrations.vllm.requests.page_stores import fresh_blocks
from quire.integrations.vllm.scheduler_side import SchedulerSide
from quire.integrations.vllm.worker.worker_side import WorkerSide
from tests.integrations.pool_parts import BlockPool, TagMover
from tests.integrations.toy_parts import SIZE, FullAttentionSpec, SlidingWindowSpec, Tables, ToyRequest

LONGEST = 256


@dataclass(eq=False)
class Run:
    """A request while it has blocks."""

    request: ToyRequest
    tables: Tables
    real: int = 0  # tokens whose KV is right, on the device
    is_mixed: bool = False  # computed with two kinds of weights
    placeholders: int = 0
    is_new: bool = True  # not told to the workers yet
    named: list[int] = field(default_factory=list)  # in this step


class Part(NamedTuple):
    """Tokens of a run in a step, and its blocks when that was ordered."""

    run: Run
    tables: Tables
    num_tokens: int
    drafts: int
    epoch: int
    samples: bool


class Step(NamedTuple):
    """One that was ordered."""

    orders: StepOrders
    parts: list[Part]
    zeroed: list[int]


class PoolScheduler:
    """Of one engine. `windows` has one for each group, None for one that reads everything."""

    def __init__(
        self, seed: int, windows: list[int | None], *, ranks: int = 1, ahead: int = 0, host: int = 24,
        blocks: int = 60, faults: dict[str, float] | None = None, most: int | None = None,
    ) -> None:  # fmt: skip
        self.rng, self.windows, self.ranks, self.ahead = random.Random(seed), windows, ranks, ahead
        self.drafts = False
        specs = [
            FullAttentionSpec(block_size=SIZE, page_size_bytes=8) if window is None
            else SlidingWindowSpec(block_size=SIZE, page_size_bytes=8, sliding_window=window)
            for window in windows
        ]  # fmt: skip
        groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[f"{nth}"]) for nth, spec in enumerate(specs)]
        tensors = [SimpleNamespace(size=blocks * 8)]
        model = SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=tensors, num_blocks=blocks)
        slots = host * len(windows)  # for so many blocks of all groups
        options = ConnectorOptions(slots * slot_bytes(model, ranks), receipts=self.rng.random() < 0.3)
        self.cache = Cache(cache_config(model, options, world_size=ranks, max_length=LONGEST, events=False))
        self.clock = 0.0
        self.side = SchedulerSide(self.cache, options, world_size=ranks, clock=lambda: self.clock)
        if most is not None:
            self.side.stores.set_most_blocks(most)
        self.pool = BlockPool(blocks, self.rng)
        self.movers = [TagMover(self.rng, blocks, slots, faults or {}) for _ in range(ranks)]
        self.workers = [WorkerSide(mover) for mover in self.movers]
        self.waiting: list[ToyRequest] = []
        self.running: list[Run] = []
        self.loading: dict[str, Run] = {}
        self.loaded: dict[str, Run] = {}  # they run with the next step
        self.under_way: list[Step] = []
        self.preempted: set[str] = set()
        self.epoch, self.garbage = 0, 0
        self.texts: list[ToyRequest] = []
        self._texts: dict[tuple[ToyRequest, int, int], int] = {}
        self.seen: Counter[str] = Counter()
        self.zeroes = self.rng.random() < 0.3  # vLLM does so for some models

    # -- what a block must hold --------------------------------------------------------------------------------------

    def text(self, request: ToyRequest, block: int, epoch: int) -> int:
        """Stands for a text up to the end of a block, with all that its KV depends on."""
        place = (request, block, epoch)
        if place not in self._texts:  # a token that is known does not change
            self._texts[place] = self._hash(request, (block + 1) * SIZE, epoch)
        return self._texts[place]

    def _hash(self, request: ToyRequest, end: int, epoch: int) -> int:
        media = sorted(
            (one.identifier, one.mm_position.offset, one.mm_position.length)
            for one in request.mm_features if one.mm_position.offset < min(end, request.num_prompt_tokens)
        )  # fmt: skip
        assert end <= request.num_tokens
        lora = request.lora_request.lora_name if request.lora_request else None
        return hash((tuple(request.all_token_ids[:end]), request.cache_salt, lora, tuple(media), epoch))

    def nothing(self) -> tuple[str, int]:
        """What nobody can use, and no other has."""
        self.garbage += 1
        return ("garbage", self.garbage)

    def first_read(self, group: int, tokens: int) -> int:
        """The first block that a query behind so many tokens reads."""
        window = self.windows[group]
        return 0 if window is None else max(0, tokens - window + 1) // SIZE

    # -- vLLM's scheduler --------------------------------------------------------------------------------------------

    def add(self, request: ToyRequest) -> None:
        self.texts.append(request)
        self.side.arrive(request)
        self.waiting.append(request)

    def _own_hit(self, request: ToyRequest) -> list[list[int]]:
        """Leading blocks that vLLM has itself, by group; null ones where a window has passed."""
        texts = [self.text(request, block, self.epoch) for block in range((request.num_tokens - 1) // SIZE)]
        for length in range(len(texts), 0, -1):
            found = []
            for group in range(len(self.windows)):
                first = self.first_read(group, length * SIZE)
                here = [self.pool.cached.get((group, one), 0) for one in texts[first:length]]
                if not all(here):
                    break
                found.append([0] * first + here)
            else:
                return found
        return [[] for _ in self.windows]

    def _grow(self, run: Run, end: int, read_from: int) -> bool:
        """Blocks up to `end`; those that nobody reads behind `read_from` go back. False: there are too few."""
        need = -(-end // SIZE)
        for group, table in enumerate(run.tables):  # vLLM lets go first
            for block in range(min(self.first_read(group, read_from), len(table))):
                if table[block]:
                    self.pool.drop([table[block]])
                    table[block] = 0
        wanted = sum(
            max(0, need - max(len(table), self.first_read(group, read_from))) for group, table in enumerate(run.tables)
        )
        if wanted > len(self.pool.free):
            return False
        for group, table in enumerate(run.tables):
            while len(table) < need:
                table.append(0 if len(table) < self.first_read(group, read_from) else self.pool.take())
        return True

    def _admit(self, request: ToyRequest) -> bool:
        if request.request_id in self.loaded:
            run = self.loaded.pop(request.request_id)
            if self.rng.random() < 0.2:
                self.loaded[request.request_id] = run  # no room in this step
                return False
            self.side.place(request, run.tables, 0)
            return self._begin(run)
        skips = request.skip_reading_prefix_cache
        own = [[] for _ in self.windows] if skips else self._own_hit(request)
        local = len(own[0]) * SIZE
        for _ in range(self.rng.choice([1, 1, 3])):
            gain = self.side.look(request, local)
        if gain is None:  # after a step that computed nothing, for finished loads behind it: asked again
            return False
        most = request.num_tokens - any(window is not None for window in self.windows)
        assert gain >= 0 and (not gain or local + gain <= most)
        total = local + gain
        run = Run(request, [list(table) for table in own], local)
        for table in run.tables:
            for block in table:
                if block:
                    self.pool.share(block)
        if self.rng.random() < 0.1 or not self._grow(run, total, total):
            self._release(run)
            return False
        if not gain:
            request.num_computed_tokens = local
            if not self._grow(run, local + 1, local):
                self._release(run)
                return False
            self.side.place(request, run.tables, 0)
            return self._begin(run)
        self.side.place(request, run.tables, gain)
        request.num_computed_tokens, request.status = total, "loading"
        request.loading, request.failed = self.ranks, False
        run.real = total
        self.loading[request.request_id] = run
        self.seen["loads"] += 1
        return True

    def _begin(self, run: Run) -> bool:
        run.request.status = "running"
        self.running.append(run)
        return True

    def _release(self, run: Run) -> None:
        for table in run.tables:
            self.pool.drop(reversed(table))
        run.tables = [[] for _ in self.windows]

    def _preempt(self, run: Run, drop: bool = False) -> None:
        self.running.remove(run)
        for block in run.named:
            self.pool._forget(block)  # it was not computed
        self._release(run)
        run.request.num_computed_tokens, run.request.status = 0, "waiting"
        run.request.failed = drop
        self.preempted.add(run.request.request_id)
        self.waiting.insert(0, run.request)
        self.seen["preemptions"] += 1

    def abort(self, request: ToyRequest) -> None:
        """Its blocks stay while a load goes into them."""
        if request.status == "over":
            return
        self.seen["aborts"] += 1
        was, request.status = request.status, "over"
        self.side.finish(request)
        if request in self.waiting:
            self.waiting.remove(request)
        if was == "running":
            (run,) = [run for run in self.running if run.request is request]
            self.running.remove(run)
            self._release(run)
        elif request.request_id in self.loaded:
            self._release(self.loaded.pop(request.request_id))

    def reset(self, keeps_running: bool) -> None:
        """New weights: who runs begins anew, or goes on with what it has."""
        if self.loading or self.loaded:
            return
        for run in list(reversed(self.running)):
            if keeps_running:
                run.is_mixed = True
            else:
                self._preempt(run, drop=True)
        self.pool.clear()
        self.epoch += 1
        assert self.side.reset()
        self.seen["resets"] += 1

    def _count(self, run: Run) -> tuple[int, int]:
        """Tokens of it in this step, and how many of them are drafts."""
        request = run.request
        todo = request.num_tokens + run.placeholders - request.num_computed_tokens
        if run.placeholders and request.num_tokens + run.placeholders >= request.num_prompt_tokens + request.max_tokens:
            return 0, 0
        drafts = self.rng.choice([0, 1, 3, 6]) if self.drafts and todo == 1 else 0
        return min(todo, self.rng.choice([1, 3, 8, 30, 100])) + drafts, drafts

    def schedule(self) -> None:
        """One call of vLLM's schedule: running ones first, then waiting ones, which compute at once."""
        step: dict[Run, tuple[int, int]] = {}
        self.pool.given.clear()
        preempts = False
        for run in list(self.running):
            if run not in self.running or self.rng.random() < 0.1:
                continue
            preempts = not self._schedule(run, step) or preempts
        if not preempts:
            while self.waiting and len(self.running) < 5:
                first = (one for one in self.waiting if one.request_id in self.loaded)  # they have blocks
                request = next(first, self.waiting[0])
                if not self._admit(request):
                    break
                self.waiting.remove(request)
                if request.status == "running" and not self._schedule(self.running[-1], step, admitted=True):
                    break
        self._order(step)

    def _schedule(self, run: Run, step: dict[Run, tuple[int, int]], admitted: bool = False) -> bool:
        count, drafts = self._count(run)
        if not count:
            return True
        computed = run.request.num_computed_tokens
        if admitted:
            room = len(run.tables[0]) + len(self.pool.free) // len(self.windows)
            count, drafts = min(count - drafts, max(1, room * SIZE - computed)), 0
        while not self._grow(run, computed + count, min(computed, run.real)):
            if admitted:
                count = 1
                if not self._grow(run, computed + 1, min(computed, run.real)):
                    self._preempt(run)
                    self.preempted.discard(run.request.request_id)  # as if it had not been admitted
                    return False
                break
            victim = self.rng.choice(self.running) if self.rng.random() < 0.3 else self.running[-1]
            step.pop(victim, None)
            self._preempt(victim)
            if victim is run:
                return False
        step[run] = (count, drafts)
        if not run.is_mixed:
            self._name(run, min(computed + count - drafts, run.request.num_tokens))
        return True

    def _name(self, run: Run, end: int) -> None:
        for group, table in enumerate(run.tables):
            for block in range(end // SIZE):
                if table[block] and table[block] not in self.pool.keys:
                    self.pool.name(table[block], (group, self.text(run.request, block, self.epoch)))
                    run.named.append(table[block])

    def _order(self, step: dict[Run, tuple[int, int]]) -> None:
        given, zeroed = set(self.pool.given), self.pool.given.copy() if self.zeroes else []
        told = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(block_ids=run.tables) for run in step if run.is_new],
            scheduled_cached_reqs=SimpleNamespace(new_block_ids=[
                [[block for block in table if block in given] for table in run.tables] for run in step if not run.is_new
            ]),
            new_block_ids_to_zero=zeroed, kv_cache_block_copies=None,
        )  # fmt: skip
        tables = {run.request.request_id: [list(table) for table in run.tables] for run in step}
        scheduled = {run.request.request_id: count for run, (count, _) in step.items()}
        fresh = fresh_blocks(told) if self.side.is_storing else ()
        ordered = self.side.order(scheduled, sorted(self.preempted), tables.__getitem__, fresh)
        parts = []
        for run, (count, drafts) in step.items():
            request, run.is_new = run.request, False
            samples = request.num_computed_tokens + count - drafts >= request.num_tokens + run.placeholders
            parts.append(Part(run, tables[request.request_id], count, drafts, self.epoch, samples))
            request.num_computed_tokens += count
            if samples:
                run.placeholders += 1 + drafts
        for run in self.running:
            run.named.clear()
        self.seen["early"] += len(ordered.early)
        self.seen["flushed"] += len(ordered.flush)
        self.seen["stores"] += len(ordered.stores)
        self.under_way.append(Step(ordered, parts, zeroed))
        self.preempted = set()
