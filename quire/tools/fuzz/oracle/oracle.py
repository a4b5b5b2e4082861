"""Oracle: the public calls of a cache, answered by definition in plain data. The other files hold the definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from quire.tools.fuzz.oracle import admission, faults, life
from quire.tools.fuzz.oracle.state import Batch, State
from quire.tools.fuzz.plain import (
    Admission,
    Ask,
    Budget,
    ClaimFacts,
    Closing,
    Identity,
    Misuse,
    Outlook,
    Path,
    PlanFacts,
    RefusalFacts,
    World,
)


class Oracle:
    """What a cache of this world must answer."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self.state = State(world, clock)

    # -- admission ---------------------------------------------------------------------------------------------------

    def claim(
        self, key: str, asks: Sequence[Ask], purpose: str
    ) -> tuple[tuple[ClaimFacts, ...], tuple[RefusalFacts, ...]]:
        """Phase 1 of a batch, kept under a key."""
        batch = admission.open_batch(self.state, list(asks), purpose)
        self.state.batches[key] = batch
        groups = range(self.state.world.num_groups)
        facts = tuple(
            (claim.ask.name, claim.start, claim.blocks, tuple(len(claim.cold(group)) for group in groups))
            for claim in batch.claims
        )
        return facts, tuple(batch.refused)

    def drop_claim(self, key: str) -> None:
        """Give a batch back."""
        for claim in self.state.batches.pop(key).claims:
            admission.hold(claim, -1)

    def admit(self, key: str, budget: Budget, continuing: Sequence[str]) -> Admission:
        """Phase 2 of a batch."""
        if any(claim.ask.name in self.state.rows for claim in self.state.batches[key].claims):
            raise Misuse("a sequence of that name was admitted since")
        return self._admit(self.state.batches.pop(key), budget, continuing)

    def add(self, asks: Sequence[Ask], budget: Budget, continuing: Sequence[str]) -> Admission:
        """Both phases at once."""
        return self._admit(admission.open_batch(self.state, list(asks), "compute"), budget, continuing)

    def _admit(self, batch: Batch, budget: Budget, continuing: Sequence[str]) -> Admission:
        state = self.state
        spans, (out, lacked), refused = admission.fit(state, batch, budget, [state.rows[name] for name in continuing])
        rows = [admission.seat(state, claim) for claim in batch.claims]
        if rows:
            self.refresh()
        counts = [
            count
            for claim, row in zip(batch.claims, rows, strict=True)
            for count in admission.settle(state, claim, row)
        ]
        seated = tuple((row.ask.name, row.number, row.start) for row in rows)
        refused = admission.left_out(state, out, lacked) + refused
        return Admission(seated, tuple(spans), tuple(refused), state.take_plan(), tuple(counts))

    def finish(self, number: int, failed: Sequence[int]) -> Closing:
        """A plan has run, but for these moves."""
        moves = self.state.plans.pop(number, [])
        if not failed:
            return Closing((), None)
        setbacks = faults.finish(self.state, [moves[place] for place in sorted(set(failed))])
        return Closing(tuple(setbacks), self.state.take_plan())

    def probe(self, ask: Ask, purpose: str) -> Outlook:
        """What a claim would find now and an admission take."""
        state = self.state
        claim = admission.find(state, ask, purpose)
        cold = tuple(len(claim.cold(group)) for group in range(state.world.num_groups))
        held = sum(0 in page.copies and (page.holders > 0 or page.claims > 0) for page in claim.pages[0])
        slots = admission.cost(state, claim)
        more = state.world.blocks(ask.room + ask.max_new_tokens) - admission.prompt_blocks(state, ask)
        later = tuple(now + max(more, 0) * ask.beams for now in slots)
        return Outlook(claim.start, claim.blocks, held, cold, slots, later)

    # -- life --------------------------------------------------------------------------------------------------------

    def grow(self, names: Sequence[str], tokens: Sequence[Sequence[int]] | None, num_tokens: int) -> PlanFacts | None:
        """Slots for coming tokens."""
        rows = [self.state.rows[name] for name in names]
        new = None if tokens is None else [[plain(token) for token in some] for some in tokens]
        return self.state.take_plan() if life.grow(self.state, rows, new, num_tokens) else None

    def commit(self, names: Sequence[str], computed: Sequence[int] | None) -> int:
        """KV exists so far."""
        rows = [self.state.rows[name] for name in names]
        marks = [len(row.tokens) for row in rows] if computed is None else computed
        return sum(life.commit(self.state, row, mark) for row, mark in zip(rows, marks, strict=True))

    def trim(self, name: str, num_tokens: int) -> int:
        """Tail tokens go."""
        return life.trim(self.state, self.state.rows[name], num_tokens)

    def fork(self, name: str, names: Sequence[str]) -> tuple[tuple[int, ...], PlanFacts] | None:
        """More rows on the same pages."""
        forks = life.fork(self.state, self.state.rows[name], list(names))
        return None if forks is None else (tuple(row.number for row in forks), self.state.take_plan())

    def release(self, name: str, store: bool) -> None:
        """A row ends."""
        life.release(self.state, self.state.rows[name], store)

    def suspend(self, name: str) -> tuple[Identity, ...]:
        """A row ends, to go on later; its tokens so far."""
        row = self.state.rows[name]
        life.release(self.state, row, True)
        return tuple(row.tokens)

    def hold(self, key: str, name: str, start: int, end: int) -> tuple[tuple[int, ...], ...]:
        """Keep the pages of a span, under a key; which."""
        size, pages = self.state.world.block_size, self.state.rows[name].pages
        last = self.state.world.blocks(end) if end > start else start // size
        held = [mine[start // size : last] for mine in pages]
        self.state.holds[key] = (start, end, held)
        for pools, mine in zip(self.state.pools, held, strict=True):
            for page in mine:
                pools.hold(page)
        return tuple(tuple(page.number for page in mine) for mine in held)

    def drop(self, key: str) -> None:
        """Give up such a hold."""
        for pools, pages in zip(self.state.pools, self.state.holds.pop(key)[2], strict=True):
            for page in reversed(pages):
                pools.let_go(page, self.state.now())

    # -- tree and tiers ----------------------------------------------------------------------------------------------

    def truncate(self, ask: Ask, keep: int) -> int:
        """Forget along a request's tokens."""
        return life.truncate(self.state, ask, keep)

    def clear(self) -> int:
        """Forget everything."""
        return life.clear(self.state)

    def offload(self, num_pages: int, group: int) -> PlanFacts:
        """Shadows for the next victims."""
        self.state.pools[group].offload_early(num_pages)
        return self.state.take_plan()

    def refresh(self) -> None:
        """Retention that has run out ends."""
        for pools in self.state.pools:
            pools.refresh(self.state.now())

    # -- what there is -----------------------------------------------------------------------------------------------

    def brief(self) -> tuple[int, ...]:
        """Free counts, and where the slots of every tier are."""
        numbers = [pools.free() for pools in self.state.pools]
        for pools in self.state.pools:
            for tier in range(len(pools.owner)):
                numbers += pools.usage(tier)
        return tuple(numbers)

    def row(self, name: str) -> tuple[Any, ...]:
        """Start, length, computed, committed tokens, pages and device slots of a sequence."""
        row = self.state.rows[name]
        pages = tuple(tuple(page.number for page in mine) for mine in row.pages)
        slots = tuple(tuple(page.copies[0] for page in mine) for mine in row.pages)
        return row.start, len(row.tokens), row.computed, row.committed * self.state.world.block_size, pages, slots

    def dump(self) -> dict[str, Any]:
        """Everything, in the layout of a store's dump; private copies are not counted here."""
        return dump(self.state)


def plain(token: int) -> Identity:
    """The identity of a token without extras."""
    return token, 0, 0, 0


def dump(state: State) -> dict[str, Any]:
    """All facts by name."""
    exists = state.tree.exists()
    born = Counter(path[:-1] for path in exists)
    tips = Counter(state.tips())
    nodes = [(path, len(path[-1]), page_numbers(state, path), born[path], tips[path]) for path in sorted(exists)]
    return {
        "nodes": nodes,
        "groups": [dump_group(state, group) for group in range(state.world.num_groups)],
        "rows": {row.number: dump_row(state, name) for name, row in state.rows.items()},
        "roots": sorted((root, born[root,]) for root in state.roots),
    }


def page_numbers(state: State, path: Path) -> tuple[int, ...]:
    """Page of each group, -1 for none."""
    pages = state.tree.at.get(path, [None] * state.world.num_groups)
    return tuple(page.number if page else -1 for page in pages)


def dump_group(state: State, group: int) -> dict[str, Any]:
    """Pages, orders and counts of one group."""
    pools = state.pools[group]
    orders: list[dict[int, list[int]]] = []
    for tier, stamps in enumerate(pools.stamp):
        order: dict[int, list[int]] = {}
        for slot in sorted(range(len(stamps)), key=stamps.__getitem__):
            klass = pools.klass(tier, slot)
            if klass is not None:
                order.setdefault(klass, []).append(slot)
        orders.append(order)
    pages = {}
    for page in pools.pages.values():
        slots = tuple(page.copies.get(tier, -1) for tier in range(len(pools.owner)))
        times = (-1 if value is None else value for value in (page.duration, page.expiry))
        pages[page.number] = (page.path, page.holders, page.claims, slots, page.priority, *times)
    return {
        "pages": pages,
        "orders": orders,
        "free_pages": pools.numbers,
        "available": pools.free(),
        "counters": pools.counts,
    }


def dump_row(state: State, name: str) -> tuple[Any, ...]:
    """Numbers of one row."""
    row = state.rows[name]
    spares = [[page.number for page in pages] for pages in row.spares]
    priority, duration = row.decode
    tokens = [identity[0] for identity in row.tokens]
    keep = state.world.reuse and row.ask.reuse
    numbers = (len(row.tokens), row.computed, row.committed, tokens)
    return (*numbers, row.tip, keep, spares, priority, -1 if duration is None else duration)
