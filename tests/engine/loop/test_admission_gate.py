"""The gate: places, order, timeouts, waits that end early; and that no place is ever lost or given twice."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable
from threading import Barrier, Lock

import pytest

pytest.importorskip("torch")

from quire.engine.loop.admission_gate import AdmissionGate

from ...waits import PATIENCE, until
from ..threads import Crew, interruptible, let_others_run


def free_places(gate: AdmissionGate) -> int:
    """Takes them all, counts them and gives them back."""
    count = 0
    while gate.enter(timeout=0):
        count += 1
    for _ in range(count):
        gate.leave()
    return count


def test_places_are_limited_and_come_back() -> None:
    gate = AdmissionGate(3)
    assert [gate.enter(timeout=0) for _ in range(4)] == [True, True, True, False]
    gate.leave()
    assert gate.enter(timeout=0) and not gate.enter(timeout=0)
    for _ in range(3):
        gate.leave()
    assert free_places(gate) == 3 and gate.num_waiting == 0


def test_no_tenant_has_all_places() -> None:
    """One tenant leaves some to others; of what comes back, those who have few have theirs first."""
    gate = AdmissionGate(20)

    def take(tenant: str | None) -> int:
        count = 0
        while gate.enter(0, tenant):
            count += 1
        return count

    assert take("greedy") == 16 and take("second") == 4 and take("third") == take(None) == 0
    gate.leave("greedy")
    assert take("greedy") == take("second") == 0 and take("third") == 1, "what comes back is for whoever has few"
    for tenant, number in (("greedy", 15), ("second", 4), ("third", 1)):
        for _ in range(number):
            gate.leave(tenant)
    assert not gate._taken and free_places(gate) == 20


def test_others_pass_a_tenant_that_waits_for_its_own() -> None:
    """In line, whoever may come in does; who gives up, or comes with an event loop that is gone, takes nothing."""
    gate = AdmissionGate(5)
    assert [gate.enter(0, "greedy") for _ in range(5)] == [True] * 4 + [False]

    async def waits() -> list[bool]:
        greedy = [asyncio.create_task(gate.enter_async(PATIENCE, "greedy")) for _ in range(2)]
        await asyncio.sleep(0)
        found = [gate.num_waiting == 2, await gate.enter_async(0, "small")]
        gate.leave("small")
        found += [gate.num_waiting == 2, await gate.enter_async(0)]
        greedy[0].cancel()
        gate.leave("greedy")
        found.append(await greedy[1])
        return found

    assert asyncio.run(waits()) == [True] * 5
    gate.leave()
    for _ in range(4):
        gate.leave("greedy")
    assert not gate._taken and free_places(gate) == 5 and gate.num_waiting == 0


def test_threads_and_coroutines_stand_in_one_line() -> None:
    """Whoever came first goes first, whichever kind it is."""
    gate, order = AdmissionGate(1), list[int]()
    assert gate.enter()

    def enter(number: int) -> None:
        assert gate.enter(PATIENCE)
        order.append(number)
        gate.leave()

    async def enter_async(number: int) -> None:
        await gate.enter_async()
        order.append(number)
        gate.leave()

    async def both(crew: Crew) -> None:
        tasks = []
        for number in range(10):
            if number % 3:
                crew.start(enter, number)
            else:
                tasks.append(asyncio.create_task(enter_async(number)))
            while gate.num_waiting <= number:  # in line before the next one comes
                await asyncio.sleep(0)
        gate.leave()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)

    with Crew() as crew:
        asyncio.run(both(crew))
    assert order == list(range(10)) and free_places(gate) == 1


def test_a_place_goes_to_the_line_and_not_to_who_comes_just_then() -> None:
    gate = AdmissionGate(1)
    assert gate.enter()
    with Crew() as crew:
        waits = crew.start(gate.enter, PATIENCE)
        until(lambda: gate.num_waiting == 1)
        gate.leave()
        assert not gate.enter(timeout=0), "it overtook who stood in line"
        assert waits.result(PATIENCE)
    gate.leave()
    assert free_places(gate) == 1


def test_a_wait_in_vain_leaves_nothing_in_line() -> None:
    gate = AdmissionGate(1)
    assert gate.enter()
    assert not any(gate.enter(timeout=0.001) for _ in range(5))
    assert gate.num_waiting == 0, "who left still stands in line"
    gate.leave()
    assert free_places(gate) == 1


def test_a_cancelled_wait_takes_no_place() -> None:
    async def act() -> None:
        gate = AdmissionGate(1)
        await gate.enter_async()
        tasks = [asyncio.create_task(gate.enter_async()) for _ in range(3)]
        await asyncio.sleep(0)
        assert gate.num_waiting == 3
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert gate.num_waiting == 2
        gate.leave()  # the place is the second one's ...
        tasks[1].cancel()  # ... which is cancelled before it knows
        await asyncio.gather(tasks[1], return_exceptions=True)
        await asyncio.wait_for(tasks[2], PATIENCE)
        assert tasks[0].cancelled() and tasks[1].cancelled() and not gate.enter(timeout=0)
        gate.leave()
        assert free_places(gate) == 1

    asyncio.run(act())


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to a thread")
def test_ctrl_c_ends_a_wait_without_a_place() -> None:
    gate = AdmissionGate(1)
    assert gate.enter()

    def interrupt(send: Callable[[], None]) -> None:
        until(lambda: gate.num_waiting == 1)
        send()

    with interruptible() as send, Crew() as crew:
        crew.start(interrupt, send)
        with pytest.raises(KeyboardInterrupt):
            gate.enter(PATIENCE)
    assert gate.num_waiting == 0
    gate.leave()
    assert free_places(gate) == 1


def test_a_place_that_comes_with_the_timeout_is_kept_or_passed_on() -> None:
    """Both may happen; the place is there afterwards in either case."""
    gate, taken = AdmissionGate(1), Counter[bool]()
    for nth in range(300):
        assert gate.enter()
        with Crew() as crew:
            late = crew.start(gate.enter, 0.0001 * (nth % 5))
            gate.leave()
            came = late.result(PATIENCE)
        taken[came] += 1
        if came:
            gate.leave()
        assert free_places(gate) == 1
    assert taken[True]


def test_a_closed_event_loop_holds_up_nobody() -> None:
    """Its waits are skipped, and give back no place that they never had."""
    gate = AdmissionGate(1)
    assert gate.enter()
    loop = asyncio.new_event_loop()
    waits = [gate.enter_async() for _ in range(2)]
    for wait in waits:
        with _running(loop):
            wait.send(None)  # it stands in line; nobody will ever go on with it
    loop.close()
    with Crew() as crew:
        thread = crew.start(gate.enter, PATIENCE)
        until(lambda: gate.num_waiting == 3)
        gate.leave()
        assert thread.result(PATIENCE)
    for wait in waits:
        wait.close()
    gate.leave()
    assert free_places(gate) == 1


def test_a_wait_that_is_forgotten_gives_its_place_back() -> None:
    """The place came, but its event loop ended before anybody could use it."""
    gate = AdmissionGate(1)
    assert gate.enter()
    loop = asyncio.new_event_loop()
    wait = gate.enter_async()
    with _running(loop):
        wait.send(None)
    gate.leave()
    loop.close()
    assert not gate.enter(timeout=0)
    del wait
    gc.collect()
    assert free_places(gate) == 1


class _running:
    """Inside, this is the running event loop, though nothing runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def __enter__(self) -> None:
        asyncio._set_running_loop(self.loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(None)


@pytest.mark.parametrize("seed", range(3))
def test_no_place_is_lost_or_doubled_in_a_crowd(seed: int) -> None:
    """Threads and coroutines in three event loops come, give up, are cancelled and leave at random."""
    places, gate, lock = 2, AdmissionGate(2), Lock()
    inside = most = 0
    seen: Counter[str] = Counter()
    together = Barrier(7)

    def come() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)

    def go() -> None:
        nonlocal inside
        with lock:
            inside -= 1
        gate.leave()

    def in_threads(number: int) -> None:
        dice = random.Random(f"{seed} thread {number}")
        together.wait(PATIENCE)
        for _ in range(400):
            if gate.enter(dice.choice([0, 0, 0.0002, None])):
                come()
                for _ in range(dice.randrange(8)):
                    let_others_run()
                go()
                seen["entered"] += 1
            else:
                seen["too late"] += 1

    async def visit(dice: random.Random) -> None:
        await gate.enter_async()
        come()
        try:
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
        finally:
            go()
        seen["entered"] += 1

    async def crowd(number: int) -> None:
        dice = random.Random(f"{seed} loop {number}")
        together.wait(PATIENCE)
        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(visit(dice)))
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)
            if dice.random() < 0.4:
                dice.choice(tasks).cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        seen["cancelled"] += sum(task.cancelled() for task in tasks)

    with Crew() as crew:
        for number in range(3):
            crew.start(asyncio.run, crowd(number))
        for number in range(4):
            crew.start(in_threads, number)
    assert most <= places and inside == 0
    assert gate.num_waiting == 0 and free_places(gate) == places
    assert min(seen["entered"], seen["cancelled"], seen["too late"]) > 10, seen


def test_a_shut_gate_sends_everybody_away() -> None:
    """Those in line at once, threads and coroutines, and those who come later; places may still come back."""
    gate = AdmissionGate(1)
    assert gate.enter()

    async def ask() -> list[bool]:
        return list(await asyncio.gather(gate.enter_async(), gate.enter_async(PATIENCE)))

    with Crew() as crew:
        waits = [crew.start(gate.enter), crew.start(gate.enter, PATIENCE)]
        in_a_loop = crew.start(asyncio.run, ask())
        until(lambda: gate.num_waiting == 4)
        gate.shut()
        assert [one.result(PATIENCE) for one in waits] == [False] * 2 and in_a_loop.result(PATIENCE) == [False] * 2
    gate.leave()
    assert not gate.enter() and not asyncio.run(gate.enter_async()) and gate.num_waiting == 0


def test_a_coroutine_waits_no_longer_than_it_wants() -> None:
    async def act() -> list[bool]:
        gate = AdmissionGate(1)
        found = [await gate.enter_async(0), await gate.enter_async(0), await gate.enter_async(0.001)]
        assert gate.num_waiting == 0
        gate.leave()
        found.append(await gate.enter_async(0))
        return found

    assert asyncio.run(asyncio.wait_for(act(), PATIENCE)) == [True, False, False, True]
