"""Subject: a real cache with real bytes, behind the same plain calls as the oracle. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from quire import Batch, Cache, Claim, Claims, Hold, Plan, Prepared, Probe, Refusal, Request, Span, StateError
from quire import Sequence as Live
from quire.core.store import open_store
from quire.tools.fuzz import build
from quire.tools.fuzz.content import Content
from quire.tools.fuzz.mirror import Mirror
from quire.tools.fuzz.plain import (
    Admission,
    Ask,
    Budget,
    ClaimFacts,
    Closing,
    Identity,
    Outlook,
    PlanFacts,
    RefusalFacts,
    SetbackFacts,
    World,
)

StoreName = Literal["twin", "compiled"]


def available_stores() -> tuple[StoreName, ...]:
    """The stores that import here, the fastest last."""
    try:
        open_store("compiled")
    except StateError:
        return ("twin",)
    return "twin", "compiled"


class Subject:
    """One cache under test."""

    def __init__(self, world: World, clock: Callable[[], float], store: StoreName) -> None:
        self.world, self.store = world, store
        self.cache = Cache(build.config(world), clock=clock, store=store)
        self.content = Content(world)
        self.mirror = Mirror(world.num_groups)
        self.live: dict[str, Live] = {}
        self.claims: dict[str, Claims] = {}
        self.holds: dict[str, Hold] = {}
        self.plans: dict[int, Plan] = {}  # not finished yet
        self.keys: dict[int, Any] = {}
        self.prefixes: dict[Any, int] = {}
        self.resumable: dict[str, Request] = {}  # by id, what suspend returned

    # -- admission ---------------------------------------------------------------------------------------------------

    def claim(
        self, key: str, asks: Sequence[Ask], purpose: Any
    ) -> tuple[tuple[ClaimFacts, ...], tuple[RefusalFacts, ...]]:
        """Phase 1 of a batch, kept under a key."""
        claims = self.claims[key] = self.cache.claim([self._request(ask) for ask in asks], purpose)
        facts = tuple((str(claim.request.id), claim.start, claim.hit.blocks, claim.cold) for claim in claims)
        return facts, _refusals(claims.refused)

    def drop_claim(self, key: str) -> None:
        """Give a batch back."""
        self.claims.pop(key).drop()

    def admit(self, key: str, budget: Budget, continuing: Sequence[str]) -> Admission:
        """Phase 2 of a batch."""
        more = [self.live[name] for name in continuing]
        limits: Any = build.limits(budget)
        batch = self.cache.admit(self.claims[key], continuing=more, **limits)
        del self.claims[key]
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
        groups = range(self.world.num_groups)
        store = self.cache._state.store
        return Admission(
            rows=tuple((str(sequence.id), sequence.row, sequence.start) for sequence in batch.sequences),
            spans=tuple((str(sequence.id), span.start, span.end) for sequence, span in batch.spans.items()),
            refused=_refusals(batch.refused),
            plan=self._plan(batch.plan),
            counts=tuple(tuple(store.row_counters[g][s.row].tolist()) for s in batch.sequences for g in groups),
        )

    def _request(self, ask: Ask) -> Request | Prepared:
        """What suspend returned, or the ask itself; every third one is prepared ahead."""
        waiting = self.resumable.get(ask.name)
        again = waiting is not None and len(waiting.tokens) == len(ask.tokens)
        request = waiting if waiting is not None and again else build.request(ask)
        return self.cache.prepare(request) if len(ask.tokens) % 3 == 0 else request

    def finish(self, number: int, failed: Sequence[int]) -> Closing:
        """A plan has run, but for these moves."""
        finished = self.cache.finish(self.plans.pop(number), failed)
        setbacks: list[SetbackFacts] = []
        for item in finished.setbacks:
            kind, name = self._holder(item.holder)
            setbacks.append((kind, str(name), item.old_start, item.start, item.lost))
            if item.lost:
                del self.live[str(name)]
        return Closing(tuple(setbacks), None if finished.plan is None else self._plan(finished.plan))

    def probe(self, ask: Ask, purpose: Any) -> Outlook:
        """What a claim would find now and an admission take."""
        (found,) = self.cache.probe([build.request(ask)], purpose)
        self._learn_key(ask, found)
        numbers = (found.start, found.hit_blocks, found.held_blocks, found.onboards, found.slots_now)
        return Outlook(*numbers, found.slots_to_completion)

    def _learn_key(self, ask: Ask, found: Probe) -> None:
        """The key of the first missing block: equal for equal prefixes, and only for those."""
        end = (found.hit_blocks + 1) * self.world.block_size
        prefix = (ask.root, ask.identities[:end]) if end <= ask.compute_end else None
        assert (prefix is None) == (found.next_key is None), f"next_key {found.next_key} of {ask}"
        if prefix is not None and found.next_key is not None:
            assert self.keys.setdefault(found.next_key, prefix) == prefix, "one key, two prefixes"
            assert self.prefixes.setdefault(prefix, found.next_key) == found.next_key, "one prefix, two keys"

    # -- life --------------------------------------------------------------------------------------------------------

    def _holder(self, holder: Live | Claim | Hold) -> tuple[str, object]:
        if isinstance(holder, Hold):
            return "hold", next(key for key, held in self.holds.items() if held is holder)
        return ("sequence", holder.id) if isinstance(holder, Live) else ("claim", holder.request.id)

    def grow(self, names: Sequence[str], tokens: Sequence[Sequence[int]] | None, num_tokens: int) -> PlanFacts | None:
        """Slots for coming tokens."""
        rows = [self.live[name] for name in names]
        if tokens is None:
            plan = self.cache.grow(rows, num_tokens=num_tokens)
        else:
            plan = self.cache.grow(rows, np.array(tokens, np.int32))
        return None if plan is None else self._plan(plan)

    def commit(self, names: Sequence[str], computed: Sequence[int] | None) -> int:
        """KV exists so far."""
        rows = [self.live[name] for name in names]
        return self.cache.commit(rows, None if computed is None else build.int32(list(computed)))

    def trim(self, name: str, num_tokens: int) -> int:
        """Tail tokens go."""
        return self.cache.trim(self.live[name], num_tokens)

    def fork(self, name: str, names: Sequence[str]) -> tuple[tuple[int, ...], PlanFacts] | None:
        """More rows on the same pages."""
        found = self.cache.fork(self.live[name], names)
        if found is None:
            return None
        forks, plan = found
        self.live.update((str(fork.id), fork) for fork in forks)
        return tuple(fork.row for fork in forks), self._plan(plan)

    def release(self, name: str, store: bool) -> None:
        """A sequence ends."""
        self.cache.release(self.live.pop(name), store=store)

    def suspend(self, name: str) -> tuple[Identity, ...]:
        """A sequence ends, to go on later; its tokens so far."""
        request = self.resumable[name] = self.cache.suspend(self.live.pop(name))
        return build.identities(request)

    def hold(self, key: str, name: str, start: int, end: int) -> tuple[tuple[int, ...], ...]:
        """Keep the pages of a span, under a key; which."""
        held = self.holds[key] = self.cache.hold(self.live[name], Span(start, end))
        return tuple(tuple(pages.tolist()) for pages in held.pages)

    def drop(self, key: str) -> None:
        """Give up such a hold."""
        self.cache.drop(self.holds.pop(key))

    # -- tree and tiers ----------------------------------------------------------------------------------------------

    def truncate(self, ask: Ask, keep: int) -> int:
        """Forget along a request's tokens."""
        return self.cache.truncate(build.request(ask), keep)

    def clear(self) -> int:
        """Forget everything."""
        return self.cache.clear()

    def offload(self, num_pages: int, group: int) -> PlanFacts:
        """Shadows for the next victims."""
        return self._plan(self.cache.offload(num_pages, group))

    def refresh(self) -> None:
        """Retention that has run out ends."""
        self.cache.refresh()

    # -- what there is -----------------------------------------------------------------------------------------------

    def brief(self) -> tuple[int, ...]:
        """Free counts, and where the slots of every tier are."""
        groups = range(self.world.num_groups)
        numbers = [self.cache.num_free(group) for group in groups]
        for group in groups:
            for tier in range(len(self.world.tiers)):
                usage = self.cache.usage(tier, group)
                numbers += (usage.empty, usage.idle, usage.shadows)
        return tuple(numbers)

    def row(self, name: str) -> tuple[Any, ...]:
        """Start, length, computed, committed tokens, pages and device slots of a sequence."""
        live, groups = self.live[name], range(self.world.num_groups)
        pages = tuple(tuple(live.pages(group).tolist()) for group in groups)
        slots = tuple(tuple(live.slots(group).tolist()) for group in groups)
        return live.start, live.length, live.computed, live.committed, pages, slots

    def dump(self) -> dict[str, Any]:
        """Everything the store knows."""
        return self.cache._state.store.dump()

    # -- bytes -------------------------------------------------------------------------------------------------------

    def run(self, number: int, bad: Sequence[tuple[int, str, int]] = ()) -> tuple[int, ...]:
        """Carry out a plan while some (tier, verb, slot) fail; the moves that failed."""
        return tuple(self.content.run(self.plans[number], bad)) if len(self.plans[number]) else ()

    def compute(self, name: str, numbers: list[int], first: int) -> None:
        """A step of the model: KV of the tokens from `first` on, written through the block tables."""
        self.content.write(self._slots(name), numbers, first)

    def wrong_token(self, name: str, numbers: list[int]) -> int | None:
        """The first token whose KV, read through the block tables, is not its own."""
        return self.content.wrong(self._slots(name), numbers)

    def _slots(self, name: str) -> list[build.Int32]:
        row = self.live[name].row
        return [self.cache.table(group)[row] for group in range(self.world.num_groups)]

    def _plan(self, plan: Plan) -> PlanFacts:
        self.plans[plan.number] = plan
        return PlanFacts(plan.number, tuple((*row[:8], row[9]) for row in plan.moves.tolist()))


def _refusals(refused: Sequence[Refusal]) -> tuple[RefusalFacts, ...]:
    return tuple((str(item.request.id), item.reason, item.need, item.have, item.never) for item in refused)
