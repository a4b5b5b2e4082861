"""DeadlineSide: the engine's side of a DeadlineDoor. Owns what stands before a newcomer, and which bounds are open.

    submit ─► hold its hit ─► what is ahead of it, by the fair key ─► the door ─► accepted: a bound, a hold, an order
                                                                    '────► TooLate: nothing has changed
    step ─► what it does, and how long the one before took ─► StepCosts          first token ─► kept, or broken by cause

Where deadlines are kept, a request without one is ordered as if it had one `PATIENCE` after it came: no deadline lies
before its own request came, so only finitely many pass it.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from typing import NamedTuple

from quire.core.cache import Cache
from quire.core.records.errors import say
from quire.core.state.prepared import Prepared
from quire.engine.deadlines.first_token import TokenDeadline
from quire.engine.deadlines.held_hits import HeldHits
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.setup.submission import TooLate
from quire.engine.step.runs.branch import Branch, ExpectedWork, Run
from quire.engine.step.runs.step_work import Turn
from quire.engine.step.runs.tenant import Tenant, Together, TokenKey
from quire.engine.step.schedule import Scheduler
from quire.insight.bills import Bills
from quire.insight.deadlines.answer_lengths import RunningAnswer
from quire.insight.deadlines.door import DeadlineDoor, DoorVerdict, OpenBound, QueuePlace, Standing
from quire.insight.deadlines.step_costs import StepWork, prompt_work
from quire.tiers.mover import Mover

PATIENCE = 60.0  # seconds behind which a request without a deadline is ordered like one with
TOLERANCE = 8  # tokens computed beyond what was counted, before that is why a bound was broken


class Queued(NamedTuple):
    """Prompts in the queue, as a newcomer finds them."""

    ahead: StepWork
    later: float  # tokens of those behind it
    seats: int  # of those ahead that wait
    slots: tuple[int, ...]  # and that they need, by group


class _PlacedVerdict(NamedTuple):
    place: QueuePlace
    pages: int  # that it needs
    verdict: DoorVerdict


class _OpenRun(NamedTuple):
    run: Run
    bound: OpenBound
    tokens: float  # that it should compute


class DeadlineSide:
    """One engine's. All of it in the engine's thread; `door.counts` may be read from any."""

    def __init__(
        self, cache: Cache, config: EngineConfig, scheduler: Scheduler, mover: Mover, clock: Callable[[], float]
    ) -> None:
        assert config.deadlines is not None
        self.door = DeadlineDoor(config.deadlines, clock)
        self.holds = HeldHits(cache)
        scheduler.give_up_hold = self.holds.give_one_up
        self._cache, self._config, self._mover, self._clock = cache, config, mover, clock
        self._queues, self._rounds = scheduler.queues, scheduler.rounds
        self._tiers = len(cache.config.tiers)
        self._slow = next((nth for nth, tier in enumerate(cache.config.tiers) if tier.slow), self._tiers)
        self._open: dict[Run, _OpenRun] = {}
        self._paged = [g for g, group in enumerate(cache.config.groups) if not group.current]
        self._step: StepWork | None = None  # the one under way, its beginning, and bytes moved up to then
        self._since, self._moved = 0.0, (0, 0)
        self._progress = cache.progress()
        self.bills: Bills | None = None  # which hear of deadlines that were missed

    def __repr__(self) -> str:
        return f"DeadlineSide({len(self._open)} open, {self.door!r}, {self.holds!r})"

    # -- at the door -------------------------------------------------------------------------------------------------

    def enter(self, run: Run, prepared: Prepared, tenant: str | Together | None, wanted: TokenDeadline | None) -> None:
        """A run is about to be queued. Where its first token would come too late it is refused, and nothing changed."""
        now = self._clock()
        run.deadline = now + PATIENCE
        if wanted is None:
            run.expected = self._expected(prepared, len(run.prompt))
            self._push_back(run, tenant)
            return
        asked = now if wanted.asked is None else wanted.asked
        held = self.holds.hold(run, prepared)
        try:
            run.expected = self._expected(prepared, held)
            self._decide(run, tenant, wanted.seconds, asked, now)
        except BaseException:
            self.holds.give_back(run)
            raise

    def quote(self, run: Run, prepared: Prepared, tenant: str | Together | None, wanted: TokenDeadline) -> DoorVerdict:
        """What the door would say to a run that comes now. Nothing is held, and nothing counted."""
        now = self._clock()
        asked = now if wanted.asked is None else wanted.asked
        (probe,) = self._cache.probe([prepared])
        run.expected = self._expected(prepared, len(run.prompt) if self.holds.has_room(probe) else 0)
        return self._verdict(run, tenant, wanted.seconds, asked, now).verdict

    def _expected(self, prepared: Prepared, usable: int) -> ExpectedWork:
        """What a prompt costs of which so many leading tokens may be reused."""
        (probe,) = self._cache.probe([prepared])
        start = min(probe.start, usable)
        return ExpectedWork(prompt_work(start, len(prepared.request.tokens), probe.onboard_bytes), probe.slots_now)

    def _decide(self, run: Run, tenant: str | Together | None, limit: float, asked: float, now: float) -> None:
        assert run.expected is not None
        place, pages, verdict = self._verdict(run, tenant, limit, asked, now)
        if not verdict.accepted:
            self.door.refuse(verdict)
            raise _too_late(verdict, limit)
        own = run.expected.work
        self.door.push_back(own, pages, place)
        bound = self.door.enter(verdict, asked, now, limit)
        run.times.bound = bound.latest or 0.0
        self._open[run] = _OpenRun(run, bound, own.tokens)

    def _verdict(
        self, run: Run, tenant: str | Together | None, limit: float, asked: float, now: float
    ) -> _PlacedVerdict:
        """The door's, and where the run would stand; in its own place, or behind those that it would make late."""
        assert run.expected is not None
        own = run.expected.work
        run.deadline = asked + limit
        place, pages = self._place(run, tenant)
        verdict = self.door.verdict(own, pages, place, now - asked, limit)
        if verdict.others:  # behind all of those it may still be in time
            run.deadline = max(run.deadline, *(one.run.deadline for one in self._open.values())) + 1e-6
            place, pages = self._place(run, tenant)
            verdict = self.door.verdict(own, pages, place, now - asked, limit)._replace(others=True)
        return _PlacedVerdict(place, pages, verdict)

    def _push_back(self, run: Run, tenant: str | Together | None) -> None:
        """One without a deadline goes before those whose deadline is far."""
        assert run.expected is not None
        far = [one for one in self._open.values() if one.run.deadline > run.deadline]
        if far and self.door.costs.ready:
            place, pages = self._place(run, tenant)
            self.door.push_back(run.expected.work, pages, place)

    def _place(self, run: Run, tenant: str | Together | None) -> tuple[QueuePlace, int]:
        """What is ahead of it and behind; and pages that it needs, of the group that lacks most."""
        inside, key = self._rounds.preview(run, tenant)
        ahead, seats, later, behind = StepWork(), 0, 0.0, list[OpenBound]()
        slots = [0] * len(self._cache.config.groups)
        for branch in self._queues.prompts:
            sequence = branch.sequence
            left = StepWork() if sequence is None else prompt_work(sequence.ran, sequence.prompt_end)
            if self._is_first(branch, run, inside, key):
                ahead = ahead.plus(left)
            else:
                self._add_behind(behind, branch)
                later += left.tokens
        for branch in self._queues.waiting:
            expected = self._left_of(branch)
            if not self._is_first(branch, run, inside, key):
                self._add_behind(behind, branch)
                later += expected.work.tokens
                continue
            ahead, seats = ahead.plus(expected.work), seats + 1
            slots = [a + b for a, b in zip(slots, expected.slots, strict=True)]
        return self._standing(run, Queued(ahead, later, seats, tuple(slots)), behind)

    def _is_first(self, branch: Branch, run: Run, inside: Tenant | None, key: TokenKey) -> bool:
        if branch.run.tenant is inside:
            return branch.age < (run.sampling.priority, run.deadline, run.arrival, 0)
        return self._rounds.token_key(branch.run) < key

    def _add_behind(self, behind: list[OpenBound], branch: Branch) -> None:
        known = self._open.get(branch.run)
        if known is not None and known.bound.latest is not None and not branch.run.times.first_token:
            behind.append(known.bound)

    def _left_of(self, branch: Branch) -> ExpectedWork:
        """Of one that waits. What was computed of it before it lost its pages is mostly there."""
        expected, length = branch.run.expected, branch.length
        if expected is None or not branch.run.fresh:
            slots = tuple(-(-length // self._config.block_size) for _ in self._cache.config.groups)
            return ExpectedWork(prompt_work(max(0, length - self._config.block_size), length), slots)
        return expected

    def _standing(self, run: Run, queued: Queued, behind: list[OpenBound]) -> tuple[QueuePlace, int]:
        assert run.expected is not None
        queues, cache, need, sampling = self._queues, self._cache, run.expected.slots, run.sampling
        rows = len(queues.ready) + len(queues.unread) + len(queues.held)
        free_pages = {g: cache.num_free(g) - queued.slots[g] for g in self._paged}
        tight = min(free_pages, key=lambda g: free_pages[g] - need[g])
        free = self._config.max_sequences - cache.num_sequences
        short = queued.seats + 1 > free or free_pages[tight] < need[tight]
        answers, context = self._answers(tight) if short else (), float(self._progress.computed.sum())
        standing = Standing(
            self._config.max_num_tokens, queued.ahead, queued.later, queued.seats, rows, context, free,
            free_pages[tight], answers, sampling.max_tokens * max(sampling.n, sampling.beams),
        )  # fmt: skip
        return QueuePlace(standing, behind), need[tight]

    def _answers(self, group: int) -> list[RunningAnswer]:
        """Those that give seats and pages back."""
        found = []
        for branch in (*self._queues.ready, *self._queues.unread, *self._queues.held):
            if branch.sequence is not None:
                shared = branch.sequence.start // self._config.block_size  # others may keep what it found
                pages = int((branch.sequence.slots(group)[shared:] >= 0).sum())
                found.append(RunningAnswer(len(branch.answer), branch.run.sampling.max_tokens, pages))
        return found

    # -- in each step ------------------------------------------------------------------------------------------------

    def note(self, turn: Turn, prompts: KeysView[Branch]) -> None:
        """What this step does."""
        tokens, attended, count = 0.0, 0.0, 0
        for branch in prompts:
            work = turn.works.get(branch)
            if work is not None:
                part = prompt_work(work.span.start, work.span.end)
                tokens, attended, count = tokens + part.tokens, attended + part.attended, count + 1
        self._step = StepWork(
            tokens, attended, len(turn.works) - count + len(turn.rows), float(self._progress.computed.sum())
        )

    def begin_step(self) -> None:
        """The one before is over, whether another follows or not: so long did it take, if it computed anything."""
        now, step, moved = self._clock(), self._step, self._bytes_up()
        if step is not None:
            fast, slow = (float(new - old) for new, old in zip(moved, self._moved, strict=True))
            self.door.costs.note(step._replace(bytes=fast, slow_bytes=slow), now - self._since)
        self._step, self._since, self._moved = None, now, moved
        for one in list(self._open.values()):
            self._look_at(one)

    def _bytes_up(self) -> tuple[int, int]:
        """So far, from colder tiers: from fast ones, and from the slow one."""
        if self._tiers == 1:
            return 0, 0
        moved = self._mover.stats().bytes_moved.items()
        up = [(source, size) for (source, target), size in moved if source > target]
        slow = sum(size for source, size in up if source == self._slow)
        return sum(size for _, size in up) - slow, slow

    def _look_at(self, one: _OpenRun) -> None:
        run, times = one.run, one.run.times
        if times.admitted:
            self.holds.give_back(run)
        if times.first_token:
            del self._open[run]
            more = run.computed > one.tokens + TOLERANCE
            self.door.came(one.bound, times.first_token, preempted=run.num_preemptions > 0, recomputed=more)
            self._bill(one, times.first_token)

    def _bill(self, one: _OpenRun, now: float) -> None:
        """Its first token has come now, or will never come."""
        if self.bills is not None and now > one.bound.deadline:
            self.bills.count_late(one.run.request)

    def finished(self, run: Run) -> None:
        """It is over."""
        one = self._open.get(run)
        if one is not None:
            self._look_at(one)
            if self._open.pop(run, None) is not None:
                now = self._clock()
                self.door.left(one.bound, now)
                self._bill(one, now)
        self.holds.give_back(run)
        for answer in run.answers:
            if answer.finish in ("eos", "stop", "length"):
                self.door.lengths.note(len(answer.tokens), cut=answer.finish == "length")


def _too_late(verdict: DoorVerdict, limit: float) -> TooLate:
    assert verdict.bound is not None
    if verdict.dear:
        fact = f"more is asked for than can be done, and {verdict.cost:.3f} s of computing is more than others want"
        spare, cure = 0.0, "ask again later"
    else:
        spare, fact = limit, f"it may take {verdict.bound:.3f} s, by what is computed before it"
        cure = f"ask again in {max(1.0, verdict.bound - limit):.0f} s, or with more time"
    return TooLate(say(f"a first token within {limit:g} s", fact, cure), verdict.bound, spare)


def open_deadlines(
    cache: Cache, config: EngineConfig, scheduler: Scheduler, mover: Mover, clock: Callable[[], float]
) -> DeadlineSide | None:
    """Of an engine whose config asks for it; None: no request may have a deadline."""
    return None if config.deadlines is None else DeadlineSide(cache, config, scheduler, mover, clock)
