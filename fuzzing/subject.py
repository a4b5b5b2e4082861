"""Subject: a real cache with real bytes, behind the same plain calls as the oracle. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal
from warnings import catch_warnings, simplefilter

import numpy as np

from fuzzing.answers import claim_facts, refusal_facts, runs
from fuzzing.background import BackgroundCalls
from fuzzing.compare import Mismatch, same
from fuzzing.engine import Engine, grow
from fuzzing.lasting import Lasting
from fuzzing.mirror import Mirror
from fuzzing.overlap import FlightCalls
from fuzzing.receipts import receipt_facts
from fuzzing.tables import Tables
from fuzzing.world import build
from fuzzing.world.content import Content
from fuzzing.world.plain import (
    Admission,
    Ask,
    Budget,
    ClaimFacts,
    Closing,
    FoundFacts,
    Outlook,
    PlanFacts,
    ReceiptFacts,
    RefusalFacts,
    SetbackFacts,
    Skip,
    World,
    WriterFacts,
)
from quire import (
    Batch,
    Cache,
    Claim,
    Claims,
    Finished,
    Found,
    Hold,
    Plan,
    Prepared,
    Probe,
    Refusal,
    Request,
    Span,
    StateError,
    Writer,
)  # fmt: skip
from quire import Sequence as Live
from quire.core.records.errors import ConfigWarning
from quire.core.records.reports.stats import NUM_COUNTERS
from quire.core.store import open_store
from quire.core.store.dumped import Dump

StoreName = Literal["twin", "compiled"]
NO_COUNTS = (0,) * NUM_COUNTERS


def available_stores() -> tuple[StoreName, ...]:
    """The stores that import here, the fastest last."""
    try:
        open_store("compiled")
    except StateError:
        return ("twin",)
    return "twin", "compiled"


class Subject(BackgroundCalls, FlightCalls):
    """One cache under test."""

    watchers: Callable[[], Sequence[Any]] = tuple  # who hears of its calls

    def __init__(self, world: World, clock: Callable[[], float], store: StoreName) -> None:
        self.world, self.store = world, store
        with catch_warnings():
            simplefilter("ignore", ConfigWarning)  # small worlds are hopeless in many ways
            self.cache = Cache(build.config(world), clock=clock, store=store, watchers=type(self).watchers())
        self.content = Content(world)
        self.engine = Engine(world, self.cache, self.content)
        self.mirror = Mirror(world.num_groups)
        self.tables = Tables(self.cache)
        self.live: dict[str, Live] = {}
        self.claims: dict[str, Claims] = {}
        self.holds: dict[str, Hold] = {}
        self.finds: dict[str, Found] = {}
        self.writers: dict[str, Writer] = {}
        self.prefetches = {}
        self.lasting = Lasting(world)
        self.plans: dict[int, Plan] = {}  # not finished yet
        self.steps = []
        self.keys: dict[int, Any] = {}
        self.prefixes: dict[Any, int] = {}
        self.resumable: dict[str, Request] = {}  # by id, what suspend returned

    # -- admission ---------------------------------------------------------------------------------------------------

    def claim(
        self, key: str, asks: Sequence[Ask], purpose: Any
    ) -> tuple[tuple[ClaimFacts, ...], tuple[RefusalFacts, ...]]:
        """Phase 1 of a batch, kept under a key."""
        claims = self.claims[key] = self.cache.claim([self._request(ask) for ask in asks], purpose)
        told = [receipt_facts(claim.receipt) if self.world.receipts else None for claim in claims]
        facts = tuple(claim_facts(claim, receipt) for claim, receipt in zip(claims, told, strict=True))
        return facts, refusal_facts(claims.refused)

    def drop_claim(self, key: str) -> None:
        """Give a batch back."""
        self.claims.pop(key).drop()

    def admit(self, key: str, budget: Budget, continuing: Sequence[str]) -> Admission:
        """Phase 2 of a batch."""
        more = [self.live[name] for name in continuing]
        limits: Any = build.limits(budget)
        wanted = {str(claim.request.id): claim.wanted_blocks for claim in self.claims[key] if claim.purpose == "decode"}
        batch = self.cache.admit(self.claims[key], continuing=more, **limits)
        del self.claims[key]
        for sequence in batch.sequences if self.cache._setup.groups_differ else ():
            if str(sequence.id) in wanted and sequence.computed < sequence.prompt_end:
                self.engine.wanted[sequence] = wanted[str(sequence.id)]
        return self._admitted(batch)

    def add(self, asks: Sequence[Ask], budget: Budget, continuing: Sequence[str]) -> Admission:
        """Both phases at once."""
        more = [self.live[name] for name in continuing]
        limits: Any = build.limits(budget)
        requests = [self._request(ask) for ask in asks]
        return self._admitted(self.cache.add_sequence_batch(requests, continuing=more, **limits))

    def _admitted(self, batch: Batch) -> Admission:
        for sequence in batch.sequences:
            self.live[str(sequence.id)] = sequence
        for sequence in batch.spans:
            self.engine.told[sequence] = batch.snapshots.get(sequence, ())
        counters = [(store.row_counters, place) for store, place in self.cache._setup.pools]
        return Admission(
            rows=tuple((str(sequence.id), sequence.row, sequence.start) for sequence in batch.sequences),
            spans=tuple((str(sequence.id), span.start, span.end) for sequence, span in batch.spans.items()),
            refused=refusal_facts(batch.refused),
            plan=self._plan(batch.plan),
            counts=tuple(
                tuple(rows[place][s.row].tolist() if s.request.encoder or not self._crosses(group) else NO_COUNTS)
                for s in batch.sequences
                for group, (rows, place) in enumerate(counters)
            ),
            waiting=tuple(str(sequence.id) for sequence in batch.waiting),
            receipts=tuple(map(receipt_facts, batch.receipts)) if self.world.receipts else None,
            snapshots=tuple((str(live.id), *one) for live, some in batch.snapshots.items() for one in some),
        )

    def _request(self, ask: Ask) -> Request | Prepared:
        """What suspend returned, or the ask itself; every third one is prepared ahead."""
        waiting = self.resumable.get(ask.name)
        again = waiting is not None and ask.may_resume and tuple(waiting.tokens.tolist()) == ask.tokens
        request = waiting if waiting is not None and again else build.request(ask)
        return self.cache.prepare(request) if len(ask.tokens) % 3 == 0 else request

    def finish(self, number: int, failed: Sequence[int]) -> Closing:
        """A plan has run, but for these moves."""
        return self._set_back(self.cache.finish(self.plans.pop(number), failed))

    def lose(self, group: int, slots: Sequence[int], tier: int) -> Closing:
        """The pages in some slots are bad."""
        return self._set_back(self.cache.lose(group, slots, tier))

    def _set_back(self, finished: Finished) -> Closing:
        setbacks: list[SetbackFacts] = []
        for item in finished.setbacks:
            kind, name = self._holder(item.holder)
            setbacks.append((kind, str(name), item.old_start, item.start, item.lost))
            if item.lost:
                self.engine.wanted.pop(self.live.pop(str(name)), None)
                if item.request is None:
                    raise Mismatch("a lost sequence that does not say what to claim again")
                self.resumable[str(name)] = item.request
        return Closing(tuple(setbacks), None if finished.plan is None else self._plan(finished.plan))

    def probe(self, ask: Ask, purpose: Any) -> Outlook:
        """What a claim would find now and an admission take."""
        (found,) = self.cache.probe([build.request(ask)], purpose)
        self._learn_key(ask, found)
        spans = tuple(map(runs, found.spans))
        numbers = (found.start, found.hit_blocks, found.held_blocks, spans, found.onboards, found.slots_now)
        return Outlook(*numbers, found.slots_to_completion if self.world.is_plain else ())

    def explain(self, ask: Ask, purpose: Any) -> ReceiptFacts:
        """Why a claim would not find more now."""
        return receipt_facts(self.cache.explain(build.request(ask), purpose))

    def _learn_key(self, ask: Ask, found: Probe) -> None:
        """The key of the first missing block: equal for equal prefixes, and only for those."""
        end = (found.hit_blocks + 1) * self.world.block_size
        named = ask.encoder is None or ask.encoder.told != "nothing"
        prefix = (ask.root, ask.identities[:end]) if named and end <= ask.compute_end else None
        same(f"whether {ask.name} has a next key", found.next_key is None, prefix is None)
        if prefix is not None and found.next_key is not None:
            same("the prefix of a key", self.keys.setdefault(found.next_key, prefix), prefix)
            same("the key of a prefix", self.prefixes.setdefault(prefix, found.next_key), found.next_key)

    def find(self, key: str, ask: Ask, from_: int) -> FoundFacts:
        """Hold what is there behind some tokens, under a key."""
        self.finds[key] = self.cache.find(self._request(ask), from_)
        return self.found(key)

    def found(self, key: str) -> FoundFacts:
        """What such a find holds now."""
        found, groups = self.finds[key], range(self.world.num_groups)
        places = [(found.blocks(group), found.tiers(group), found.slots(group)) for group in groups]
        return found.start, found.end, tuple(tuple(zip(*map(np.ndarray.tolist, some), strict=True)) for some in places)

    def use_find(self, key: str) -> None:
        """It was used."""
        self.finds[key].used()

    def close_find(self, key: str) -> None:
        """Give it back."""
        self.finds.pop(key).close()

    def write(self, key: str, ask: Ask, tier: int, end: int, skip: Skip) -> tuple[Any, PlanFacts | None]:
        """Slots for pages that somebody brings, under a key; or what they lack."""
        made = self.cache.writer(self._request(ask), tier=tier, end=end, skip=dict(skip))
        if isinstance(made, Refusal):
            return (made.group, made.need, made.have), None
        self.writers[key] = made
        return self.writing(key), self._plan(made.plan)

    def extend_writer(self, key: str, tokens: Sequence[int], skip: Skip, also: Skip) -> tuple[Any, PlanFacts | None]:
        """More of such a text; or only blocks before their turn."""
        writer = self.writers[key]
        lack = writer.extend(build.int32(list(tokens)), end=0 if also else None, skip=dict(skip), also=dict(also))
        if lack is not None:
            return (lack.group, lack.need, lack.have), None
        return self.writing(key), self._plan(writer.plan)

    def writing(self, key: str) -> WriterFacts:
        """What waits for its bytes."""
        writer, groups = self.writers[key], range(self.world.num_own)
        places = [(writer.blocks(group).tolist(), writer.slots(group).tolist()) for group in groups]
        return tuple(tuple(zip(*some, strict=True)) for some in places)

    def fill(self, key: str, numbers: list[int], end: int) -> None:
        """Somebody writes the bytes of the blocks before `end`."""
        size, tier = self.world.block_size, self.writers[key].tier
        for group, places in enumerate(self.writing(key)):
            for block, slot in places:
                if (block + 1) * size <= end:
                    self.content.put(group, (tier, slot), numbers[block * size : (block + 1) * size])

    def written(self, key: str, end: int, skip: Skip) -> int:
        """Some bytes are there."""
        return self.writers[key].written(end, dict(skip))

    def close_writer(self, key: str) -> None:
        """The rest will not come."""
        self.writers.pop(key).close()

    # -- life --------------------------------------------------------------------------------------------------------

    def _holder(self, holder: Live | Claim | Hold | Found | Writer) -> tuple[str, object]:
        if isinstance(holder, Writer):
            return "writer", next(key for key, writer in self.writers.items() if writer is holder)
        if isinstance(holder, Found):
            return "find", next(key for key, found in self.finds.items() if found is holder)
        if isinstance(holder, Hold):
            return "hold", next(key for key, held in self.holds.items() if held is holder)
        return ("sequence", holder.id) if isinstance(holder, Live) else ("claim", holder.request.id)

    def grow(self, names: Sequence[str], tokens: Sequence[Sequence[int]] | None, num_tokens: int) -> PlanFacts | None:
        """Slots for coming tokens."""
        plan = grow(self.cache, [self.live[name] for name in names], tokens, num_tokens)
        return None if plan is None else self._plan(plan)

    def commit(self, names: Sequence[str], computed: Sequence[int] | None) -> int:
        """KV exists so far."""
        many = [self.live[name] for name in names]
        fresh = self._commit(many, computed)
        for live in many:
            self.engine.wanted.pop(live, None)
        return fresh

    def _commit(self, many: list[Live], computed: Sequence[int] | None) -> int:
        """In all the ways to say it: one sequence, several, or their rows."""
        if len(many) == 1 and many[0].row % 2:
            return self.cache.commit(many[0], None if computed is None else computed[0])
        rows = build.int32([live.row for live in many]) if len(many) % 2 else many
        return self.cache.commit(rows, None if computed is None else build.int32(list(computed)))

    def trim(self, name: str, num_tokens: int) -> int:
        """Tail tokens go; a step that has not run writes no state behind those that are left."""
        live = self.live[name]
        given = self.cache.trim(*((live, num_tokens) if live.row % 2 else ([live], build.int32([num_tokens]))))
        told = self.engine.told.get(live, ())
        self.engine.told[live] = tuple(one for one in told if one.position <= live.length)
        return given

    def fork(self, name: str, names: Sequence[str]) -> tuple[tuple[int, ...], PlanFacts] | None:
        """More rows on the same pages."""
        found = self.cache.fork(self.live[name], names)
        if found is None:
            return None
        forks, plan = found
        self.live.update((str(fork.id), fork) for fork in forks)
        return tuple(fork.row for fork in forks), self._plan(plan)

    def hold(self, key: str, name: str, start: int, end: int) -> tuple[tuple[int, ...], ...] | None:
        """Keep the pages of a span, under a key; which."""
        held = self.cache.hold(self.live[name], Span(start, end))
        if held is None:
            return None
        self.holds[key] = held
        return tuple(tuple(pages.tolist()) for pages in held.pages)

    def drop(self, key: str) -> None:
        """Give up such a hold."""
        self.cache.drop(self.holds.pop(key))

    # -- tree and tiers ----------------------------------------------------------------------------------------------

    def truncate(self, ask: Ask, keep: int) -> int:
        """Forget along a request's tokens."""
        return self.cache.truncate(build.request(ask), keep)

    def clear(self, again: bool = False) -> int:
        """Forget everything."""
        return self.cache.clear(store_again=again)

    def forget(self, pattern: int) -> int:
        """Forget some scopes."""
        return self.cache.forget(build.PATTERNS[pattern][0])

    def offload(self, num_pages: int, group: int) -> PlanFacts:
        """Shadows for the next victims."""
        return self._plan(self.cache.offload(num_pages, group))

    def refresh(self) -> None:
        """Retention that has run out ends."""
        self.cache.refresh()

    # -- what there is -----------------------------------------------------------------------------------------------

    def brief(self) -> tuple[int, ...]:
        """Free counts, as the stores have them."""
        return tuple([store.available(place) for store, place in self.cache._setup.pools])

    def free(self) -> tuple[int, ...]:
        """Free counts, as anybody is told."""
        return tuple([self.cache.num_free(group) for group in range(self.world.num_groups)])

    def usage(self) -> tuple[int, ...]:
        """Where the slots of every tier are; and how many pages that are gone are remembered, told of the first."""
        numbers: list[int] = []
        for group in range(self.world.num_groups):
            for tier in range(len(self.world.tiers)):
                usage = self.cache.usage(tier, group)
                numbers += (usage.empty, usage.idle, usage.shadows, usage.ghosts)
        return tuple(numbers)

    def row(self, name: str) -> tuple[Any, ...]:
        """Start, length, computed, committed tokens; per group: pages, slots, the state's slot, tokens with pages."""
        live, groups = self.live[name], range(self.world.num_groups)
        facts, to_come = [], self.cache.slots_to_completion(live)
        for group in groups:
            same("a snapshot that cannot wait", self.world.kinds[group].kind == "state" and to_come[group] > 0, False)
            pages, slots = tuple(live.pages(group).tolist()), tuple(live.slots(group).tolist())
            same("the slot of a state", live.state_slot(group), self.cache.state_table(group)[live.row])
            facts.append((pages, slots, live.state_slot(group), runs(live.held(group))))
        return live.start, live.length, live.computed, live.committed, live.encoder_computed, tuple(facts)

    def dump(self) -> list[Dump]:
        """Everything the stores know, stream by stream."""
        return [stream.store.dump() for stream in self.cache._setup.streams]

    # -- bytes -------------------------------------------------------------------------------------------------------

    def run(self, number: int, bad: Sequence[tuple[int, str, int]] = ()) -> tuple[int, ...]:
        """Carry out a plan while some (tier, verb, slot) fail; the moves that failed."""
        return tuple(self.engine.run(self.plans[number], bad)) if len(self.plans[number]) else ()

    def _crosses(self, group: int) -> bool:
        return self.world.kinds[group].kind == "cross"

    def _plan(self, plan: Plan) -> PlanFacts:
        self.plans[plan.number] = plan
        rows = tuple((*row[:8], row[9]) for row in plan.moves.tolist())
        return PlanFacts(plan.number, rows, plan.background, plan.after)
