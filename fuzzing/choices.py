"""Choices: what the next call is about, picked at random from what there is in one world. Calls nothing."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fuzzing.ending import Last
from fuzzing.oracle.pending import all_rides
from fuzzing.oracle.tree import path_of
from fuzzing.player import Player
from fuzzing.subject import StoreName
from fuzzing.trial import Bad
from fuzzing.weights import HOST, SERVER, TALKER, Habits, random_habits
from fuzzing.world.asks import Asks
from fuzzing.world.plain import Ask, Budget
from fuzzing.world.worlds import TALKS, is_cold, random_world

LASTS = 4  # requests that have the cache to themselves at the end
EXCHANGE = 3
CHECKS = (120, 40)  # after so many calls all invariants, and all there is
SELDOM = (300, 100)  # the same in long worlds


class Choices:
    """One world, who plays in it, and the dice."""

    def __init__(
        self,
        seed: str,
        stores: Sequence[StoreName],
        check_every: int | None = None,
        compare_every: int | None = None,
        mix: str = "any",
    ) -> None:
        self.rng = Random(seed)
        self.world = random_world(self.rng, mix)
        self.scale = self.world.scale
        self.habits = TALKER if mix == TALKS else self._habits()
        dice = Random(f"{seed} ahead")  # not those of the calls: worlds without steps in flight stay as they were
        self.depth = dice.randint(1, 4) if dice.random() < 0.4 else 0  # steps in flight at once
        self.shares = self.habits.shares(self.world.slow, bool(self.depth))
        self.due: dict[str, int] = {}  # open batch -> call before which it is not admitted
        self.burst = 0  # runs of plans that are still to fail
        usual = CHECKS if self.scale == 1 else SELDOM
        self.player = Player(self.world, stores, check_every or usual[0], compare_every or usual[1])
        self.trial = self.player.trial
        self.asks = Asks(self.rng, self.world, self.trial.oracle.state.tree.at, mix == TALKS)

    def _habits(self) -> Habits:
        if not any(self.world.tiers[0]):
            return HOST
        return SERVER if self.scale > 1 else random_habits(self.rng, is_cold(self.world))

    def lasts(self) -> list[Last]:
        """Requests that get the cache to themselves while it is full of what others left."""
        purposes = self.rng.choices(("compute", "decode"), (3, 1), k=LASTS)
        asks = [self.asks.make_snug(self.player.name("z")) for _ in purposes]
        return [Last(ask, purpose, self.chunk()) for ask, purpose in zip(asks, purposes, strict=True)]

    def chunk(self) -> int | None:
        """A limit for steps, or none."""
        chunk = self.rng.choice((None, 1, self.world.block_size, self.world.block_size + 1))
        return None if chunk is None else chunk * self.scale

    def chance(self, share: float) -> bool:
        """True in this share of cases."""
        return self.rng.random() < share

    def chance_where_long(self, share: float) -> bool:
        """The same in long worlds; never in small ones, whose dice are not thrown for it."""
        return self.scale > 1 and self.chance(share)

    def some(self, names: Sequence[str], most: int = 99) -> list[str]:
        """A few of them, at least one if there is one."""
        return self.rng.sample(names, self.rng.randint(min(1, len(names)), min(most, len(names))))

    def one(self) -> list[str]:
        """One live sequence, if there is one."""
        return self.some(list(self.player.rows), 1)

    def batch(self) -> list[Ask]:
        """One to four requests, new ones and suspended ones."""
        asks: dict[str, Ask] = {}
        waiting = self.player.waiting
        for _ in range(self.rng.choice((1, 1, 2, 3, 4))):
            path = self.asks.cold_path() if self.chance(self.habits.cold) else None
            ask = self.asks.make(self.player.name("r"), path)
            if self.chance(0.1):
                ask = self.asks.make_snug(ask.name)
            if waiting and self.chance(0.4):
                place = self.rng.randrange(len(waiting))  # sometimes it stays, and is asked for twice
                ask = waiting.pop(place) if self.chance(0.9) else waiting[place]
            if ask.name not in self.player.rows:
                asks[ask.name] = ask
        if self.world.share_pending and self.chance(0.5):
            asks |= {ask.name: ask for ask in self.alike(list(asks.values()))}
        return list(asks.values())

    def launch_shared(self) -> None:
        """What a batch shares is launched, sometimes of one that has just come, and has room."""
        if self.chance(0.3):
            for name in self.some(list(self.player.rows)):
                self.player.release(name)
            asks = [self.asks.make(self.player.name("r"))]
            self.player.add([*asks, *self.alike(asks)], Budget(None, self.chunk() if self.chance(0.3) else None))
        if self.chance(0.4):
            names = self.prompts()
            self.player.add(self.alike([self.player.rows[name].ask for name in names]), self.budget(), names)
        if self.chance(0.1):
            self.spoil_shared()
        if self.player.shared():
            self.player.launch([*self.player.shared(), *self.some(self.player.launchable())])
        if self.chance(0.2):
            self.spoil_shared()

    def spoil_shared(self) -> None:
        """A step fails that computes what others share, or a page of such rows is bad."""
        steps = [nth for nth, step in enumerate(self.player.steps) if step.rides]
        rides = all_rides(self.trial.oracle.model)
        if steps and self.chance(0.5):
            self.player.crash(self.rng.choice(steps))
        elif rides:
            row = self.rng.choice(self.rng.choice(rides)[:2])
            group = self.rng.randrange(self.world.num_own)
            slots = [page.copies[0] for page in row.pages[group] if page is not None and 0 in page.copies]
            self.player.lose(group, self.rng.sample(slots, min(1, len(slots))), 0)

    def take_turns(self) -> None:
        """Steps of which each is committed before the next."""
        self.launch_shared()
        while self.player.steps:
            self.player.land(self.rng.randrange(1, 1 << 30))

    def alike(self, asks: list[Ask]) -> list[Ask]:
        """More requests that begin as one of these, if its tokens carry nothing."""
        size = self.world.block_size
        whole = [(ask, len(ask.tokens) // size * size) for ask in asks]
        paths = [path_of(ask.root, ask.identities[:end], size) for ask, end in whole
                 if end and not any(any(one[1:]) for one in ask.identities)]  # fmt: skip
        names = self.player.names("r", self.rng.choice((1, 1, 2))) if paths else []
        return [self.asks.make(name, self.rng.choice(paths)) for name in names]

    def budget(self) -> Budget:
        """Mostly no limit at all."""
        tokens = self.rng.randrange(40 * self.scale) if self.chance(0.3) else None
        chunk = self.rng.randint(1, 12 * self.scale) if self.chance(0.3) else None
        return Budget(tokens, chunk, self.chance(0.1))

    def prompts(self) -> list[str]:
        """Some of those that have prompt tokens left."""
        found = self.player.unfinished_prompts()
        return self.rng.sample(found, self.rng.randint(0, len(found)))

    def bad(self) -> list[Bad]:
        """Slots that fail in the next run: some that its plans read or write."""
        if self.chance(self.habits.burst):
            self.burst = self.rng.randint(2, 8)
        self.burst -= self.burst > 0
        if not self.world.flaky or not (self.burst or self.chance(self.habits.fail)):
            return []
        places: list[Bad] = []
        for plan in self.trial.unrun:
            for kind, _, src_tier, src, dst_tier, dst, *_ in plan.moves:
                ends = [(src_tier, "read", src), (dst_tier, "write", dst)]
                if kind == EXCHANGE:
                    ends += [(src_tier, "write", src), (dst_tier, "read", dst)]
                places += [end for end in ends if end[0] > 0]
        most = self.rng.randint(0, len(places)) if self.burst else self.rng.choice((1, 1, 1, 2, 3))
        return self.rng.sample(places, min(len(places), most))
