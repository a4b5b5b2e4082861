"""The same small worlds, driven by Hypothesis: every call is compared, every step checked, and failures shrink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from fuzzing.ending import wind_up
from fuzzing.player import Player
from fuzzing.subject import available_stores
from fuzzing.world import build
from fuzzing.world.plain import Ask, Budget, Encoder, Group, World
from tests.effort import cases

STEPS = 50
EXAMPLES = cases(10, 400)  # of caches with full attention only, and of any mix of groups

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
PRIORITIES, SECONDS = st.sampled_from((0, 29, 30, 35, 90)), st.sampled_from((None, 1, 5))
RANGES = st.builds(lambda priority, seconds: ((0, None, priority, seconds),), PRIORITIES, SECONDS)
ASKS = st.builds(
    Ask,
    name=st.just(""),
    tokens=TOKENS,
    scope=st.sampled_from((0, 0, 0, 1)),
    ranges=st.one_of(st.just(()), RANGES),
    extra_tokens=st.sampled_from((0, 0, 0, 3)),
    beams=st.sampled_from((1, 1, 1, 2)),
    reuse=st.sampled_from((True, True, True, False)),
    snapshots=st.sampled_from(((), (), (1,), (2, 3))),  # in blocks
    encoder=st.sampled_from((None, Encoder(3, 0), Encoder(4, 0), Encoder(3, 1, "digest"), Encoder(3, 0, "nothing"))),
)
BATCHES = st.lists(ASKS, min_size=1, max_size=3)
BUDGETS = st.builds(Budget, st.sampled_from((None, None, 6)), st.sampled_from((None, None, 4)), st.booleans())
OPTIONS = {"copy_on": st.booleans(), "shadows": st.booleans(), "release_order": st.booleans()}
FULL_WORLDS = st.builds(
    World,
    block_size=st.integers(2, 4),
    tiers=st.builds(
        lambda *sizes: tuple((size,) for size in sizes), st.integers(4, 6), st.integers(0, 4), st.integers(0, 2)
    ),
    **OPTIONS,
)
WINDOWS = st.builds(Group, st.just("window"), window=st.integers(1, 7), sinks=st.sampled_from((0, 0, 1, 3)))
STATES = st.builds(lambda every, at_end: Group("state", every=every, at_end=at_end), st.integers(0, 3), st.booleans())
OWN = st.one_of(
    st.tuples(WINDOWS),
    st.tuples(st.builds(Group, extra=st.sampled_from((None, 2))), WINDOWS),
    st.tuples(WINDOWS, WINDOWS),
    st.tuples(st.just(Group()), STATES),
    st.tuples(WINDOWS, STATES),
)
CROSS = st.sampled_from(((), (), (Group("cross"),)))


def mixed_world(size: int, groups: tuple[Group, ...], slots: tuple[int, ...], **options: Any) -> World:
    """A world of these groups, whose states count their snapshots in blocks; slots are dealt out in turn."""
    scaled = tuple(replace(group, every=group.every * size) for group in groups)
    places = range(len(groups))
    device = tuple(3 + slots[place % len(slots)] for place in places)
    host = tuple(slots[(place + 1) % len(slots)] for place in places)
    chunk = options.pop("chunk")
    return World(size, (device, host), groups=scaled, max_chunk=chunk and chunk * size, **options)


MIXED_WORLDS = st.builds(
    mixed_world,
    st.integers(2, 4),
    st.builds(lambda own, cross: (*own, *cross), OWN, CROSS),
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(1, 3)),
    chunk=st.sampled_from((None, None, 1, 2)),
    **OPTIONS,
)
WORLDS = {"full": FULL_WORLDS, "mixed": MIXED_WORLDS}
PLACE = st.integers(0, 5)


class Machine(RuleBasedStateMachine):
    """Rules are public calls; a rule that names something picks it by place among what there is."""

    mix = "full"
    steps = 0

    @initialize(data=st.data())
    def build(self, data: Any) -> None:
        world = data.draw(WORLDS[self.mix])
        self.player = Player(world, available_stores(), check_every=1, compare_every=1)

    def teardown(self) -> None:
        if hasattr(self, "player"):
            try:
                wind_up(self.player)
            finally:
                self.player.trial.close()
                Machine.steps += self.player.trial.operations

    def named(self, asks: list[Ask]) -> list[Ask]:
        return [self.fitted(ask) for ask in asks]

    def fitted(self, ask: Ask) -> Ask:
        """The ask with a name of its own, and without what this world has no use for."""
        world = self.player.world
        name, size = self.player.name("r"), world.block_size
        encoder = ask.encoder if world.num_own < world.num_groups else None
        if encoder is not None and encoder.told == "nothing":
            encoder = replace(encoder, serial=self.player.count)
        snapshots = tuple(block * size for block in ask.snapshots)
        return build.named(replace(ask, name=name, snapshots=snapshots, encoder=encoder), size)

    def pick(self, place: int, things: Any) -> str:
        names = list(things)
        return str(names[place % len(names)])

    @rule(asks=BATCHES, budget=BUDGETS)
    def add(self, asks: list[Ask], budget: Budget) -> None:
        self.player.add_watched(self.named(asks), budget, self.player.unfinished_prompts())

    @rule(asks=BATCHES, purpose=st.sampled_from(("compute", "compute", "decode")))
    def claim(self, asks: list[Ask], purpose: str) -> None:
        if len(self.player.open) < 2:
            self.player.claim(self.player.name("b"), self.named(asks), purpose)

    @precondition(lambda self: self.player.open)
    @rule(place=PLACE, budget=BUDGETS)
    def admit(self, place: int, budget: Budget) -> None:
        self.player.admit(self.pick(place, self.player.open), budget)

    @precondition(lambda self: self.player.open)
    @rule(place=PLACE)
    def drop_claim(self, place: int) -> None:
        self.player.drop_claim(self.pick(place, self.player.open))

    @rule(doubted=st.sampled_from(((), (), (0,), (1,))), told=st.booleans())
    def step(self, doubted: tuple[int, ...], told: bool) -> None:
        self.player.settle(doubted=doubted)
        self.player.compute(list(self.player.ready()))
        if told:
            self.player.tell()

    @precondition(lambda self: self.player.untold)
    @rule()
    def tell(self) -> None:
        self.player.tell()

    @precondition(lambda self: self.player.rows)
    @rule(place=PLACE, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def grow(self, place: int, tokens: list[int]) -> None:
        self.player.grow([self.pick(place, self.player.rows)], [tokens], len(tokens))

    @precondition(lambda self: self.player.rows)
    @rule(place=PLACE, num_tokens=st.integers(0, 3))
    def trim(self, place: int, num_tokens: int) -> None:
        self.player.trim(self.pick(place, self.player.rows), num_tokens)

    @precondition(lambda self: self.player.rows)
    @rule(place=PLACE)
    def fork(self, place: int) -> None:
        self.player.fork(self.pick(place, self.player.rows), [self.player.name("f")])

    @precondition(lambda self: self.player.rows)
    @rule(place=PLACE, store=st.sampled_from((True, True, True, False)))
    def release(self, place: int, store: bool) -> None:
        self.player.release(self.pick(place, self.player.rows), store)

    @precondition(lambda self: self.player.rows)
    @rule(place=PLACE)
    def suspend_and_resume(self, place: int) -> None:
        self.player.suspend(self.pick(place, self.player.rows))
        self.player.add([self.player.waiting.pop()], Budget())

    @precondition(lambda self: self.player.rows)
    @rule(place=PLACE, start=st.integers(0, 8), end=st.integers(0, 12))
    def hold(self, place: int, start: int, end: int) -> None:
        self.player.hold(self.player.name("h"), self.pick(place, self.player.rows), start, end)

    @precondition(lambda self: self.player.held)
    @rule(place=PLACE)
    def drop_hold(self, place: int) -> None:
        self.player.drop_hold(self.pick(place, self.player.held))

    @rule(ask=ASKS, keep=st.integers(0, 8))
    def truncate(self, ask: Ask, keep: int) -> None:
        self.player.truncate(self.named([ask])[0], keep)

    @rule(ask=ASKS)
    def probe(self, ask: Ask) -> None:
        self.player.probe(self.named([ask])[0], "compute", then_add=True)

    @rule(num_pages=st.integers(0, 2), place=PLACE)
    def offload(self, num_pages: int, place: int) -> None:
        self.player.offload(num_pages, place % self.player.world.num_groups)

    @rule(seconds=st.integers(0, 3))
    def pass_time(self, seconds: int) -> None:
        self.player.refresh(seconds)

    @rule()
    def flush(self) -> None:
        self.player.flush()


@pytest.mark.long
@pytest.mark.parametrize("mix", ["full", "mixed"])
def test_every_call_is_as_the_oracle_says(mix: str) -> None:
    """On both stores in the same run: each has to answer as the oracle does, which need not be asked twice."""
    machine = type("Machine", (Machine,), {"mix": mix})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Machine.steps > 0
