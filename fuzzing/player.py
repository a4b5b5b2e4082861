"""Player: makes calls as a well-behaved engine would, and remembers what it must not forget. Chooses nothing itself.

It computes only what was handed out last, runs plans in order, and finishes them before a step reads what they move.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from fuzzing.compare import same
from fuzzing.lists.calls import recorded
from fuzzing.misuse import misuses, refused
from fuzzing.oracle import pending
from fuzzing.oracle.pools import OFFLOAD
from fuzzing.overlap import coming
from fuzzing.tree_calls import TreeCalls
from fuzzing.trial import Bad
from fuzzing.world import build
from fuzzing.world.plain import Admission, Ask, Budget, Skip

NO_LIMITS = Budget()
AGES = (10, 30)  # calls after which a claim counts as kept open


class Player(TreeCalls):
    """The engine's side of one world."""

    # -- admission ---------------------------------------------------------------------------------------------------

    @recorded
    def add(
        self, asks: Sequence[Ask] = (), budget: Budget = NO_LIMITS, continuing: Sequence[str] = ()
    ) -> Admission | None:
        """Claim and admit in one call; None when one of them must not be asked at all."""
        return self._admitted(self.trial.do("add", asks, budget, continuing))

    @recorded
    def add_watched(
        self, asks: Sequence[Ask] = (), budget: Budget = NO_LIMITS, continuing: Sequence[str] = ()
    ) -> Admission | None:
        """The same; when all are refused, nothing at all may have changed."""
        rows: list[Any] = []
        with self.trial.nothing_changes(unless=rows):
            admission = self.add(asks, budget, continuing)
            if admission is not None:
                rows += admission.rows or admission.spans or admission.plan.moves  # a plan also brings older moves
        return admission

    @recorded
    def claim(self, key: str, asks: Sequence[Ask] = (), purpose: str = "compute") -> None:
        """Open a batch of claims, under a key."""
        if self.trial.do("claim", key, asks, purpose) is not None:
            self.open.append(key)
            self.opened[key] = self.trial.operations

    @recorded
    def claim_in_vain(self, key: str, asks: Sequence[Ask] = (), purpose: str = "compute") -> None:
        """Claim and drop: nothing at all may have changed."""
        with self.trial.nothing_changes():
            if self.trial.do("claim", key, asks, purpose) is not None:
                self.trial.do("drop_claim", key)

    @recorded
    def admit(self, key: str, budget: Budget = NO_LIMITS, continuing: Sequence[str] = ()) -> Admission | None:
        """Admit an open batch; None when one of its names was taken meanwhile, so that it can only be dropped."""
        admission = self.trial.do("admit", key, budget, continuing)
        if admission is None:
            self.drop_claim(key)
            return None
        self.open.remove(key)
        age = self.trial.operations - self.opened[key]
        self.trial.reached.update(f"admitted {calls} calls after its claim" for calls in AGES if age > calls)
        return self._admitted(admission)

    @recorded
    def drop_claim(self, key: str) -> None:
        """Drop an open batch."""
        self.open.remove(key)
        self.trial.do("drop_claim", key)

    def _admitted(self, admission: Admission | None) -> Admission | None:
        return admission

    # -- plans and steps ---------------------------------------------------------------------------------------------

    @recorded
    def settle(self, bad: Sequence[Bad] = (), doubted: Sequence[int] = ()) -> list[str]:
        """Carry out and finish all plans; a sequence that was lost is gone, one that was set back has run nothing."""
        if self.world.has_state and self.trial.oracle.state.moves:
            self.trial.do("offload", 0, 0)  # a snapshot is copied before its state moves on
        self.trial.settle_plans(bad, doubted)
        return self._look_after_losses()

    def _look_after_losses(self) -> list[str]:
        """Sequences that are lost wait to be asked for again; those that were set back, which are told, ran nothing."""
        lost = self.trial.oracle.model.lost
        for row in lost.values():
            self._wait(build.resumed(row.ask, tuple(row.tokens), row.kept))
        lost.clear()
        for name in self.untold.keys() - self.rows.keys():
            del self.untold[name]
        back = [name for name in dict.fromkeys(self.trial.set_back) if name in self.rows]
        self.trial.set_back.clear()
        for name in back:
            self.untold.pop(name, None)
        return back

    @recorded
    def run_plans(self, bad: Sequence[Bad] = ()) -> None:
        """Carry out all plans, to finish them later."""
        self.trial.run_plans(bad)

    @recorded
    def compute(self, names: Sequence[str] = ()) -> None:
        """A step of the model on some sequences that are ready."""
        ready = self.ready()
        for name in names:
            self.trial.compute(name, ready[name])
            self.untold[name] = ready[name]

    @recorded
    def tell_late(self) -> None:
        """An engine that runs ahead: what it has grown meanwhile is computed before the step before that is told."""
        self.settle()
        told = {name: end for name, end in self.untold.items() if not self.rows[name].ahead}
        for name, end in told.items():
            del self.untold[name]
            if end < self.ran(name):
                self.trial.compute(name, self.ran(name), end)
                self.untold[name] = self.ran(name)
                self.trial.reached["told late"] += 1
        if told:
            self.trial.do("commit", list(told), list(told.values()))

    @recorded
    def tell(self, default: bool = False) -> None:
        """Commit what was computed, by default what was handed out; calls and plans may have come in between."""
        names, ends = list(self.untold), list(self.untold.values())
        whole = default and all(end == self.ran(name) for name, end in self.untold.items())
        self.untold.clear()
        if whole and any(self.ran(name) < self.rows[name].prompt_end for name in names):
            self.trial.reached["told by default in a prompt"] += 1
        if names:
            self.trial.do("commit", names, None if whole else ends)

    @recorded
    def tell_nothing(self, names: Sequence[str]) -> None:
        """Commit by default what was not handed out again since it was told, or set back: it counts nothing."""
        self.trial.do("commit", names, None)

    @recorded
    def overtell(self, name: str, computed: int) -> None:
        """Part of a transfer, or more than was handed out: refused."""
        self.trial.do("commit", [name], [computed])

    @recorded
    def launch(self, names: Sequence[str] = ()) -> None:
        """Steps of the model on some sequences, told only when the engine hears of them."""
        self.settle()
        able, shared = self.launchable(), self.shared()
        some = [name for name in dict.fromkeys(names) if name in able]
        self.trial.launch(sorted(some, key=lambda name: shared.index(name) + 1 if name in shared else 0))
        self.trial.reached[f"{len(self.steps)} steps in flight"] += 1

    @recorded
    def land(self, dice: int = 0) -> None:
        """The oldest step in flight has run; with dice some of it does not count, or some tokens come later."""
        rng, step = Random(dice), self.steps[0]
        extra = max(kind.extra or 0 for kind in self.world.kinds)
        most = self.world.blocks(self.world.max_length) * self.world.block_size - extra
        marks, tokens = list[int](), list[list[int]]()
        for row, _, end in step.parts:
            shared = pending.shared_end(self.trial.oracle.model, step, row, end)
            known, short = len(row.tokens), dice and rng.random() < 0.1
            reach = end + 1 if not dice or rng.random() < 0.8 else end
            if row.ending is not None and dice and rng.random() < 0.5:
                reach = known
            tokens.append(coming(row, known, min(reach, most)) if end >= row.prompt else [])
            cut = short and not self.world.has_state  # a state that has moved on cannot be computed again
            marks.append(rng.randint(max(shared, min(row.computed, end)), end) if cut else end)
            self.trial.reached["pending shared"] += shared > 0
            if shared > row.computed and rng.random() < 0.1 and row.since <= step.number:
                less = [row.computed if row is one else upto for one, _, upto in step.parts]
                self.trial.do("land", 0, less, [[] for _ in step.parts])
            self.trial.reached["ended in flight"] += row.ending is not None
        wrong = self.steps[-1]
        if dice and rng.random() < 0.05 and (self.steps[1:] or any(row.ending is None for row, *_ in wrong.counts())):
            too_far = [end + 1 for _, _, end in wrong.parts]
            self.trial.do("land", len(self.steps) - 1, too_far, [[] for _ in wrong.parts])
        self.trial.land(marks if dice else None, tokens)

    @recorded
    def crash(self, nth: int = 0) -> None:
        """A step in flight fails, and those behind it."""
        self.trial.crash(nth)
        self._look_after_losses()

    def _tell_first(self, name: str) -> None:
        """A state that has moved on without being told must not be copied as what it was, nor taken back."""
        if self.world.has_state and name in self.untold:
            self.tell()

    # -- life --------------------------------------------------------------------------------------------------------

    @recorded
    def grow(self, names: Sequence[str], tokens: Sequence[Sequence[int]] | None = None, num_tokens: int = 1) -> bool:
        """More tokens, or slots only, for those that are not too long for it; False without room."""
        extra = max(kind.extra or 0 for kind in self.world.kinds)
        last = self.world.blocks(self.world.max_length) * self.world.block_size - extra
        ends = [len(self.rows[name].tokens) if tokens else self.rows[name].handed for name in names]
        fit = [place for place, end in enumerate(ends) if end + num_tokens <= last]
        if tokens:  # what a step in flight makes comes with its commit
            fit = [place for place in fit if self.rows[names[place]].launched <= ends[place]]
        some = None if tokens is None else [tokens[place] for place in fit]
        return not fit or self.trial.do("grow", [names[place] for place in fit], some, num_tokens) is not None

    @recorded
    def trim(self, name: str, num_tokens: int = 0) -> None:
        """Take back tail tokens, but leave one."""
        self._tell_first(name)
        row = self.rows[name]
        self.trial.do("trim", name, max(0, min(num_tokens, self.open_tokens(name), len(row.tokens) - 1)))
        if name in self.untold:
            self.untold[name] = min(self.untold[name], len(row.tokens))

    @recorded
    def fork(self, name: str, forks: Sequence[str]) -> None:
        """Beams, or copies at any time."""
        self._tell_first(name)
        charged = self.is_charged(name, len(forks))
        done = self.trial.do("fork", name, forks) is not None
        if charged:
            self.trial.reached["forked into its beams"] += 1
            same(f"forks of {name} into beams that were charged", done, True)
        if done:
            self.forked |= {name, *forks}

    @recorded
    def release(self, name: str, store: bool = True, back: int = 0) -> None:
        """A sequence ends; one whose last step was not told is kept as far as it was."""
        self.trial.do("release", name, store, back)
        if name in self.rows:  # others share what it is to compute
            self.launch(self.shared())
            self.trial.do("release", name, store, back) if name in self.rows else None
        self._forget(name)

    @recorded
    def suspend(self, name: str) -> None:
        """Preempt a sequence; it waits to be asked for again."""
        ask, kept = self.rows[name].ask, self.rows[name].kept
        tokens = self.trial.do("suspend", name)
        if tokens is not None:  # else others share what it is to compute
            self._wait(build.resumed(ask, tokens, kept))
            self._forget(name)

    def _wait(self, ask: Ask) -> None:
        """It waits to be asked for again; what its name was asked with before is over."""
        self.waiting = [other for other in self.waiting if other.name != ask.name] + [ask]

    def _forget(self, name: str) -> None:
        self.untold.pop(name, None)
        self.forked.discard(name)

    @recorded
    def hold(self, key: str, name: str, start: int = 0, end: int = 0) -> None:
        """Keep some pages of a sequence for a reader; ends beyond its slots are cut."""
        last = self.slots(self.rows[name])
        if self.trial.do("hold", key, name, min(start, end, last), min(max(start, end), last)) is not None:
            self.held.append(key)
            self.trial.reached["hold of pages that are to leave"] += any(self.rows[name].extras)

    @recorded
    def drop_hold(self, key: str) -> None:
        """The reader is done."""
        self.held.remove(key)
        self.trial.do("drop", key)

    # -- from and for outside ----------------------------------------------------------------------------------------

    @recorded
    def find(self, key: str, ask: Ask, from_: int = 0) -> None:
        """Hold what there is behind some tokens; nothing else may have changed."""
        facts = self.trial.do("find", key, ask, from_)
        if facts is not None:
            self.found.append(key)
            self.trial.reached["found something"] += facts[1] > facts[0]
            self.trial.reached["found behind own tokens"] += facts[1] > facts[0] > 0

    @recorded
    def find_in_vain(self, key: str, ask: Ask, from_: int = 0) -> None:
        """Find and close: nothing at all may have changed."""
        with self.trial.nothing_changes():
            if self.trial.do("find", key, ask, from_) is not None:
                self.trial.do("close_find", key)

    @recorded
    def use_find(self, key: str) -> None:
        """What was found has served."""
        self.trial.do("use_find", key)

    @recorded
    def close_find(self, key: str) -> None:
        """Its reader is done."""
        self.found.remove(key)
        self.trial.do("close_find", key)

    @recorded
    def write(self, key: str, ask: Ask, tier: int = 0, end: int = 0, skip: Skip = ()) -> None:
        """Slots for blocks that somebody brings; a refusal changes nothing."""
        refused: list[bool] = []
        with self.trial.nothing_changes(unless=refused):
            told = self.trial.do("write", key, ask, tier, min(end, ask.compute_end), skip)
            refused += [True] if told is not None and told[1] is not None else []
        if refused:
            self.writing.append(key)
            self.trial.reached["slots to write into"] += sum(map(len, told[0]))
        elif told is not None:
            self.trial.reached["writer refused"] += 1

    @recorded
    def extend_writer(self, key: str, tokens: Sequence[int] = (), skip: Skip = (), also: Skip = ()) -> None:
        """More of such a text; or only blocks before their turn."""
        self.trial.do("extend_writer", key, tokens, skip, also)

    @recorded
    def written(self, key: str, end: int = 0, skip: Skip = ()) -> None:
        """Bytes come, and are found from now on."""
        end = min(end, len(self.trial.oracle.model.writers[key].text))
        self.trial.fill(key, end)
        self.trial.reached["written page"] += self.trial.do("written", key, end, skip)

    @recorded
    def close_writer(self, key: str) -> None:
        """The rest of the bytes will not come."""
        self.writing.remove(key)
        self.trial.do("close_writer", key)

    @recorded
    def lose(self, group: int = 0, slots: Sequence[int] = (), tier: int = 0) -> None:
        """The pages in some slots are bad: everything that rests on them is set back at once."""
        closing = self.trial.lose(group, slots, tier)
        self.trial.reached["lost a page"] += closing.plan is not None
        self._look_after_losses()

    @recorded
    def prefetch(self, key: str, ask: Ask, deadline: float | None = None) -> None:
        """Bring up what a request will need; a refusal changes nothing."""
        refused: list[bool] = []
        with self.trial.nothing_changes(unless=refused):
            told = self.trial.do("prefetch", key, ask, deadline)
            refused += [True] if told is not None and told[1] is not None else []
        if refused:
            self.prefetched.append(key)
            self.trial.reached["prefetched pages"] += len(told[1].moves)
        elif told is not None:
            self.trial.reached["prefetch refused"] += 1

    @recorded
    def close_prefetch(self, key: str) -> None:
        """Its request is cancelled, or was claimed long ago."""
        self.prefetched.remove(key)
        self.trial.reached["prefetch cancelled"] += key in self.trial.oracle.model.prefetches
        self.trial.do("close_prefetch", key)

    @recorded
    def run_late(self, nth: int = 0, places: Sequence[int] = ()) -> None:
        """Make some moves of a background plan."""
        if nth < len(self.trial.late):
            self.trial.run_late(nth, places)

    @recorded
    def finish_late(self, nth: int = 0, failed: Sequence[int] = ()) -> None:
        """Finish a background plan, whenever it was made."""
        if nth < len(self.trial.late):
            self.trial.finish_late(nth, failed if self.world.flaky else ())
            self._look_after_losses()

    @recorded
    def probe(self, ask: Ask, purpose: str = "compute", then_add: bool = False) -> None:
        """Ask without asking for; what was told must come true when it is added right after."""
        with self.trial.nothing_changes():
            self.trial.do("explain", ask, purpose)
            told = self.trial.do("probe", ask, purpose)
        if then_add and purpose == "compute" and told is not None:
            before, admission = self.trial.oracle.brief(), self.add([ask], Budget())
            if admission is not None and admission.rows:
                spent = [was - now for was, now in zip(before, self.trial.oracle.brief(), strict=True)]
                same("start of an admission after its probe", admission.rows[0][2], told.start)
                up = [move[1] for move in admission.plan.moves if move[0] != OFFLOAD and move[2] + move[4] > 0]
                same("pages read from below", tuple(map(up.count, range(len(spent)))), told.onboards)
                self.check_spent(spent, [one[1] for one in admission.snapshots], told.slots)

    @recorded
    def misuse(self, wrong: str, ask: Ask) -> None:
        """A wrong call raises and changes nothing."""
        with self.trial.nothing_changes():
            for subject in self.trial.subjects:
                same("a wrong call", refused((wrong, dict(misuses(subject, ask))[wrong])), None)
