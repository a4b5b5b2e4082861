"""SchedulerSide: vLLM's scheduler asks, this answers from the cache and orders copies. Moves no bytes, knows no torch.

    arrive    a request has come: pages begin their way from disk or store
    look      hold exactly the hit behind what vLLM has itself        (asked again and again while vLLM lacks blocks)
    place     vLLM has blocks: order the load, or let go
    order     what this step completes is stored; looks that came to nothing are closed
    hear      every rank has ended a job: pages are findable, or lost
    finish    the request is over; what is under way is waited for

Loads are asynchronous only: nothing is computed, and so nothing stored, on top of a load that may still fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from quire.core.cache import Cache
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.common.request_hints import back_of
from quire.integrations.vllm.common.request_identity import (
    PARAMS,
    EngineRequest,
    adapter_name,
    can_share,
    params_of,
    scope_of,
)
from quire.integrations.vllm.common.request_tokens import RequestTokens
from quire.integrations.vllm.common.worker_orders import BadPage, Copy, StepOrders, WorkerReport
from quire.integrations.vllm.landed_loads import LandedLoads
from quire.integrations.vllm.outer.outer_pages import OuterPages
from quire.integrations.vllm.reports.connector_counts import ConnectorCounts
from quire.integrations.vllm.reports.kv_events import EventTranslator
from quire.integrations.vllm.reports.request_recording import RequestRecording
from quire.integrations.vllm.requests.jobs import CopyJob, OpenJobs
from quire.integrations.vllm.requests.page_futures import PageFutures
from quire.integrations.vllm.requests.page_stores import PageStores
from quire.integrations.vllm.requests.state_tables import StateOffer, StateTables
from quire.integrations.vllm.requests.stay import Stay
from quire.integrations.vllm.requests.stay_text import StayText, loads_all
from quire.integrations.vllm.requests.tables import NULL, Tables
from quire.integrations.vllm.weights_epoch import WeightsEpoch

MOST_FAILURES = 3  # loads of one request that may fail before it is offered nothing more
NO_STATES: Mapping[str, Sequence[StateOffer]] = {}
PATIENCE = 60.0  # seconds for which a job keeps an engine without requests awake


class SchedulerSide:
    """One per engine; every hook runs in the scheduler's thread."""

    def __init__(
        self, cache: Cache, options: ConnectorOptions, *, world_size: int, clock: Callable[[], float] = time.monotonic,
        events: EventTranslator | None = None, outer: OuterPages | None = None,
        recording: RequestRecording | None = None, redo_blocks: int = 0,
    ) -> None:  # fmt: skip
        self.cache, self.options = cache, options
        self.counts = ConnectorCounts(cache, outer)
        self.jobs: OpenJobs[Stay] = OpenJobs(world_size, clock)
        self.stores = PageStores(cache, self.counts, self.jobs)
        self.events, self.outer, self.recording = events, outer, recording
        self._adapter = adapter_name if outer is None else outer.adapters.name
        self._size, self._groups = cache.config.block_size, range(len(cache.config.groups))
        self._states = StateTables(cache.config.groups, self._size)
        self._text_of = partial(StayText, loads_all=loads_all(cache.config.groups), redo_blocks=redo_blocks)
        self.futures = PageFutures(cache, self.counts)
        self._stays: dict[str, Stay] = {}
        self._tokens: dict[str, RequestTokens] = {}  # of all requests, over all their stays
        self._asked: dict[str, Stay] = {}  # looked up since the last order, and not placed yet
        self._orders = StepOrders()
        self._coming: set[str] = set()  # requests that are passed over
        self._landed = LandedLoads()
        self._failures: dict[str, int] = {}
        self._receipts: dict[str, dict[str, Any]] = {}
        self.weights = WeightsEpoch(is_lasting=outer is not None, keep_over_sleep=options.keep_over_sleep)
        self._step = self._num_stays = 0

    # -- a request waits ---------------------------------------------------------------------------------------------

    def arrive(self, request: EngineRequest) -> None:
        """A request has come, and may wait for long: what lies below host memory begins its way now."""
        if self.recording is not None:
            self.recording.arrived(request)
        if can_share(request):
            stay = self._stay_of(request)
            stay.text.whole()  # its tokens are read here, not when a step asks
            self.futures.arrived(stay)
            if not request.skip_reading_prefix_cache:
                self._bring_ahead(stay)

    def _bring_ahead(self, stay: Stay) -> None:
        if self.outer is not None and not stay.ahead.is_asked and stay.request.num_tokens > self._size:
            if self.events is not None:  # pages that come are published under its names
                self.events.learn(stay.names, stay.text.tokens(), stay.text.prepared(self.cache).request)
            stay.ahead.ask(self.outer, stay.text, self.cache)
            self.counts.add("prefetches")

    def look(self, request: EngineRequest, computed: int) -> int | None:
        """Tokens behind the first `computed` that can be loaded; what is promised is held until `place` or `order`.

        None: vLLM is to ask again. Pages are on their way into host memory, or finished loads are to be resumed first.
        """
        if self.weights.step():
            self._forget()
        if self._landed.defers(request.request_id):
            return None
        self._landed.discard(request.request_id)  # its load failed, and it begins anew
        if not can_share(request):
            return 0
        stay = self._stay_of(request)
        stay.loads.let_go()
        refused = request.skip_reading_prefix_cache or self._failures.get(request.request_id, 0) >= MOST_FAILURES
        if self.outer is not None and not refused and self._is_coming(stay):
            self._coming.add(request.request_id)
            return None
        stay.loads.found = found = self.cache.find(stay.text.prepared(self.cache), from_=computed)
        self._asked[request.request_id] = stay
        gain = found.end - computed
        return 0 if refused or gain < self.options.min_load_tokens else gain

    def _is_coming(self, stay: Stay) -> bool:
        """Whether it should be passed over; pages that came are held until it is placed, or for a while."""
        self._bring_ahead(stay)
        pages = stay.ahead.pages
        if pages is None:
            return False
        if not pages.done:
            return True
        if stay.request.request_id in self._coming and pages.late:
            self.counts.add("late_prefetches")
        self._coming.discard(stay.request.request_id)
        return False

    def _stay_of(self, request: EngineRequest) -> Stay:
        """The one that waits; a request that had blocks and asks again was preempted, or its load failed."""
        stay = self._stays.get(request.request_id)
        if stay is not None and (stay.placed or stay.scope.epoch != (self.weights.number or None)):
            stay.comes_back = True
            self._end(stay)
            stay = None
        if stay is None:
            self._num_stays += 1
            tokens = self._tokens.setdefault(request.request_id, RequestTokens())
            scope = scope_of(request, self.weights.number, self._adapter)
            stay = Stay(self._text_of(request, tokens, self._num_stays, scope), self._step)
            self._stays[request.request_id] = stay
        return stay

    def place(self, request: EngineRequest, tables: Tables, external: int) -> None:
        """vLLM has given it blocks; `external` tokens of them are to be loaded."""
        stay = self._stays.get(request.request_id)
        if stay is None:
            return
        self._asked.pop(request.request_id, None)
        if not stay.placed:
            stay.placed = True
            self._note_use(stay, external)
            stay.ahead.close()
        loads, stores = stay.loads, stay.stores
        if not external:
            self._landed.discard(request.request_id)
            loads.let_go()
            if stores.writer is None and not stores.full and request.num_prompt_tokens >= self._size:
                stores.open_writer(self.cache)  # here, where little else is to do, and not in its first step
            return
        parts = loads.parts(tables, external, self._size)
        if parts is None or loads.found is None:
            self._refuse(stay)
            return
        loads.job = job = self.jobs.begin(stay, loads.found.end, parts, {})
        self._orders.loads.append(Copy(job.number, request.request_id, parts))
        self.counts.add("loads")

    def _note_use(self, stay: Stay, external: int) -> None:
        """The eviction order learns what was used, on the device too: what is used there is used."""
        found = stay.loads.found
        if found is None:
            return
        stay.loads.there = found.end
        if external and not found.start:
            stay.stores.skip_to(found.end)
        if self.options.receipts:
            receipt = self.cache.explain(stay.text.prepared(self.cache))
            for miss in receipt.misses:
                self.counts.add(f"missed_{miss.cause}", miss.num_tokens)
            if params_of(stay.request).get("receipt") is True:
                told = receipt.client()
                misses = [(miss.cause, miss.start, miss.stop) for miss in told.misses]
                self._receipts[stay.request.request_id] = {"length": told.length, "kept": told.reused, "misses": misses}
        if not external:
            found.used()  # what is loaded is used when its step is ordered, where little else is to do
        self.counts.add("lookups")
        self.counts.add("lookup_tokens", stay.request.num_tokens)
        self.counts.add("hit_tokens", external)

    def _refuse(self, stay: Stay) -> None:
        """vLLM waits for an impossible load: report it as failed, so that the request is computed."""
        stay.loads.let_go()
        self._failures[stay.request.request_id] = MOST_FAILURES
        self._landed.add(stay.request.request_id)
        self._orders.refused.append(stay.request.request_id)
        self.counts.add("refused_loads")

    # -- a step ------------------------------------------------------------------------------------------------------

    def order(
        self, scheduled: Mapping[str, int], preempted: Iterable[str], tables: Callable[[str], Any],
        fresh: Iterable[int] = (), states: Mapping[str, Sequence[StateOffer]] = NO_STATES,
    ) -> StepOrders:  # fmt: skip
        """The copies of this step; `scheduled` is how many tokens of each request it computes. `fresh` are blocks of
        vLLM's that requests were given for it; `states` are the recurrent states that can be stored with it."""
        if self.weights.step():
            self._forget()
        for request_id in preempted:
            self._preempt(self._stays.get(request_id))
        orders, self._orders = self._orders, StepOrders()
        for load in orders.loads:
            found = self.jobs.owner(load.job).loads.found
            if found is not None:
                found.used()
        if self.stores.is_storing:
            self._carry_on(orders, set(fresh))
        for stay in self._asked.values():  # they wait on: nothing is held for waiting requests
            stay.loads.let_go()
        self._asked.clear()
        for request_id, count in scheduled.items():
            mine = self._stays.get(request_id)
            if mine is None or mine.stores.full:
                continue
            request = mine.request
            known = request.num_tokens if self.options.store_decoded else request.num_prompt_tokens
            end = min(request.num_computed_tokens + count, known) // self._size * self._size
            if end <= mine.stores.due:  # KV runs ahead of the known tokens with drafts and asynchronous scheduling
                continue
            there = 0 if mine.stores.due else request.num_computed_tokens // self._size
            shown = self._states.shown(tables(request_id), states.get(request_id, ()), there)
            if self.stores.store(mine, end, shown, orders):
                self._publish(mine, mine.stores.sent)
        self._landed.note_step(is_empty=not scheduled)
        self._step += 1
        return orders

    def _carry_on(self, orders: StepOrders, taken: set[int]) -> None:
        """Stores of steps before this one, which writes the blocks `taken` and those that are loaded."""
        taken.update(block for load in orders.loads for part in load.parts for block in part.blocks)
        taken.discard(NULL)  # no request's, however often it is handed out
        self.stores.flush(orders, taken)
        carried = self.stores.carry_on(orders, taken)
        for stay in carried.reached:
            self._publish(stay, stay.stores.sent)
        for stay in carried.over:
            self._settle(stay)

    def _preempt(self, stay: Stay | None) -> None:
        """It lost its blocks and will come back, unless it came in this very step."""
        if stay is not None and stay.placed and stay.born != self._step:
            stay.comes_back = True
            self._end(stay)

    # -- what the workers report -------------------------------------------------------------------------------------

    def hear(self, report: WorkerReport | None) -> None:
        """Jobs that ranks have ended since; one is done when all have ended it, over however many steps."""
        if report is None:
            return
        for stay, job in self.jobs.hear(report):
            if job is stay.loads.job:
                self._loaded(stay, job)
            else:
                self._stored(stay, job)
            self._settle(stay)

    def _loaded(self, stay: Stay, job: CopyJob) -> None:
        """Bad pages are lost at once: as long as they were offered, vLLM would ask for them again and again."""
        request_id = stay.request.request_id
        stay.loads.job = None
        is_open = request_id in self._tokens  # else it was aborted, and asks for nothing more
        if is_open:
            self._landed.add(request_id)
        if job.bad:
            if is_open:
                self._failures[request_id] = self._failures.get(request_id, 0) + 1
            self.counts.add("failed_loads")
            self._lose(job.bad)
            stay.stores.full = True  # it has no blocks any more, and begins anew
        else:
            self.counts.add("loaded_pages", sum(len(part.slots) for part in job.parts))
        stay.loads.let_go()

    def _lose(self, pages: Iterable[BadPage]) -> None:
        for group in self._groups:
            slots = [page.slot for page in pages if page.group == group]
            if slots:
                self.cache.lose(group, slots, tier=HOST)
                self.counts.add("lost_pages", len(slots))

    def _stored(self, stay: Stay, job: CopyJob) -> None:
        """Pages become findable in the order of their tokens, but for those that some rank could not copy."""
        self.stores.ended(stay, job)
        if job.bad:
            self.counts.add("failed_stores")
        for done in stay.stores.done():
            self._publish(stay, done.end)

    def _publish(self, stay: Stay, end: int) -> None:
        """What is copied of a stay is findable up to this token."""
        self.counts.add("stored_pages", stay.stores.publish(end))
        if self.events is not None:
            writer = stay.stores.writer
            assert writer is not None
            self.events.stored(stay.names, stay.text.tokens()[:end], writer.request)

    # -- the end -----------------------------------------------------------------------------------------------------

    def finish(self, request: EngineRequest) -> dict[str, Any] | None:
        """The request is over, done or aborted; returns what its answer should carry."""
        stay, back = self._stays.get(request.request_id), back_of(request)
        if self.recording is not None:
            self.recording.ended(request, None if stay is None else stay.text, back)
        if stay is not None:
            stay.back = back
            self._end(stay)
        self._tokens.pop(request.request_id, None)
        self._failures.pop(request.request_id, None)
        self._landed.discard(request.request_id)
        receipt = self._receipts.pop(request.request_id, None)
        return None if receipt is None else {PARAMS: {"receipt": receipt}}

    def _end(self, stay: Stay) -> None:
        stay.over = True
        self._asked.pop(stay.request.request_id, None)
        self._coming.discard(stay.request.request_id)
        if self._stays.get(stay.request.request_id) is stay:
            del self._stays[stay.request.request_id]
        self._settle(stay)

    def _settle(self, stay: Stay) -> None:
        """What is under way ends by itself; what was read or written for a stay is kept until then."""
        if stay.over and stay.is_quiet:
            stay.close()
            if not stay.comes_back and stay.scope.epoch == (self.weights.number or None):
                self.futures.ended(stay)
            if self.events is not None:
                self.events.forget(stay.names)
            sent = stay.stores.sent
            if self.outer is not None and sent and stay.scope.epoch == (self.weights.number or None):
                self.outer.served(stay.text.first(sent), stay.request.num_prompt_tokens)

    def reset(self) -> bool:
        """Forget everything, for new weights or a sleep: nothing that was computed before is stored any more.

        False while loads are under way: they bring pages of the old weights, and their requests must end first.
        """
        for stay in self._asked.values():
            stay.loads.let_go()
        self._asked.clear()
        if self.weights.reset():
            self._forget()
        for stay in self._stays.values():
            stay.stores.full = True
        self.stores.drop_carried()  # of those that are over too
        return all(job is not stay.loads.job for stay, job in self.jobs)

    def _forget(self) -> None:
        self.cache.clear()
        self.futures.forget()

    @property
    def is_storing(self) -> bool:
        """Some of vLLM's blocks are being copied, as far as was heard, or will be."""
        return self.stores.is_storing

    @property
    def is_pending(self) -> bool:
        """An engine without requests should go on stepping: a worker has something to report or to store, or events
        wait, which vLLM takes in a step only."""
        if self.stores.num_carried > 0 or self.jobs.is_any_younger(PATIENCE):
            return True
        return self.events is not None and self.events.has_news()

    @property
    def is_coming(self) -> bool:
        """Some request is passed over while its pages come."""
        return bool(self._coming)

    def close(self) -> None:
        """The engine ends: what is worth it goes to the disk, a recording gets its end."""
        if self.outer is not None:
            self.outer.close()
        if self.recording is not None:
            self.recording.close()

    @property
    def num_open(self) -> int:
        """Stays that hold something, jobs under way, and stays of which something is to be stored."""
        return len(self._stays) + len(self.jobs) + self.stores.num_carried
