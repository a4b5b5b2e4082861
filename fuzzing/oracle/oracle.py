"""Oracle: the public calls of a cache, answered by definition in plain data. The other files hold the definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuzzing.oracle import (
    admission,
    background,
    early,
    faults,
    finds,
    flights,
    forks,
    life,
    reach,
    receipts,
    writers,
)
from fuzzing.oracle import pools as slots
from fuzzing.oracle.admitting import Admissions
from fuzzing.oracle.claims import hold
from fuzzing.oracle.commit import commit
from fuzzing.oracle.facts import claim_facts, dump, outlook, row_facts, usage
from fuzzing.oracle.hints import along
from fuzzing.oracle.model import Model, encoder_ask
from fuzzing.oracle.state import Batch
from fuzzing.oracle.tree import path_of
from fuzzing.world import build
from fuzzing.world.plain import (
    Admission,
    Ask,
    Budget,
    ClaimFacts,
    Closing,
    FoundFacts,
    Identity,
    Misuse,
    Outlook,
    PlanFacts,
    ReceiptFacts,
    RefusalFacts,
    SetbackFacts,
    Skip,
    World,
    WriterFacts,
)
from quire.core.store.dumped import Dump


class Oracle(Admissions, background.Answers):
    """What a cache of this world must answer."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self.world = world
        self.model = Model(world, clock)
        self.state = self.model.own

    # -- admission ---------------------------------------------------------------------------------------------------

    def claim(
        self, key: str, asks: Sequence[Ask], purpose: str
    ) -> tuple[tuple[ClaimFacts, ...], tuple[RefusalFacts, ...]]:
        """Phase 1 of a batch, kept under a key."""
        batch = self.model.batches[key] = self._open(asks, purpose)
        return tuple(claim_facts(self.model, claim) for claim in batch.claims), tuple(batch.refused)

    def drop_claim(self, key: str) -> None:
        """Give a batch back."""
        for claim in reversed(self.model.batches.pop(key).claims):
            self.model.let_go(claim)

    def admit(self, key: str, budget: Budget, continuing: Sequence[str]) -> Admission:
        """Phase 2 of a batch."""
        if any(claim.ask.name in self.state.rows for claim in self.model.batches[key].claims):
            raise Misuse("a sequence of that name was admitted since")
        return self._admit(self.model.batches.pop(key), budget, continuing)

    def add(self, asks: Sequence[Ask], budget: Budget, continuing: Sequence[str]) -> Admission:
        """Both phases at once."""
        return self._admit(self._open(asks, "compute"), budget, continuing)

    def _open(self, asks: Sequence[Ask], purpose: str) -> Batch:
        batch = admission.open_batch(self.model, list(asks), purpose)
        for claim in batch.claims if self.world.receipts else ():
            claim.receipt = receipts.explain(self.state, claim)
        return batch

    def finish(self, number: int, failed: Sequence[int]) -> Closing:
        """A plan has run, but for these moves."""
        late = self.model.background.pop(number, None)
        moves = late or self.model.plans.pop(number, [])
        self.model.trust()
        if late is not None:
            background.land(self.model, late, set(failed))
        if not failed:
            return Closing((), None)
        bad = [moves[place] for place in sorted(set(failed)) if late is None or moves[place][0][0] != slots.OFFLOAD]
        spoilt = faults.spoilt_pages(self.model, bad)  # a copy down that failed costs nothing
        setbacks = faults.spoil(self.model, spoilt)
        return Closing(tuple(setbacks), None if late is not None else self.model.take_plan())

    def lose(self, group: int, slots: Sequence[int], tier: int) -> Closing:
        """The pages in some slots are bad."""
        bad = faults.bad_pages(self.model, group, slots, tier)
        if not bad:
            return Closing((), None)
        self.refresh()
        setbacks = tuple(faults.spoil(self.model, bad))
        return Closing(setbacks, None if tier == self.model.world.slow_tier else self.model.take_plan())

    def probe(self, ask: Ask, purpose: str) -> Outlook:
        """What a claim would find now and an admission take."""
        admission.check(self.model, ask)
        return outlook(self.model, self.model.find(ask, purpose))

    def explain(self, ask: Ask, purpose: str) -> ReceiptFacts:
        """Why a claim would not find more now; asked without a device too."""
        admission.check_ask(self.model, ask)
        return receipts.explain(self.state, self.model.find(ask, purpose))

    def find(self, key: str, ask: Ask, from_: int) -> FoundFacts:
        """Hold what is there behind some tokens, under a key."""
        admission.check_ask(self.model, ask)
        hit = self.model.finds[key] = finds.find(self.model, ask, from_ // self.world.block_size)
        hold(hit)
        finds.keep(self.model, hit, 1)
        return finds.facts(self.model, hit)

    def found(self, key: str) -> FoundFacts:
        """What such a find holds now."""
        return finds.facts(self.model, self.model.finds[key])

    def use_find(self, key: str) -> None:
        """It was used."""
        if not self.model.finds[key].told:
            background.end(self.model, {self.model.finds[key].ask.name})
        finds.use(self.model, self.model.finds[key])

    def close_find(self, key: str) -> None:
        """Give it back."""
        finds.keep(self.model, self.model.finds[key], -1)
        self.model.let_go(self.model.finds.pop(key))

    def write(self, key: str, ask: Ask, tier: int, end: int, skip: Skip) -> tuple[Any, PlanFacts | None]:
        """Slots for pages that somebody brings, under a key; or what they lack."""
        admission.check_ask(self.model, ask)
        if not (self.world.reuse and ask.keeps) or ask.compute_end > self.world.max_length:
            raise Misuse("nothing of it may be stored, or it is too long")
        text = list(ask.identities[: ask.compute_end])
        writing = writers.Writing(ask, tier, text, [{} for _ in self.state.pools])
        lack = writers.take(self.model, writing, end, skip)
        if lack is not None:
            return lack, None
        self.model.writers[key] = writing
        return writers.facts(writing), self.model.take_plan()

    def extend_writer(self, key: str, tokens: Sequence[int], skip: Skip, also: Skip) -> tuple[Any, PlanFacts | None]:
        """More of such a text; or only blocks before their turn."""
        writing = self.model.writers[key]
        if len(writing.text) + len(tokens) > self.world.max_length:
            raise Misuse("it is too long")
        writing.text += [plain(token) for token in tokens]
        lack = writers.take(self.model, writing, 0 if also else len(writing.text), skip, also)
        if lack is not None:
            del writing.text[len(writing.text) - len(tokens) :]
            return lack, None
        return writers.facts(writing), self.model.take_plan()

    def writing(self, key: str) -> WriterFacts:
        """What waits for its bytes."""
        return writers.facts(self.model.writers[key])

    def written(self, key: str, end: int, skip: Skip) -> int:
        """Some bytes are there."""
        return writers.written(self.model, self.model.writers[key], end, skip)

    def close_writer(self, key: str) -> None:
        """The rest will not come."""
        writers.close(self.model, self.model.writers.pop(key))

    # -- life --------------------------------------------------------------------------------------------------------

    def grow(self, names: Sequence[str], tokens: Sequence[Sequence[int]] | None, num_tokens: int) -> PlanFacts | None:
        """Slots for coming tokens."""
        rows = [self.state.rows[name] for name in names]
        new = None if tokens is None else [[plain(token) for token in some] for some in tokens]
        return self.model.take_plan() if life.grow(self.state, rows, new, num_tokens) else None

    def commit(self, names: Sequence[str], computed: Sequence[int] | None) -> int:
        """KV exists so far; who has run has read all of the encoder's, or the length was told when that came."""
        rows = [self.state.rows[name] for name in names]
        flights.check_landed(self.model, rows)
        marks = [min(row.handed, len(row.tokens)) for row in rows] if computed is None else computed
        life.check_commit(self.state, rows, marks)
        if any(map(reach.bounded, self.state.kinds)):
            for pools in self.state.pools:
                pools.refresh(self.state.now())
        told, pairs = computed is not None, zip(rows, marks, strict=True)
        ran = [row for row, mark in pairs if mark > row.computed or (told and mark >= len(row.tokens))]
        fresh = sum(commit(self.state, row, mark) for row, mark in zip(rows, marks, strict=True))
        for row in ran if self.model.cross is not None else ():
            assert self.model.cross is not None
            across = self.model.cross.rows.get(row.ask.name)
            if across is not None and across.computed < len(across.tokens):
                fresh += commit(self.model.cross, across, len(across.tokens))
        return fresh

    def launch(self, names: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
        """A step is on its way."""
        return flights.launch(self.model, names)

    def land(self, nth: int, computed: Sequence[int] | None, tokens: Sequence[Sequence[int]]) -> int:
        """A step in flight has run."""
        return flights.land(self.model, nth, computed, [[plain(token) for token in some] for some in tokens])

    def crash(self, nth: int) -> tuple[SetbackFacts, ...]:
        """A step in flight has failed."""
        return flights.crash(self.model, nth)

    def trim(self, name: str, num_tokens: int) -> int:
        """Tail tokens go."""
        flights.check_landed(self.model, [self.state.rows[name]])
        return life.trim(self.state, self.state.rows[name], num_tokens)

    def fork(self, name: str, names: Sequence[str]) -> tuple[tuple[int, ...], PlanFacts] | None:
        """More rows on the same pages."""
        numbers = forks.fork_all(self.model, name, list(names))
        return None if numbers is None else (tuple(numbers), self.model.take_plan())

    def release(self, name: str, store: bool, back: int = 0) -> None:
        """A row ends; its text comes back then."""
        flights.end(self.model, self.state.rows[name], store, back)

    def suspend(self, name: str) -> tuple[Identity, ...]:
        """A row ends, to go on later; its tokens so far."""
        tokens = tuple(self.state.rows[name].tokens)
        self.release(name, True)
        return tokens

    def hold(self, key: str, name: str, start: int, end: int) -> tuple[tuple[int, ...], ...] | None:
        """Keep the pages of a span, under a key; which. None when they are to leave."""
        if life.keeps_leaving(self.state, self.state.rows[name], start, end):
            return None
        pages = [life.hold(stream, key, stream.rows.get(name), start, end) for stream in self.model.streams]
        return tuple(mine for some in pages for mine in some)

    def drop(self, key: str) -> None:
        """Give up such a hold."""
        for stream in self.model.streams:
            life.drop(stream, key)

    # -- tree and tiers ----------------------------------------------------------------------------------------------

    def truncate(self, ask: Ask, keep: int) -> int:
        """Forget along a request's tokens."""
        admission.check_ask(self.model, ask)
        self._cut(ask, keep, across=False)
        gone = life.truncate(self.state, ask, keep)
        if self.model.cross is not None and ask.encoder is not None and not keep:
            self._cut(encoder_ask(ask), 0, across=True)
            gone += life.truncate(self.model.cross, encoder_ask(ask), 0)
        return gone

    def _cut(self, ask: Ask, keep: int, across: bool) -> None:
        """Claims that have found the first whole block that goes, in whatever scope the ask names."""
        size = self.world.block_size
        block = reach.num_blocks(keep, size)
        if (block + 1) * size <= ask.compute_end:
            top = path_of(ask.root, ask.identities[: ask.compute_end], size)[: block + 2]
            self.model.cut(top, across)
            for writing in self.model.writers.values() if not across else ():  # an encoder's pages are not written
                writing.cut = writing.cut or writers.goes_through(writing, top, size)

    def clear(self, again: bool = False) -> int:
        """Forget everything; `again`: who stores goes on to."""
        if again and self.model.open_claims():
            raise Misuse("a claim would be on pages that are stored anew")
        for writing in self.model.writers.values():
            writing.cut = True
        for claim in self.model.open_claims():
            claim.cut = True
            if claim.across is not None:
                claim.across.cut = True
        self.state.tree.ends.clear()
        return sum(life.clear(stream, again) for stream in self.model.streams)

    def forget(self, pattern: int) -> int:
        """Forget some scopes."""
        _, scopes = build.PATTERNS[pattern]
        for claim in self.model.open_claims():
            if claim.ask.scope in scopes:
                claim.cut = True
                if claim.across is not None:
                    claim.across.cut = True
        for writing in self.model.writers.values():
            writing.cut = writing.cut or writing.ask.scope in scopes
        own = [root for root in self.state.roots if build.ORIGINS[root][0] in scopes]
        gone = sum(life.forget_scope(self.state, root) for root in own)
        if self.model.cross is not None:
            named = [build.ROOTS[scope] for scope in scopes]
            gone += sum(life.forget_scope(self.model.cross, root) for root in self.model.cross.roots if root in named)
        for stream in self.model.streams:
            stream.sweep()
        return gone

    def hint(self, ask: Ask, back: int, keep: int) -> int:
        """Text that is stored comes back then."""
        return along(self.state, ask.scope_root, [plain(token) for token in ask.tokens], keep, back)

    def offload(self, num_pages: int, group: int) -> PlanFacts:
        """Shadows for the next victims."""
        stream, place = self.model.place(group)
        early.offload(stream.pools[place], num_pages)
        return self.model.take_plan()

    def refresh(self) -> None:
        """Retention that has run out ends, and so do prefetches."""
        background.expire(self.model)
        for stream in self.model.streams:
            for pools in stream.pools:
                pools.refresh(stream.now())

    # -- what there is -----------------------------------------------------------------------------------------------

    def brief(self) -> tuple[int, ...]:
        """Free counts."""
        return tuple([stream.free(place) for stream, place in self.model.groups()])

    def usage(self) -> tuple[int, ...]:
        """Where the slots of every tier are; and how many pages that are gone are remembered, told of the first."""
        return usage(self.model)

    def row(self, name: str) -> tuple[Any, ...]:
        """Everything a sequence shows of itself."""
        return row_facts(self.model, name)

    def dump(self) -> list[Dump]:
        """Everything, stream by stream, in the layout of a store's dump; private copies are not counted here."""
        return [dump(stream) for stream in self.model.streams]


def plain(token: int) -> Identity:
    """The identity of a token without extras."""
    return token, 0, 0, 0
