"""Driver: seeded random choices over small worlds. Chooses what to call; the player calls, the trial compares."""

from __future__ import annotations

from fuzzing.choices import Choices
from fuzzing.ending import wind_up
from fuzzing.lists.calls import Recording
from fuzzing.misuse import misuses
from fuzzing.oracle.reach import bounded
from fuzzing.player import NO_LIMITS
from fuzzing.weights import VERBS
from fuzzing.world.build import PATTERNS
from fuzzing.world.plain import Admission, Budget, Skip

MAX_HELD = 3  # readers of prompts
MAX_FOUND = 3
MAX_LATE = 4  # background plans at once
MOMENTS = (1 / 64, 1 / 64, 1 / 64, 1 / 4, 1, 2, 30)  # seconds


class Driver(Choices):
    """One world's worth of random calls."""

    def run(self, operations: int) -> None:
        """So many calls at least, then the end of everything."""
        try:
            while self.trial.operations < operations:
                getattr(self, self.rng.choices(VERBS, cum_weights=self.shares)[0])()
            wind_up(self.player, self.lasts(), self.chunk())
        finally:
            self.trial.close()

    def recording(self, what: str = "") -> Recording:
        """All calls so far, and what came of them."""
        return Recording(self.world, self.player.notes.calls(), what)

    # -- admission ---------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Claim and admit in one call."""
        if self.chance(0.2):
            budget = Budget(self.rng.randint(1, 20 * self.scale), self.rng.choice((None, 4 * self.scale)), True)
            self.make_room(self.player.add_watched(self.batch(), budget, self.prompts()))
        else:
            self.make_room(self.player.add(self.batch(), self.budget(), self.prompts()))

    def claim(self) -> None:
        """Open a batch of claims."""
        purpose = "decode" if self.chance(0.1 if self.world.is_plain else 0.25) else "compute"
        if self.chance(0.15):
            asks = self.batch()
            self.player.claim_in_vain(self.player.name("b"), asks, purpose)
        elif len(self.player.open) < self.habits.most_open:
            asks, key = self.batch(), self.player.name("b")
            self.due[key] = self.trial.operations + self.rng.randint(self.habits.keep, 2 * self.habits.keep)
            self.player.claim(key, asks, purpose)

    def admit(self) -> None:
        """Admit one of the open batches that have been so for long enough."""
        for key in self.some([key for key in self.player.open if self.due[key] <= self.trial.operations], 1):
            self.make_room(self.player.admit(key, self.budget(), self.prompts()))

    def make_room(self, admission: Admission | None) -> None:
        """An engine that is out of slots ends something."""
        if admission and any(reason == "slots" for _, reason, *_ in admission.refused) and self.chance(0.6):
            self.release()

    def drop_claim(self) -> None:
        """Drop one of the open batches."""
        for key in self.some(self.player.open, 1):
            self.player.drop_claim(key)

    def serve(self) -> None:
        """Requests that come, are computed and go: the cache fills up with what they leave."""
        if self.chance_where_long(0.5):
            self.refresh()
        admission = self.player.add(self.batch(), NO_LIMITS)
        self.player.settle(self.bad())
        self.player.compute(list(self.player.ready()))
        self.player.tell(default=True)
        for name in [name for name, *_ in admission.rows if name in self.player.rows] if admission else ():
            self.asks.remember(self.player.rows[name])
            self.player.release(name)

    def go_on(self) -> None:
        """A step without new requests: only chunks of admitted ones."""
        self.player.add((), self.budget(), self.prompts())

    # -- plans and steps ---------------------------------------------------------------------------------------------

    def run_plans(self) -> None:
        """Carry out plans, and finish them later."""
        self.player.run_plans(self.bad())

    def step(self) -> None:
        """Finish all plans; then a step of the model, which may be cancelled before it was told."""
        if self.world.share_pending and not self.depth:
            self.take_turns()
        doubted = (self.rng.randrange(3),) if self.world.flaky and self.chance(0.25) else ()
        back = self.player.settle(self.bad(), doubted)
        if back and self.chance(0.5):
            self.player.tell_nothing(back)
        self.player.compute(self.some(list(self.player.ready())))
        if self.chance(0.15):
            self.grow_ahead()
        if self.chance(0.8):
            self.player.tell_late() if self.chance(0.2) else self.tell()

    def fly(self) -> None:
        """A step is launched, and the next one handed out before that is committed."""
        if len(self.player.steps) >= self.depth:
            self.land()
        if self.world.share_pending and self.chance(0.5):
            chunk = self.rng.choice((None, 1, 2)) if self.chance(0.5) else None
            parts = None if chunk is None else chunk * self.scale * self.world.block_size
            self.player.add(self.batch(), Budget(None, parts), self.player.unfinished_prompts())
        if self.world.share_pending and self.chance(0.8):
            self.launch_shared()
        able = self.player.launchable()
        if able or self.chance(0.1):
            self.player.launch(self.some(able))
        if self.world.share_pending and self.chance(0.7):
            self.share()
        ready = [name for name, row in self.player.rows.items() if row.prompt <= row.handed and not any(row.peaks)]
        if ready and self.chance(0.8):
            self.player.grow(self.some(ready), None, self.rng.choice((1, 1, 1, 1, 2, 3)))
        if self.chance(0.5):
            self.player.add((), self.budget(), self.prompts())

    def share(self) -> None:
        """Requests of what a step in flight computes: admitted at once, or claimed and admitted later."""
        paths = self.player.flying()
        asks = [self.asks.make(self.player.name("r"), self.rng.choice(paths)) for _ in range(self.rng.choice((1, 1, 2)))
                if paths]  # fmt: skip
        if asks and self.chance(0.7):
            self.player.add(asks, self.budget(), self.prompts())
        elif asks and len(self.player.open) < self.habits.most_open:
            key = self.player.name("b")
            self.due[key] = self.trial.operations + self.rng.randint(0, 9)
            self.player.claim(key, asks, "compute")

    def land(self) -> None:
        """The oldest step in flight has run."""
        if self.player.steps:
            self.player.land(self.rng.randrange(1, 1 << 30))

    def crash(self) -> None:
        """A step in flight fails."""
        if self.player.steps:
            self.player.crash(self.rng.randrange(len(self.player.steps)))

    def grow_ahead(self) -> None:
        """A scheduler that does not wait for its engine: the next token of what is being computed."""
        running = [name for name in self.player.untold if not any(self.player.rows[name].peaks)]
        if running:
            self.player.grow(running, [[self.asks.token()] for _ in running], 1)

    def tell(self) -> None:
        """Commit what was computed."""
        self.player.tell(default=self.chance(0.5))

    def retry(self) -> None:
        """Spans are handed out and not run; then others, often shorter, which are; and told by default."""
        self.tell()
        names = self.prompts() or self.player.unfinished_prompts()
        for chunk in (None, self.chunk()) if names else ():
            self.player.add((), Budget(self.rng.choice((None, 2 * self.scale * self.world.block_size)), chunk), names)
        self.player.settle()
        ready = self.player.ready()
        self.player.compute([name for name in names if name in ready])
        self.player.tell(default=True)
        still = [name for name, row in self.player.rows.items() if row.computed == self.player.ran(name)]
        if still and self.chance(0.3):
            self.player.tell_nothing(still)

    def hold_prompt(self) -> None:
        """A reader keeps the beginning of a prompt that goes on, step by step."""
        if not any(any(row.peaks) for row in self.player.rows.values()):
            self.player.add([self.asks.make(self.player.name("r"))], Budget(None, self.scale * self.world.block_size))
        reserved = [name for name, row in self.player.rows.items() if any(row.peaks)]
        for name in self.some(reserved or self.player.unfinished_prompts(), 1):
            for turn in range(self.rng.randint(1, 4)):
                if name in self.player.unfinished_prompts():
                    self.player.add((), Budget(None, self.chunk()), [name])
                    if turn < 2 and len(self.player.held) < MAX_HELD:
                        self.player.hold(self.player.name("h"), name, 0, self.player.slots(self.player.rows[name]))
                    self.step()

    def overtell(self) -> None:
        """Part of a transfer, or more than was handed out: refused."""
        for name, row in list(self.player.rows.items()):
            length = len(row.tokens)
            if row.received and row.computed < row.prompt_end:
                self.player.overtell(name, self.rng.randrange(row.prompt_end))
            elif any(map(bounded, self.world.kinds)) and row.granted < min(row.prompt_end, length):
                self.player.overtell(name, self.rng.randint(row.granted + 1, length))

    # -- life --------------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """A decoded token, some drafts, or only slots, for a few sequences at once."""
        num_tokens = self.rng.choice((1, 1, 1, 2, 3)) * (self.scale if self.chance_where_long(0.3) else 1)
        names = self.some(list(self.player.rows), 3)
        tokens = [[self.asks.token() for _ in range(num_tokens)] for _ in names]
        if self.trial.operations % 2:  # some get fewer
            tokens = [some[: max(0, num_tokens - nth)] for nth, some in enumerate(tokens)]
        if names:
            self.player.grow(names, None if self.chance(0.1) else tokens, num_tokens)

    def trim(self) -> None:
        """Take back drafts; sometimes none, which gives back slots only; seldom a part of the prompt."""
        for name in self.one():
            row = self.player.rows[name]
            drafts = self.player.open_tokens(name) if self.chance(0.2) else len(row.tokens) - row.prompt_end
            self.player.trim(name, self.rng.randint(0, max(drafts, 0)))

    def fork(self) -> None:
        """Beams, or copies at any time."""
        for name in self.one():
            self.player.fork(name, self.player.names("f", self.rng.choice((1, 1, 2))))

    def beams(self) -> None:
        """All beams that were charged, right after the prompt."""
        for name, row in list(self.player.rows.items()):
            if row.ask.beams > 1 and self.player.is_charged(name, row.ask.beams - 1):
                self.player.fork(name, self.player.names("f", row.ask.beams - 1))

    def release(self) -> None:
        """A sequence ends, sometimes cancelled; one that waits for a transfer more often than others."""
        waiting = [name for name, row in self.player.rows.items() if row.ahead]
        for name in self.some(waiting, 1) if waiting and self.chance(0.3) else self.one():
            self.asks.remember(self.player.rows[name])
            self.player.release(name, self.chance(0.85), self.rng.choice((0, 0, 1, 2, 3)))

    def suspend(self) -> None:
        """Preempt a sequence."""
        for name in self.one():
            self.player.suspend(name)

    def hold(self) -> None:
        """Keep some pages of a sequence for a reader."""
        early = self.player.unfinished_prompts()
        for name in self.some(early, 1) if early and self.chance(0.5) else self.one():
            length = len(self.player.rows[name].tokens)
            start, end = self.rng.randint(0, length), self.rng.randint(0, length + 3)
            self.player.hold(self.player.name("h"), name, start, end)

    def drop_hold(self) -> None:
        """A reader is done."""
        for key in self.some(self.player.held, 1):
            self.player.drop_hold(key)

    # -- from and for outside ----------------------------------------------------------------------------------------

    def find(self) -> None:
        """Somebody looks for pages to read himself, often behind tokens he has."""
        ask, key = (
            self.asks.make(self.player.name("o"), self.asks.cold_path() if self.chance(0.5) else None),
            self.player.name("q"),
        )
        from_ = self.rng.randint(0, min(len(ask.tokens), self.world.max_length)) if self.chance(0.5) else 0
        if self.chance(0.2):
            self.player.find_in_vain(key, ask, from_)
        elif len(self.player.found) < MAX_FOUND:
            self.player.find(key, ask, from_)

    def use_find(self) -> None:
        """What was found has served."""
        for key in self.some(self.player.found, 1):
            self.player.use_find(key)

    def close_find(self) -> None:
        """A reader is done."""
        for key in self.some(self.player.found, 1):
            self.player.close_find(key)

    def write(self) -> None:
        """Somebody has bytes of a text; sometimes none yet."""
        ask, tier = self.asks.make(self.player.name("o")), self.rng.randrange(len(self.world.tiers))
        end = self.rng.choice((0, len(ask.tokens), len(ask.tokens), self.rng.randint(0, len(ask.tokens))))
        if len(self.player.writing) < MAX_FOUND:
            self.player.write(self.player.name("y"), ask, tier, end, self.left_out())

    def left_out(self) -> Skip:
        """Mostly nothing."""
        groups = [group for group in range(self.world.num_own) if self.chance(0.2)]
        return tuple((group, tuple(self.rng.sample(range(8 * self.scale), 3))) for group in groups)

    def extend_writer(self) -> None:
        """More of such a text."""
        for key in self.some(self.player.writing, 1):
            tokens = [self.asks.token() for _ in range(self.rng.randint(0, 5 * self.scale))]
            self.player.extend_writer(key, tokens, self.left_out(), self.before_their_turn(key))

    def before_their_turn(self, key: str) -> Skip:
        """Blocks of such a text whose bytes cannot wait; mostly none, and where there is a device never."""
        whole = len(self.trial.oracle.model.writers[key].text) // self.world.block_size
        if any(self.world.tiers[0]) or not whole:
            return ()
        groups = [group for group in range(self.world.num_own) if self.chance(0.3)]
        return tuple((group, tuple(self.rng.sample(range(whole), min(2, whole)))) for group in groups)

    def written(self) -> None:
        """Bytes have come, all or some."""
        for key in self.some(self.player.writing, 1):
            length = len(self.trial.oracle.model.writers[key].text)
            self.player.written(key, self.rng.choice((length, self.rng.randint(0, length))), self.left_out())

    def close_writer(self) -> None:
        """The rest will not come."""
        for key in self.some(self.player.writing, 1):
            self.player.close_writer(key)

    def lose(self) -> None:
        """Somebody reports pages as bad, mostly such as there are."""
        group, tier = self.rng.randrange(self.world.num_groups), self.rng.randrange(len(self.world.tiers))
        stream, place = self.trial.oracle.model.place(group)
        owners = stream.pools[place].owner[tier]
        slots = [slot for slot, page in enumerate(owners) if page is not None or self.chance(0.1)]
        self.player.lose(group, self.rng.sample(slots, min(len(slots), self.rng.choice((1, 1, 2)))), tier)

    # -- tree, tiers, time -------------------------------------------------------------------------------------------

    def truncate(self) -> None:
        """Forget the end of something that was asked before."""
        ask = self.asks.make(self.player.name("t"))
        self.player.truncate(ask, self.rng.randint(0, len(ask.tokens)))

    def hint(self) -> None:
        """Say of something that was asked before when it comes back."""
        ask = self.asks.make(self.player.name("t"))
        self.player.hint(ask, self.rng.randrange(4), self.rng.randint(0, len(ask.tokens)) if self.chance(0.5) else 0)

    def clear(self) -> None:
        """Forget everything."""
        self.player.clear(self.trial.operations % 3 > 0)

    def forget(self) -> None:
        """Forget a LoRA, a salt or an epoch."""
        self.player.forget(self.rng.randrange(len(PATTERNS)))

    def offload(self) -> None:
        """Early shadows."""
        self.player.offload(self.rng.randint(0, 3 * self.scale), self.rng.randrange(self.world.num_groups))

    def copy_down(self) -> None:
        """Copies in the slow tier, ahead."""
        if self.world.slow and len(self.trial.late) < MAX_LATE:
            self.player.copy_down(self.rng.randint(0, 4 * self.scale))

    def prefetch(self) -> None:
        """Somebody waits; mostly for what is there, sometimes not for long."""
        if self.world.slow and len(self.trial.late) < MAX_LATE:
            ask = self.asks.make(self.player.name("r"), self.asks.slow_path() if self.chance(0.8) else None)
            deadline = self.trial.clock() + self.rng.randint(1, 4) if self.chance(0.3) else None
            self.player.prefetch(self.player.name("v"), ask, deadline)
            if self.chance(0.5):
                self.player.waiting.append(ask)  # it is claimed later

    def close_prefetch(self) -> None:
        """A request that waited is cancelled."""
        for key in self.some(self.player.prefetched, 1):
            self.player.close_prefetch(key)

    def late(self) -> None:
        """The background gets on, in any order, and some of it fails."""
        if self.trial.late:
            nth = self.rng.randrange(len(self.trial.late))
            moves = range(len(self.trial.late[nth][0].moves))
            if self.chance(0.4):
                self.player.run_late(nth, self.rng.sample(moves, self.rng.randint(0, len(moves))))
            else:
                failed = self.rng.sample(moves, self.rng.randint(0, min(2, len(moves)))) if self.chance(0.3) else ()
                self.player.finish_late(nth, failed)

    def take_changes(self) -> None:
        """Somebody keeps what is in the slow tier."""
        if self.world.slow:
            self.player.take_changes(self.chance(0.2))

    def refresh(self) -> None:
        """Time passes; in long worlds often so little that what came later is of the same age."""
        self.player.refresh(self.rng.randint(0, 3) if self.scale == 1 else self.rng.choice(MOMENTS))

    def flush(self) -> None:
        """A router hears what happened."""
        self.player.flush()

    def probe(self) -> None:
        """Ask without asking for."""
        purpose = self.rng.choice(("compute", "compute", "decode"))
        ask = self.asks.make(self.player.name("p"), self.asks.cold_path())
        self.player.probe(ask, purpose, self.chance(0.5))

    def misuse(self) -> None:
        """Wrong calls raise and change nothing."""
        place, ask = self.rng.random(), self.asks.make(self.player.name("w"))
        wrongs = [name for name, _ in misuses(self.trial.subjects[0], ask)]
        self.player.misuse(wrongs[int(place * len(wrongs))], ask)
