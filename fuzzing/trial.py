"""Trial: one world, the oracle and one or two caches side by side. Compares after every call; chooses no calls."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

from fuzzing.answers import firm
from fuzzing.compare import Mismatch, same
from fuzzing.lasting import digest_of
from fuzzing.mirror import Hashes
from fuzzing.oracle import Oracle
from fuzzing.oracle.room import Room
from fuzzing.oracle.state import State
from fuzzing.oracle.tree import path_of
from fuzzing.overlap import FlightTrial, coming
from fuzzing.subject import StoreName, Subject
from fuzzing.world.build import Known
from fuzzing.world.content import encoded, values
from fuzzing.world.plain import (
    Admission,
    Ask,
    ClaimFacts,
    Closing,
    Misuse,
    Path,
    PlanFacts,
    ReceiptFacts,
    World,
)
from quire import QuireError, check

TRACE = 30  # calls kept for the report
WATCHED = 0.15  # share of calls that must change nothing after which all there is is compared
KINDS = ("onboard", "offload", "copy", "exchange")
Bad = tuple[int, str, int]  # tier, verb, slot that fail


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Trial(FlightTrial):
    """Every call goes to all of them; every answer is compared."""

    def __init__(
        self, world: World, stores: Sequence[StoreName], check_every: int = 120, compare_every: int = 40
    ) -> None:
        self.world, self.clock = world, Clock()
        self.check_every, self.compare_every = check_every, compare_every
        self.oracle = Oracle(world, self.clock)
        self.subjects = [Subject(world, self.clock, store) for store in stores]
        self.known, self.hashes = Known(), Hashes()
        self.trace: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=TRACE)
        self.reached: Counter[str] = Counter()
        self.hits = [f"hit with a {kind} group" for kind in {one.kind for one in world.kinds}]
        self.rooms: list[Room] = []
        for stream, place in self.oracle.model.groups():
            room = stream.pools[place].room
            self.rooms += [room] if room not in self.rooms else []
            room.reached = stream.points.reached = self.reached
            if room.cells is not None:
                room.cells.reached = self.reached
        self.operations = 0
        self.dice = Random(world.rows)  # not the driver's: what is looked at does not change what is called
        self.heard = 0  # the call after which what events say was compared with the tree
        self.set_back: list[str] = []  # sequences that must be handed out again
        self.unrun: list[PlanFacts] = []  # in the order they were made
        self.late: list[tuple[PlanFacts, set[int]]] = []  # in the background, with the moves that have been made
        self.unfinished: list[tuple[PlanFacts, tuple[int, ...]]] = []  # run, with the moves that failed

    def close(self) -> None:
        """End the movers."""
        for subject in self.subjects:
            subject.content.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    def do(self, verb: str, *args: Any) -> Any:
        """One public call on all; the answer they agree on."""
        self.operations += 1
        self.trace.append((verb, args))
        try:
            for arg in args:
                for ask in arg if isinstance(arg, list) else (arg,):
                    if isinstance(ask, Ask):
                        self.known.learn(ask)
            try:
                expected = getattr(self.oracle, verb)(*args)
            except Misuse:
                self._expect_error(verb, args)
                return None
            for subject in self.subjects:
                same(f"{verb} on {subject.store}", firm(getattr(subject, verb)(*args)), firm(expected))
            self._note(expected)
            self._note_runs()
            self._compare()
        except Mismatch:
            raise
        except Exception as error:
            raise Mismatch(f"{verb}: {type(error).__name__}: {error}") from error
        return expected

    def _expect_error(self, verb: str, args: tuple[Any, ...]) -> None:
        with self.nothing_changes():
            for subject in self.subjects:
                try:
                    getattr(subject, verb)(*args)
                except QuireError:
                    self.reached[f"wrong {verb}"] += 1
                    continue
                raise Mismatch(f"{verb} on {subject.store}: it was not refused")

    def _note(self, answer: Any) -> None:
        if answer is None or isinstance(answer, int):
            return
        reached = self.reached
        parts = answer if isinstance(answer, tuple) else (answer, getattr(answer, "plan", None))
        for plan in parts:
            if isinstance(plan, PlanFacts) and plan.moves:
                self._note_plan(plan)
        for receipt in receipts_in(answer):
            for miss in receipt.misses:
                reached[f"missed: {miss.cause}"] += 1
        if isinstance(answer, Admission):
            hits = sum([start > 0 for _, _, start in answer.rows])
            for what, number in (
                ("admitted", len(answer.rows)),
                ("with a hit", hits),
                *((kind, hits) for kind in self.hits),
            ):
                reached[what] += number
            reached["state written inside a step"] += len(answer.snapshots)
            for refusal in answer.refused:
                reached[f"refused for {refusal[1]}"] += 1
        elif isinstance(answer, Closing):
            for kind, name, _, _, lost in answer.setbacks:
                reached[f"{kind} {'lost' if lost else 'set back'}"] += 1
                self.set_back += [name] if kind == "sequence" and not lost else []

    def _note_plan(self, plan: PlanFacts) -> None:
        for move in plan.moves:
            self.reached[f"background {KINDS[move[0]]}" if plan.background else KINDS[move[0]]] += 1
        if plan.background:
            self.late.append((plan, set()))
            self.reached["background plan behind a step's"] += plan.after >= 0
        else:
            self.unrun.append(plan)

    def _note_runs(self) -> None:
        """How many pages a call has evicted from one pool, by their number: 1, 2 to 3, 4 to 7 and so on."""
        for room in self.rooms:
            evicted = room.evicted()
            length, room.evicted_before = evicted - room.evicted_before, evicted
            if length:
                self.reached[f"run of {1 << length.bit_length() - 1:3} pages and more"] += 1

    def calls(self) -> list[str]:
        """The last calls, as text."""
        return [f"{verb}({', '.join(map(repr, args))})" for verb, args in self.trace]

    @contextmanager
    def nothing_changes(self, unless: list[Any] | None = None) -> Iterator[None]:
        """What happens inside leaves no trace in state, order, statistics and events, unless that list gets filled.

        Not every time all is looked at: that takes longer than the call, and a trace differs from the oracle's too."""
        self.take_events()
        whole = self.compare_every == 1 or self.dice.random() < WATCHED
        before = [subject.dump() if whole else subject.brief() for subject in self.subjects]
        yield
        if unless:
            return
        for subject, was in zip(self.subjects, before, strict=True):
            found = subject.dump() if whole else subject.brief()
            same(f"{subject.store} after a call that must change nothing", found, was)
            same(f"events of {subject.store} after it", len(subject.cache.take_events()), 0)

    def pass_time(self, seconds: float) -> None:
        """The clock goes on."""
        self.clock.now += seconds
        self.trace.append(("pass_time", (seconds,)))

    # -- plans and bytes ---------------------------------------------------------------------------------------------

    def run_plans(self, bad: Sequence[Bad] = ()) -> None:
        """Carry out every plan made so far, in order, while some slots fail."""
        for plan in self.unrun:
            self.trace.append(("run", (plan.number, list(bad))))
            failed = [subject.run(plan.number, bad) for subject in self.subjects]
            for subject, other in zip(self.subjects, failed, strict=True):
                same(f"failed moves of {subject.store}", other, failed[0])
            self.unfinished.append((plan, failed[0]))
            self.reached["failed move"] += len(failed[0])
        self.unrun.clear()

    def settle_plans(self, bad: Sequence[Bad] = (), doubted: Sequence[int] = ()) -> None:
        """Run and finish every plan; told as failed: moves that did, and of the first plan the doubted ones."""
        self.run_plans(bad)
        while self.unfinished:
            plan, failed = self.unfinished.pop(0)
            self.do("finish", plan.number, sorted({*failed, *(place for place in doubted if place < len(plan.moves))}))
            for subject in self.subjects if failed else ():  # else nothing was spoilt
                subject.content.mover.settle(plan.number)
            self.run_plans()
            doubted = ()

    def run_late(self, nth: int, places: Sequence[int]) -> None:
        """Make some moves of a background plan, if the step's plan before it has run."""
        plan, made = self.late[nth]
        if all(plan.after < one.number for one in self.unrun):
            new = [place for place in dict.fromkeys(places) if place < len(plan.moves) and place not in made]
            self.trace.append(("copy", (plan.number, new)))
            for subject in self.subjects:
                subject.copy(plan.number, new)
            made.update(new)

    def finish_late(self, nth: int, failed: Sequence[int]) -> None:
        """Make the other moves of a background plan and finish it, but for those that fail."""
        plan, made = self.late[nth]
        if any(one.number <= plan.after for one in self.unrun):
            return
        del self.late[nth]
        bad = sorted({place for place in failed if place < len(plan.moves)})
        for subject in self.subjects:
            subject.copy(plan.number, [*(place for place in range(len(plan.moves)) if place not in made), *bad], bad)
        self.reached["background plan finished"] += 1
        self.reached["background move failed"] += len(bad)
        self.do("finish", plan.number, bad)

    def take_changes(self) -> None:
        """What was told of the slow tier is what is there; now and then a new cache comes out of it."""
        self.trace.append(("take_changes", ()))
        slow = self.world.slow_tier
        there: dict[tuple[int, int], Path] = {}
        for stream, place in self.oracle.model.groups():
            pools = stream.pools[place]
            for page in pools.own_pages():
                if page.path is not None and slow in page.copies:
                    digest = digest_of(page.path[0], stream is not self.oracle.state)
                    there[pools.number, page.copies[slow]] = (digest, *page.path[1:])
        for subject in self.subjects:
            subject.lasting.take(subject.cache.lasting_changes())
            same(f"slow tier of {subject.store} as told", subject.lasting.paths(), there)

    def restore(self) -> None:
        """A new cache takes over what the slow tier of each has."""
        self.take_changes()
        for subject in self.subjects:
            subject.lasting.restored(subject.store)
            self.reached["pages restored"] += len(subject.lasting.pages)

    def compute(self, name: str, end: int, since: int | None = None, launched: bool = False) -> None:
        """A step of the model on one sequence: read all that was computed, told or not (`since`); write up to `end`."""
        row = self.oracle.state.rows[name]
        since = row.computed if since is None else since
        tokens = [*row.tokens, *((token, 0, 0, 0) for token in coming(row, len(row.tokens), end))]
        numbers = values(row.ask.root, tokens[:end])
        self.trace.append(("compute", (name, since, end)))
        for subject in self.subjects:
            live, engine = subject.live[name], subject.engine
            wrong = engine.wrong(live, row.ask, numbers[:since], waits=live in engine.wanted)
            same(f"what {name} reads wrong after {since} tokens ({subject.store})", wrong, None)
            engine.compute(live, row.ask, numbers, since)
            if launched:
                engine.launch(live, numbers, since)
            if live in engine.wanted:
                wrong = engine.wrong(live, row.ask, numbers)
                same(f"what {name} reads wrong of {end} transferred tokens ({subject.store})", wrong, None)

    def fill(self, key: str, end: int) -> None:
        """Somebody brings the bytes of a writer's blocks before `end`; what makes room for them has run."""
        self.run_plans()
        writing = self.oracle.model.writers[key]
        numbers = values(writing.ask.root, writing.text)
        self.trace.append(("fill", (key, end)))
        for subject in self.subjects:
            subject.fill(key, numbers, end)

    # -- comparisons -------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        expected = self.oracle.brief()
        for subject in self.subjects:
            subject.tables.follow(subject.store, self.compare_every == 1)
            same(f"free counts of {subject.store}", subject.brief(), expected)
        if self.operations % self.compare_every == 0:
            self.compare_all()
        if self.operations % self.check_every == 0:
            self.check()

    def compare_all(self) -> None:
        """Every node, page, order, count and row."""
        usage = self.oracle.usage()
        for subject in self.subjects:
            same(f"usage of {subject.store}", subject.usage(), usage)
            same(f"free counts of {subject.store}, as told", subject.free(), subject.brief())
        expected = self.oracle.dump()
        dumps = [subject.dump() for subject in self.subjects]
        for subject, found in zip(self.subjects, dumps, strict=True):
            same(f"dump of {subject.store}", found, dumps[0])
        for stream, facts in zip(dumps[0], expected, strict=True):
            rows = {number: row._replace(twins=0) for number, row in stream.rows.items()}  # the oracle counts none
            same("dump", stream._replace(rows=rows), facts)
        for key in self.oracle.model.finds:
            for subject in self.subjects:
                same(f"find {key} of {subject.store}", subject.found(key), self.oracle.found(key))
        for key in self.oracle.model.writers:
            for subject in self.subjects:
                same(f"writer {key} of {subject.store}", subject.writing(key), self.oracle.writing(key))
        for subject in self.subjects:
            same(f"prefetches of {subject.store}", subject.open_prefetches(), self.oracle.open_prefetches())
        for name in [name for name, row in self.oracle.state.rows.items() if row.ending is None]:
            shown = self.oracle.row(name)
            for subject in self.subjects:
                same(f"sequence {name} of {subject.store}", subject.row(name), shown)

    def check(self) -> None:
        """All invariants; and, when no move is outstanding, the bytes of every copy in the tree."""
        for subject in self.subjects:
            check(subject.cache)
            if not self.unrun and not self.unfinished and not any(stream.moves for stream in self.oracle.model.streams):
                self._check_copies(subject)
                self._check_finds(subject)

    def _check_copies(self, subject: Subject) -> None:
        for stream, place in self.oracle.model.groups():
            pools = stream.pools[place]
            for page in pools.own_pages():
                if page.path is not None:
                    slots = [page.copies.get(tier, -1) for tier in range(len(pools.owner))]
                    wrong = subject.content.wrong_copy(pools.number, self._numbers(stream, page.path), slots)
                    same(f"tier of page {page.number} of {subject.store} that has wrong bytes", wrong, None)

    def _check_finds(self, subject: Subject) -> None:
        """What a find of text holds is what it was, in the tree or not, but for pages that were told to be bad."""
        for key, hit in self.oracle.model.finds.items():
            path = path_of(hit.ask.root, hit.ask.identities, self.world.block_size)
            for group, pages in enumerate(hit.pages):
                for block, page in pages.items():
                    slots = [page.copies.get(tier, -1) for tier in range(len(self.world.tiers))]
                    numbers = self._numbers(self.oracle.state, path[: block + 2])
                    wrong = None if page in hit.lost else subject.content.wrong_copy(group, numbers, slots)
                    same(f"tier in which find {key} of {subject.store} reads block {block} wrong", wrong, None)

    def _numbers(self, stream: State, path: Path) -> list[int]:
        """What a page of the last block of a path holds."""
        tokens = [token for block in path[1:] for token in block]
        if stream is self.oracle.state:
            return values(path[0], tokens)[-len(path[-1]) :]
        meaning = self.known.meaning[True, tokens[-1]][:-1]
        return encoded(path[0], meaning, len(tokens))[-len(path[-1]) :]

    def flush(self) -> None:
        """Take all events; replayed, they must give the tree with tiers and priorities."""
        self.heard = -self.compare_every
        self.take_events()

    def take_events(self) -> None:
        """The same; what they give is compared when that was long ago."""
        self.trace.append(("flush", ()))
        batches = [subject.cache.take_events() for subject in self.subjects]
        for subject, batch in zip(self.subjects, batches, strict=True):
            for name in ("records", "hashes", "details", "tokens"):
                equal = np.array_equal(getattr(batch, name), getattr(batches[0], name))
                same(f"{name} of the events of {subject.store} equal the other's", equal, True)
            try:
                subject.mirror.replay(batch)
            except (Mismatch, LookupError) as error:
                raise Mismatch(f"events of {subject.store}", repr(error)) from error
        if self.operations >= self.heard + self.compare_every:
            self.heard = self.operations
            self._compare_mirrors()

    def _compare_mirrors(self) -> None:
        for subject in self.subjects:
            for known, (stream, place) in zip(subject.mirror.groups, self.oracle.model.groups(), strict=True):
                pages = {self.hashes.of(path): pages[place] for path, pages in stream.tree.at.items()}
                facts = {name: (page.hottest, page.priority) for name, page in pages.items() if page}
                same(f"mirror of group {stream.groups[place]} of {subject.store}", known, facts)


def receipts_in(answer: Any) -> list[ReceiptFacts]:
    """Receipts that were asked for, of an admission, or of a batch of claims."""
    if isinstance(answer, ReceiptFacts):
        return [answer]
    if isinstance(answer, Admission):
        return list(answer.receipts or ())
    claims = answer[0] if isinstance(answer, tuple) and answer and isinstance(answer[0], tuple) else ()
    return [claim.receipt for claim in claims if isinstance(claim, ClaimFacts) and claim.receipt is not None]
