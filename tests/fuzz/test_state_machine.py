"""The same small worlds, driven by Hypothesis: every call is compared, every step checked, and failures shrink."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from quire.tools.fuzz import build
from quire.tools.fuzz.plain import Ask, Budget, World
from quire.tools.fuzz.player import Player
from quire.tools.fuzz.subject import StoreName, available_stores

STEPS, EXAMPLES = 50, 350

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
)
BATCHES = st.lists(ASKS, min_size=1, max_size=3)
BUDGETS = st.builds(Budget, st.sampled_from((None, None, 6)), st.sampled_from((None, None, 4)), st.booleans())
WORLDS = st.builds(
    World,
    block_size=st.integers(2, 4),
    tiers=st.builds(
        lambda *sizes: tuple((size,) for size in sizes), st.integers(4, 6), st.integers(0, 4), st.integers(0, 2)
    ),
    copy_on=st.booleans(),
    shadows=st.booleans(),
    release_order=st.booleans(),
)
PLACE = st.integers(0, 5)


class Machine(RuleBasedStateMachine):
    """Rules are public calls; a rule that names something picks it by place among what there is."""

    store: StoreName = "twin"
    steps = 0

    @initialize(world=WORLDS)
    def build(self, world: World) -> None:
        self.player = Player(world, (self.store,), check_every=1, compare_every=1)

    def teardown(self) -> None:
        if hasattr(self, "player"):
            try:
                self.player.wind_up()
            finally:
                self.player.trial.close()
                Machine.steps += self.player.trial.operations

    def named(self, asks: list[Ask]) -> list[Ask]:
        names = [self.player.name("r") for _ in asks]
        fields = ("tokens", "scope", "ranges", "extra_tokens", "beams", "reuse")
        return [
            build.named(Ask(name, **{field: getattr(ask, field) for field in fields}))
            for name, ask in zip(names, asks, strict=True)
        ]

    def pick(self, place: int, things: Any) -> str:
        names = list(things)
        return str(names[place % len(names)])

    @rule(asks=BATCHES, budget=BUDGETS)
    def add(self, asks: list[Ask], budget: Budget) -> None:
        self.player.add_watched(self.named(asks), budget, self.player.unfinished_prompts())

    @rule(asks=BATCHES, purpose=st.sampled_from(("compute", "compute", "decode")))
    def claim(self, asks: list[Ask], purpose: str) -> None:
        if len(self.player.open) < 2:
            self.player.claim(self.named(asks), purpose)

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
        self.player.fork(self.pick(place, self.player.rows), 1)

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
        self.player.hold(self.pick(place, self.player.rows), start, end)

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

    @rule(num_pages=st.integers(0, 2))
    def offload(self, num_pages: int) -> None:
        self.player.trial.do("offload", num_pages, 0)

    @rule(seconds=st.integers(0, 3))
    def pass_time(self, seconds: int) -> None:
        self.player.refresh(seconds)

    @rule()
    def flush(self) -> None:
        self.player.trial.flush()


@pytest.mark.parametrize("store", ["twin", "compiled"])
def test_every_call_is_as_the_oracle_says(store: StoreName) -> None:
    if store not in available_stores():
        pytest.skip("the compiled store is not built here")
    machine = type("Machine", (Machine,), {"store": store})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
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
