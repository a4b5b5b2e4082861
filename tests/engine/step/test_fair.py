"""Fair turns: nobody keeps the others from sequences or tokens, nobody starves, and nobody is preempted to and fro."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, Span  # noqa: E402
from quire.engine import EngineConfig  # noqa: E402
from quire.engine.loop.engine_thread import Loop  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.step.fairness.tenant_rounds import MOST_DEBTS, REACH, Rounds  # noqa: E402
from quire.engine.step.fairness.tenant_seats import Line, all_equal, giver, seats_of  # noqa: E402
from quire.engine.step.runs.branch import Branch, Run  # noqa: E402
from quire.engine.step.runs.step_work import Work  # noqa: E402
from quire.engine.step.runs.tenant import Tenant, Together  # noqa: E402

from ...effort import cases  # noqa: E402
from ..steps import assert_clean, assert_exact, by_pool, finish, holders, model_of, open_engine, plain, step, words  # noqa: E402

ROWS = 8
GREEDY: dict[str, dict[str, Any]] = {
    "answers": {"n": 16, "temperature": 1.0, "seed": 1},
    "beams": {"beams": ROWS},
    "requests": {},
}


def fill(engine: Engine, kind: str, length: int = 16) -> list[Run]:
    """One tenant takes all there is: by answers, by beams or by requests."""
    number = 12 if kind == "requests" else 1
    greedy = [
        engine.submit(words(7 * nth, 20), plain(length, **GREEDY[kind]), tenant="greedy") for nth in range(number)
    ]
    for _ in range(6):
        step(engine)
    assert len(holders(engine)) == ROWS
    return greedy


def steps_to_first_token(engine: Engine, runs: list[Run], most: int = 100) -> int:
    """Of the last of them."""
    for number in range(most):
        if all(run.times.first_token for run in runs):
            return number
        step(engine)
    raise AssertionError(f"no first token after {most} steps: {runs}")


def seats(engine: Engine) -> Counter[Tenant]:
    return Counter(branch.run.tenant for branch in holders(engine))


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GREEDY)
def test_whoever_asks_for_much_gives_way(kind: str) -> None:
    """One tenant has all sequences; three others come, one of them without a name: all have an answer at once."""
    engine = open_engine("llama", 200, max_sequences=ROWS)
    greedy = fill(engine, kind)
    small = [
        engine.submit(words(100 + 30 * nth, 12), plain(3), tenant=name) for nth, name in enumerate(["a", "b", None])
    ]
    assert steps_to_first_token(engine, small) <= 3 and not any(run.done for run in greedy)
    assert sum(run.num_preemptions for run in greedy) >= 3 and not any(run.num_preemptions for run in small)
    finish(engine)
    assert_exact("llama", [*small, *greedy])
    engine.close()


def test_pages_are_given_up_as_well() -> None:
    """Rows are free, pages are not: answers of the same request make room."""
    engine = open_engine("llama", 26, max_sequences=16)
    (greedy,) = [engine.submit(words(0, 20), plain(60, n=8, temperature=1.0, seed=1), tenant="greedy")]
    while engine.cache.num_free(0) > 4:
        step(engine)
    small = engine.submit(words(100, 40), plain(3), tenant="small")
    assert steps_to_first_token(engine, [small]) <= 3 and not greedy.done and greedy.num_preemptions
    finish(engine)
    assert_exact("llama", [small, greedy])
    engine.close()


def test_states_are_given_up_as_well() -> None:
    """Rows and pages are free, slots for recurrent states are not: only admission finds that out, and one gives way."""
    groups = open_engine("qwen3_next", 8).cache.config.groups
    engine = open_engine("qwen3_next", by_pool([60, 5], groups), max_sequences=16)
    greedy = [engine.submit(words(40 * nth, 9), plain(16), tenant="greedy") for nth in range(6)]
    while engine.cache.num_free(1) > 1:
        step(engine)
    assert engine.scheduler.waiting and engine.cache.num_free(0) > 30
    small = engine.submit(words(900, 9), plain(2), tenant="small")
    assert steps_to_first_token(engine, [small]) <= 3 and sum(run.num_preemptions for run in greedy) == 1
    assert not any(run.done for run in greedy)
    finish(engine)
    assert_exact("qwen3_next", [small, *greedy])
    engine.close()


def test_the_only_one_makes_way_and_nobody_fails() -> None:
    """All that ran has given its state up to a more urgent one, which comes in at once, without a step between."""
    groups = open_engine("qwen3_next", 8).cache.config.groups
    engine = open_engine("qwen3_next", by_pool([60, 2], groups), max_sequences=4, granted={"urgent": -1})
    slow = engine.submit(words(0, 9), plain(16), tenant="slow")
    steps_to_first_token(engine, [slow])
    urgent = engine.submit(words(900, 9), plain(2), tenant="urgent")
    assert steps_to_first_token(engine, [urgent]) == 1 and slow.num_preemptions == 1
    finish(engine)
    assert_exact("qwen3_next", [slow, urgent])
    engine.close()


def test_who_has_just_come_in_does_not_give_way() -> None:
    """b's first request gains by waiting, so a's second comes in before b's second, which finds no slot for its state.

    The one to give way would be the one that came in with this very step: it computes first.
    """
    groups = open_engine("qwen3_next", 8).cache.config.groups
    engine = open_engine("qwen3_next", by_pool([200, 4], groups), max_sequences=16, max_chunk=32)
    before = engine.submit(words(1000, 150), plain(1), tenant="b")
    while not before.done:
        step(engine)
    runs = [engine.submit(words(0, 200), plain(2), tenant="a")]
    step(engine)
    asked = (("a", 400, 9), ("b", 0, 100), ("b", 600, 9))
    runs += [engine.submit(words(start, length), plain(2), tenant=name) for name, start, length in asked]
    step(engine)
    _, second, waits, _ = runs
    assert engine.scheduler.num_waits and not waits.times.admitted
    assert second.times.admitted and second.times.first_token and not second.num_preemptions
    finish(engine)
    assert_exact("qwen3_next", runs)
    engine.close()


def test_many_who_come_at_once_take_no_more_than_their_part() -> None:
    """Rows are free, pages are not: newcomers of one tenant count those of them who come in with the same step."""
    engine = open_engine("llama", 26, max_sequences=16)
    runs = [engine.submit(words(0, 20), plain(60, n=8, temperature=1.0, seed=1), tenant="greedy")]
    while engine.cache.num_free(0) > 2:
        step(engine)
    runs += [engine.submit(words(100 + 9 * nth, 9), plain(3), tenant="many") for nth in range(8)]
    step(engine)
    found = seats(engine)
    assert 1 <= found[runs[1].tenant] <= found[runs[0].tenant] + 1
    finish(engine)
    assert_exact("llama", runs)
    engine.close()


def test_nobody_gives_way_to_one_without_tokens() -> None:
    """A prompt whose turn it is takes the whole step: a newcomer takes a sequence in the next one, when it computes."""
    engine = open_engine("llama", 60, max_sequences=2, max_num_tokens=16)
    greedy = [engine.submit(words(0, 4), plain(30), tenant="greedy")]
    step(engine)
    greedy.append(engine.submit(words(50, 100), plain(2), tenant="greedy"))
    step(engine)
    small = engine.submit(words(200, 8), plain(2), tenant="small")
    step(engine)
    assert not any(run.num_preemptions for run in greedy) and not small.times.admitted
    assert steps_to_first_token(engine, [small]) <= 2 and sum(run.num_preemptions for run in greedy) == 1
    finish(engine)
    assert_exact("llama", [small, *greedy])
    engine.close()


def test_who_waits_already_keeps_its_turn() -> None:
    """One more request of a tenant that waits makes it wait no longer, and does not move it on."""
    engine = open_engine("llama", 60, max_sequences=1, max_num_tokens=16, max_waiting=100)
    engine.submit(words(0, 100), plain(2), tenant="greedy")
    waits = engine.submit(words(50, 9), plain(2), tenant="waits")
    for nth in range(3):
        step(engine)
        engine.submit(words(100 + nth, 9), plain(2), tenant="waits")
        assert (waits.tenant.since, waits.tenant.time) == (waits.arrival, 0)
    assert engine.scheduler.rounds.now >= 16
    finish(engine)
    engine.close()


def test_without_turns_the_first_has_all() -> None:
    """EngineConfig(scheduling="fcfs"): whoever came first is served to its end."""
    engine = open_engine("llama", 200, max_sequences=ROWS, scheduling="fcfs")
    (greedy,) = fill(engine, "answers", 12)
    small = engine.submit(words(100, 12), plain(3), tenant="a")
    while not small.times.first_token:
        step(engine)
    assert sum(answer.finish is not None for answer in greedy.answers) > 16 - ROWS
    finish(engine)
    engine.close()


def test_two_greedy_ones_have_half_each() -> None:
    """Sequences are evened out once, and then nobody is preempted any more."""
    engine = open_engine("llama", 300, max_sequences=ROWS)
    runs = [engine.submit(words(0, 12), plain(30, n=12, temperature=1.0, seed=1), tenant="a")]
    for _ in range(4):
        step(engine)
    runs.append(engine.submit(words(90, 12), plain(30, n=12, temperature=1.0, seed=2), tenant="b"))
    for _ in range(12):
        step(engine)
    before = engine.scheduler.num_preemptions
    for _ in range(8):
        step(engine)
        assert set(seats(engine).values()) == {ROWS // 2}
    assert engine.scheduler.num_preemptions == before <= ROWS
    finish(engine)
    assert_exact("llama", runs)
    engine.close()


def test_a_search_goes_on_among_others() -> None:
    """Others come without end, and leave a search with more beams than sequences: it computes them by and by."""
    engine = open_engine("llama", 300, max_sequences=4, max_waiting=10_000)
    search = engine.submit(words(0, 9), plain(6, beams=4))
    for number in count():
        if search.done:
            break
        for nth in range(3):
            engine.submit(words(11 * number + 31 * nth, 6), plain(4), tenant=f"{number} {nth}")
        step(engine)
        assert number < 120, "the search stands still"
    for run in list(engine.runs.values()):
        engine.cancel(run)
    assert_exact("llama", [search])
    engine.close()


def branches_of(rounds: Rounds, tenants: str) -> list[Branch]:
    """A branch of a request of its own for each letter, the name of its tenant, in order of arrival."""
    runs = [run_of(nth) for nth in range(len(tenants))]
    for run, name in zip(runs, tenants, strict=True):
        rounds.enter(run, name)
    return [branch_of(run) for run in runs]


@pytest.mark.parametrize(
    ("seated", "asking", "more", "gives"),
    [
        ("aaab", "b", 0, 2), ("aabb", "b", 0, None), ("aaabb", "b", 0, None), ("aaaabb", "b", 0, 3),
        ("aaaabb", "b", 1, None), ("aab", "c", 0, 1), ("ab", "c", 0, None), ("aabbb", "c", 0, 4),
        ("aabb", "c", 0, 3), ("bbaa", "c", 0, 3), ("aaa", "a", 0, None), ("", "a", 0, None),
        ("z", "a", 0, 0), ("zaa", "a", 5, 0), ("aaaa", "z", 0, None), ("zzg", "a", 0, 1), ("g", "a", 0, None),
    ],
)  # fmt: skip
def test_who_gives_way(seated: str, asking: str, more: int, gives: int | None) -> None:
    """Only a tenant with two more than who asks, its last branch; of equal ones the youngest; z is the least urgent."""
    rounds = Rounds(16, {"z": 1, "g": -1})
    *holders, asks = branches_of(rounds, seated + asking)
    found = giver(holders, asks, more)
    assert found is (None if gives is None else holders[gives])


@pytest.mark.parametrize(
    ("seated", "waiting", "rows", "picked"),
    [
        ("", "aaabbc", 4, [0, 3, 5, 1]),  # the first of each, then the second
        ("aa", "aabc", 3, [2, 3, 0]),
        ("aaaa", "bbbb", 0, [0, 1]),  # until they are even
        ("aaabb", "bb", 0, []),
        ("aab", "cd", 0, [0]),
        ("abc", "d", 0, []), ("zab", "cd", 0, [0]), ("ab", "zz", 1, [0]), ("ag", "zbg", 1, [2]),
        ("ab", "gg", 0, [0, 1]),
    ],
)  # fmt: skip
def test_who_comes_in(seated: str, waiting: str, rows: int, picked: list[int]) -> None:
    rounds = Rounds(16, {"z": 1, "g": -1})
    branches = branches_of(rounds, seated + waiting)
    holders, line = branches[: len(seated)], branches[len(seated) :]
    seats = seats_of(holders)
    equal = all_equal(seats, rounds)
    found = Line(line, seats, rounds).pick(rows, 64)
    assert found == [line[nth] for nth in picked]
    assert rows or not (equal and picked), "it is asked only where somebody may give way"
    assert Line(line, seats_of(holders), rounds).pick(rows, 1) == found[:1]


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [0, 12])
def test_a_prompt_has_its_share_of_the_tokens(drafts: int) -> None:
    """A step has 16 tokens, and one tenant decodes with all of them: another one's prompt has half of them."""
    engine = open_engine("llama", 300, max_num_tokens=16, max_sequences=16, block_size=4)
    prompt = words(3, 3) * 4 if drafts else words(0, 12)
    greedy = [engine.submit(prompt, plain(80, drafts=drafts), tenant="greedy") for _ in range(4 if drafts else 24)]
    for _ in range(30):
        step(engine)
    small = engine.submit(words(100, 64), plain(3), tenant="small")
    assert steps_to_first_token(engine, [small]) <= 64 // 8 + 4
    for run in greedy:
        engine.cancel(run)
    finish(engine)
    assert_exact("llama", [small])
    engine.close()


def test_long_prompts_under_way_do_not_hold_up_a_short_one() -> None:
    engine = open_engine("llama", 300, max_num_tokens=32, wait_for_reuse=False)
    long = [engine.submit(words(60 * nth, 200), plain(2), tenant="long") for nth in range(3)]
    for _ in range(3):
        step(engine)
    short = engine.submit(words(77, 20), plain(2), tenant="short")
    assert steps_to_first_token(engine, [short]) <= 2 and not any(run.times.first_token for run in long)
    finish(engine)
    assert_exact("llama", [short, *long])
    engine.close()


def test_a_prompt_that_its_own_tenant_waits_for_has_no_earlier_turn() -> None:
    """Whoever shares a prefix with a prompt under way waits for it. It moves that prompt before nobody else's request
    where it would not be itself.
    """
    engine = open_engine("llama", 300, max_num_tokens=32)
    greedy = [engine.submit(words(60 * nth, 200), plain(2), tenant="greedy") for nth in (0, 1, 2)]
    for _ in range(3):
        step(engine)
    greedy += [engine.submit(words(60 * nth, 200), plain(2), tenant="greedy") for nth in (0, 1, 2)]
    step(engine)
    small = engine.submit(words(77, 20), plain(2), tenant="small")
    assert steps_to_first_token(engine, [small]) <= 2 and engine.scheduler.num_waits
    finish(engine)
    assert_exact("llama", [small, *greedy])
    engine.close()


def test_a_prompt_that_another_tenant_waits_for_has_its_turn() -> None:
    """The prompt of a tenant that has had much: who waits for it does not fall behind those who come later."""
    engine = open_engine("llama", 300, max_num_tokens=32)
    ahead = engine.submit(words(0, 150), plain(2), tenant="ahead")
    step(engine)
    ahead.tenant.time += 4 * 32
    same = engine.submit(words(0, 150), plain(2), tenant="same")
    others = [engine.submit(words(30 + 20 * nth, 60), plain(2), tenant=f"{nth}") for nth in range(4)]
    assert steps_to_first_token(engine, [same]) <= 150 // 32 + 2
    assert not any(run.times.first_token for run in others[1:])
    finish(engine)
    assert_exact("llama", [same, ahead, *others])
    engine.close()


def test_credit_is_not_saved() -> None:
    """Two tenants after one was alone for long, and the other idle after a while of work: both have half of it."""
    engine = open_engine("llama", 400, max_num_tokens=32, wait_for_reuse=False)
    spent = Counter[str]()

    def long(name: str, start: int) -> Run:
        return engine.submit(words(start, 200), plain(1), tenant=name)

    early = long("b", 5)
    while not early.done:
        step(engine)
    alone = [long("a", 40 * nth) for nth in range(3)]
    finish(engine)
    runs = {name: [long(name, start + 50 * nth) for nth in range(3)] for name, start in (("b", 0), ("a", 20))}
    for _ in range(24):
        step(engine)
    for name, mine in runs.items():
        spent[name] = sum(run.computed for run in mine)
    assert abs(spent["a"] - spent["b"]) <= 2 * 32, spent
    finish(engine)
    assert_exact("llama", [*alone, *runs["a"], *runs["b"]])
    engine.close()


@pytest.mark.parametrize("late", [0, 1])
def test_nobody_starves_behind_those_who_come(late: int) -> None:
    """More newcomers than the engine can serve, each a tenant of its own, whose turn comes before that of who has had
    much: a long request ends all the same, whether it came before them or among them.
    """
    engine = open_engine("llama", 80, max_num_tokens=24, max_sequences=4, max_waiting=10_000, wait_for_reuse=False)
    dice = random.Random(1)
    for _ in range(12 * late):
        engine.submit(words(dice.randrange(200), 9), plain(4))
        step(engine)
    long = engine.submit(words(0, 120), plain(12))
    for number in count():
        if long.done:
            break
        for _ in range(2):
            engine.submit(words(dice.randrange(200), dice.randint(6, 12)), plain(4))
        step(engine)
        assert number < 400, f"{long} after {long.computed} tokens, {len(engine.scheduler.waiting)} wait"
    for run in list(engine.runs.values()):
        engine.cancel(run)
    assert_exact("llama", [long])
    engine.close()


# -- priorities --------------------------------------------------------------------------------------------------------


def test_a_clients_priority_is_its_own_affair() -> None:
    """What a client says orders its own requests, and moves it before nobody else's."""
    engine = open_engine("llama", 60, max_sequences=1, max_num_tokens=16)  # a round is less than a request
    asked = [("a", 5), ("b", 0), ("a", -100), ("b", 9)]
    runs = [
        engine.submit(words(40 * nth, 20), plain(3, priority=priority), tenant=name)
        for nth, (name, priority) in enumerate(asked)
    ]
    finish(engine)
    ended = sorted(range(4), key=lambda nth: runs[nth].times.finished)
    assert [asked[nth][0] for nth in ended] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])
    assert [nth for nth in ended if asked[nth][0] == "a"] == [2, 0]
    assert [nth for nth in ended if asked[nth][0] == "b"] == [1, 3]
    engine.close()


def test_what_the_operator_grants_comes_first() -> None:
    """A tenant with a granted priority takes every sequence that it can use, and gives none up."""
    engine = open_engine("llama", 200, max_sequences=4, granted={"gold": -1, "tin": 3})
    runs = [engine.submit(words(9 * nth, 10), plain(20), tenant=["plain", "tin"][nth % 2]) for nth in range(4)]
    step(engine)
    gold = engine.submit(words(100, 10), plain(6, n=4, temperature=1.0, seed=3), tenant="gold")
    late = engine.submit(words(150, 10), plain(2), tenant="late")
    for _ in range(4):
        step(engine)
    assert seats(engine)[gold.tenant] == 4 and gold.num_preemptions == 0
    finish(engine)
    assert_exact("llama", [*runs, gold, late])
    engine.close()


@pytest.mark.parametrize("granted", [{"a": 1.5}, {"": 1}, {1: 1}, 3, ["ab"], {"\ud800": 1}, {"a": True}, {"a": 2**40}])
def test_wrong_grants(granted: Any) -> None:
    with pytest.raises(InputError, match="granted"):
        EngineConfig(10, granted=granted)


@pytest.mark.parametrize("scheduling", ["lifo", None, ["fair"]])
def test_wrong_orders(scheduling: Any) -> None:
    with pytest.raises(InputError, match="scheduling"):
        EngineConfig(10, scheduling=scheduling)


def test_settings_are_kept_and_compared() -> None:
    one = EngineConfig(10, granted={"b": 1, "a": -1})
    assert one.granted == (("a", -1), ("b", 1)) and one == EngineConfig(10, granted=[("a", -1), ("b", 1)])
    assert "granted" not in repr(EngineConfig(10)) and hash(one)


@pytest.mark.parametrize("tenant", ["", "x" * 257, "\ud800", 7, b"a"])
def test_a_tenant_is_a_name(tenant: Any) -> None:
    engine = open_engine("llama", 60)
    with pytest.raises(InputError, match="tenant"):
        engine.submit(words(0, 5), plain(1), tenant=tenant)
    assert engine.step() is None and not engine.scheduler.rounds.inside
    engine.close()


# -- tenants -----------------------------------------------------------------------------------------------------------


def test_virtual_time() -> None:
    """Tokens move on whom they are for by all of them, and the engine by its share; who comes back begins there."""
    rounds = Rounds(16, {})
    first, second = branches_of(rounds, "ab")
    ahead, idle = first.run.tenant, second.run.tenant
    rounds.spend([Work(first, Span(2, 30), 1), Work(first, Span(0, 12), 0)])
    assert (ahead.time, idle.time, rounds.now) == (40, 0, 20)
    for branch in (first, second):
        rounds.begin_to_wait(branch)
    assert (ahead.time, idle.time) == (40, 16), "no credit for a time without requests, and no debt is let off"
    assert (ahead.since, idle.since) == (0, 1)
    idle.num_waiting = 1
    rounds.catch_up([first])
    assert rounds.now == 20, "one that waits is behind it"
    idle.num_waiting = 0
    rounds.catch_up([first])
    assert rounds.now == 40, "it is not behind all who wait"
    rounds.leave(first.run)
    rounds.leave(second.run)
    assert not rounds._debts and not rounds.inside, "nobody was ahead"
    rounds.spend([])
    assert rounds.now == 40


def test_tenants_are_forgotten() -> None:
    """Only how far one was ahead is remembered when it leaves, and of so many tenants only."""
    rounds = Rounds(16, {})
    for nth in range(MOST_DEBTS + 500):
        run = run_of(nth)
        rounds.enter(run, f"tenant {nth}")
        rounds.begin_to_wait(branch_of(run))
        run.tenant.time += 1000
        rounds.leave(run)
    assert not rounds.inside and len(rounds._debts) == MOST_DEBTS
    again = run_of(-1)
    rounds.enter(again, f"tenant {MOST_DEBTS + 499}")
    assert again.tenant.time == 1000 and len(rounds._debts) == MOST_DEBTS - 1
    assert rounds.token_key(again)[1] == REACH, "a debt ends there"


def run_of(number: int, **fields: Any) -> Run:
    from quire import Request

    run = Run(Request((number, -1), torch.arange(1, 5, dtype=torch.int32).numpy()), Sampling(**fields), 0, None, 0.0)
    run.arrival = number
    return run


def branch_of(run: Run) -> Branch:
    return Branch(run, 0, run.id, run.prompt)


def test_prompts_of_one_call_share() -> None:
    """A call with many prompts is one among others, whether it names a tenant or not."""
    with Loop(open_engine("llama", 200, max_sequences=ROWS)) as loop:
        streams = loop.submit_many([words(9 * nth, 12) for nth in range(3)], plain(4))
        (single,) = loop.submit_many([words(100, 9)], plain(4))
        named = loop.submit_many([words(150, 9), words(170, 9)], plain(4), tenant="alice")
        for stream in (*streams, single, *named):
            stream.wait()
        keys = [stream.run.tenant.key for stream in (*streams, single, *named) if stream.run is not None]
    assert len(set(keys[:3])) == 1 and isinstance(keys[0], tuple) and isinstance(keys[0][0], Together)
    assert keys[3] not in keys[:3] and keys[4:] == ["alice", "alice"]


# -- the proof ---------------------------------------------------------------------------------------------------------


class Judge:
    """Steps of an engine with any tenants, and what must be true of each of them (docs/engine.md)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.num_steps = self.num_taken = 0  # steps; pages that were taken from a branch

    def step(self) -> bool:
        """False at the end."""
        engine = self.engine
        before = holders(engine)
        first = self._first(before)
        lost = {run: run.num_preemptions for run in engine.runs.values()}
        made = sum(run.computed for run in lost)
        report = step(engine)
        if report is None:
            return False
        self.num_steps += 1
        assert report.num_tokens and sum(run.computed for run in lost) > made, "nobody computes"
        if first is not None and not first.run.done and first in first.run.branches and first.log_probs is None:
            assert first.sequence is not None or first.run.beams is not None, f"{first} has lost its pages"
        self.num_taken += sum(run.num_preemptions - was for run, was in lost.items())
        return True

    def _first(self, branches: list[Branch]) -> Branch | None:
        """Who keeps its pages whatever happens: the oldest among the first branches of the most urgent tenants."""
        urgent = min((run.tenant.granted for run in self.engine.runs.values()), default=0)
        firsts: dict[Tenant, Branch] = {}
        for branch in sorted(branches, key=lambda one: one.age):
            if branch.run.tenant.granted == urgent:
                firsts.setdefault(branch.run.tenant, branch)
        return min(firsts.values(), key=lambda one: one.run.arrival, default=None)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(cases(3, 6)))
def test_somebody_always_gets_on(seed: int) -> None:
    """Random tenants, answers, beams, drafts, deadlines with held hits, and few pages: each step computes, the first
    keeps its pages, all end.
    """
    dice = random.Random(seed)
    name = ["llama", "gemma3", "qwen3_next"][seed % 3]
    recurrent = model_of(name).recurrent
    pages = {"llama": 34, "gemma3": (34, 34), "qwen3_next": (34, 16)}[name]
    engine = open_engine(
        name, pages, dice.choice([0, 12]), block_size=4, max_num_tokens=24, max_sequences=dice.choice([4, 6]),
        max_length=64, snapshot_every=8, wait_for_reuse=dice.random() < 0.5,
        granted={"gold": -1} if dice.random() < 0.5 else {}, deadlines=0.9 if seed % 2 else None,
    )  # fmt: skip
    judge, runs = Judge(engine), []
    for _ in range(9):
        tenant = dice.choice([None, "gold", "silver", "greedy", "greedy", Together("call")])
        kinds: list[dict[str, Any]] = [{}, {}, {"n": 6, "temperature": 1.0, "seed": 3}, {"beams": 3}, {"drafts": 3}]
        kind = dice.choice(kinds)
        if recurrent and "drafts" in kind:
            kind = {}
        prompt = (words(dice.randrange(30), 5) * 8)[: dice.randint(2, 24)]
        ttft = dice.choice([None, 600.0, 3000.0]) if seed % 2 else None
        runs.append(engine.submit(prompt, plain(dice.randint(1, 14), **kind), tenant=tenant, ttft=ttft))
        for _ in range(dice.randint(0, 3)):
            judge.step()
    while judge.step():
        assert judge.num_steps < 600, f"stuck with {list(engine.runs.values())}"
    assert_clean(engine)
    assert not engine.scheduler.rounds.inside
    assert_exact(name, runs)
    engine.close()
