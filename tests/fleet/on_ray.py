"""What a fleet on Ray must show, by hand: `python -m tests.fleet.on_ray CHECK [--replicas N]`. Needs the extra `ray`.

    burst     12 new prompts at once over 3 replicas: at most 5 on one
    kill      SIGKILL in mid-stream: texts equal, the index forgets it within a second, nothing is left in the table
    only      the only replica is dead: 503 after the time-out; when Ray has another one, answers again
    hits      24 conversations x 4 turns: hit rate of our router and of Ray's own, on seeds 0 to 2
    first     time to first token of both, SmolLM2 and long prompts
    restart   a rolling restart under load: nothing fails
    nodes     two raylets, one killed: what was in flight there goes on elsewhere
    pressure  more than may wait: 429
    quotes    all replicas say at once when a first token would come; one is stopped, one killed: nobody waits for them
    cost      of one choice at 8k tokens among 16 workers (no Ray)

Every check prints what it found, and ends with 1 if that is not what it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import ray
import torch

from quire import Cache, CacheConfig, Request, TierConfig
from quire.core.outside.writer import Writer
from quire.engine import Sampling, TooLate
from quire.events import Publisher
from quire.fleet.fleet_stream import FleetLimits
from quire.fleet.fleet_work import AskQuote, FleetWork, WorkerLost, WorkerQuote, WorkRefused
from quire.fleet.on_ray.launch import RayFleet
from quire.fleet.worker_book import WorkerAddress, WorkerBook
from quire.fleet.worker_quotes import WorkerQuotes

from .ray_rig import PLAIN, ask, close_kept, folder, loads, opened, pids, start_ray, until, words


async def burst(options: argparse.Namespace) -> bool:
    fleet = await asyncio.to_thread(opened, 3)
    dice = random.Random(options.seed)
    got = await asyncio.gather(*(ask(fleet, words(dice, 64), 40) for _ in range(12)))
    shares = sorted(Counter(who for _, _, who, _ in got).values(), reverse=True)
    print(f"12 at once: {shares}; left in the table: {loads(fleet)}")
    return shares[0] <= 5 and not loads(fleet)


async def kill(options: argparse.Namespace) -> bool:
    fleet = await asyncio.to_thread(opened, 3)
    dice = random.Random(options.seed)
    prompts = [words(dice, 100) for _ in range(12)]
    kinds: list[dict[str, Any]] = [{} if nth % 2 else {"temperature": 1.0} for nth in range(12)]
    undisturbed = [await ask(fleet, prompt, 120, **kind) for prompt, kind in zip(prompts, kinds, strict=True)]
    tasks = [
        asyncio.ensure_future(ask(fleet, prompt, 120, **kind)) for prompt, kind in zip(prompts, kinds, strict=True)
    ]
    while not loads(fleet) or max(loads(fleet).values()) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    busy = loads(fleet)
    victim = max(busy, key=lambda name: busy[name])
    os.kill(pids(fleet)[victim], signal.SIGKILL)
    began = time.perf_counter()
    forgot = 0.0
    while not forgot and time.perf_counter() - began < 30:
        if victim not in {name for book in fleet.books() for name in book.statuses()}:
            forgot = time.perf_counter() - began
        await asyncio.sleep(0.01)
    got = await asyncio.gather(*tasks, return_exceptions=True)
    equal = sum(
        not isinstance(one, BaseException) and one[0] == before[0] for one, before in zip(got, undisturbed, strict=True)
    )
    moved = sum(isinstance(one, tuple) and one[2] != before[2] for one, before in zip(got, undisturbed, strict=True))
    print(f"{busy[victim]} were with it; {equal} of 12 equal, {moved} elsewhere; forgotten after {forgot:.2f} s")
    print([one for one in got if isinstance(one, BaseException)], f"left in the table: {loads(fleet)}")
    later = [await ask(fleet, words(dice, 40), 4) for _ in range(20)]
    print(f"{len(later)} later requests answered")
    return equal == 12 and 0 < forgot < 1 and not loads(fleet)


async def only(options: argparse.Namespace) -> bool:
    fleet = await asyncio.to_thread(opened, 1)
    dice = random.Random(options.seed)
    await ask(fleet, words(dice, 40), 4)
    [pid] = pids(fleet).values()
    os.kill(pid, signal.SIGKILL)
    began = time.perf_counter()
    try:
        await ask(fleet, words(dice, 40), 4, limits=FleetLimits(route_seconds=2.0))
        said = "an answer"
    except Exception as error:
        said = f"{getattr(error, 'status', type(error).__name__)}: {error}"
    took = time.perf_counter() - began
    print(f"after {took:.1f} s: {said}")
    again = await ask(fleet, words(dice, 40), 4, limits=FleetLimits(route_seconds=90.0))
    print(f"Ray's new one has answered {len(again[0])} tokens after {time.perf_counter() - began:.1f} s")
    return said.startswith("503") and took < 4 and not loads(fleet)


class Talk(NamedTuple):
    """Tokens of a conversation: the beginning that a quarter of them share, and each turn's question and answer."""

    system: int
    question: int
    answer: int


SIDES: tuple[tuple[str, dict[str, Any]], ...] = (  # a name of its own: under the old one Ray keeps the router it has
    ("ours", {}),
    ("power of two", {"router": None, "name": "pow2"}),
)
TALKS = (Talk(96, 24, 12), Talk(64, 32, 16))  # the more is shared by all, the less a router can do


async def talk(fleet: RayFleet, kind: Talk, seed: int) -> tuple[float, list[float]]:
    """Hit rate of 24 conversations x 4 turns, 6 at once, and seconds to the first token."""
    dice = random.Random(f"{seed} {kind}")
    systems = [words(dice, kind.system) for _ in range(4)]
    talks = [list(systems[nth % 4]) for nth in range(24)]
    reused = total = 0
    firsts: list[float] = []
    gate = asyncio.Semaphore(6)

    async def turn(nth: int) -> None:
        nonlocal reused, total
        async with gate:
            talks[nth] += words(dice, kind.question)
            made, hit, _, first = await ask(fleet, talks[nth], kind.answer)
            reused, total = reused + hit, total + len(talks[nth])
            talks[nth] += made
            firsts.append(first)

    for _ in range(4):
        order = list(range(24))
        dice.shuffle(order)
        await asyncio.gather(*(turn(nth) for nth in order))
        await asyncio.sleep(0.2)
    return reused / total, firsts


async def hits(options: argparse.Namespace) -> bool:
    rates: dict[tuple[Talk, int], list[float]] = {}
    place = folder()
    for name, router in SIDES:
        fleet = await asyncio.to_thread(opened, 3, replica={"model": place, "device_memory": "4MiB"}, **router)
        before = sum(book.num_choices for book in fleet.books())
        for kind in TALKS:
            for seed in range(options.seed, options.seed + 3):  # other prompts each: nothing is found of those before
                rate, firsts = await talk(fleet, kind, seed)
                rates.setdefault((kind, seed), []).append(rate)
                median = 1e3 * statistics.median(firsts)
                print(f"{name}, {kind}, seed {seed}: hit rate {rate:.3f}, first token {median:.0f} ms", flush=True)
        chosen = sum(book.num_choices for book in fleet.books()) - before
        assert (chosen > 0) == (name == "ours"), f"our router has made {chosen} choices for {name}"
    gaps = {kind: min(ours - theirs for (one, _), (ours, theirs) in rates.items() if one == kind) for kind in TALKS}
    print(f"smallest gaps: {gaps}")
    return min(gaps.values()) >= 0.15


async def first(options: argparse.Namespace) -> bool:
    found = {}
    for name, router in SIDES:
        fleet = await asyncio.to_thread(
            opened, 2, replica={"model": None, "device_memory": "200MiB", "max_length": 2048}, **router
        )
        dice = random.Random(options.seed)
        times = []
        before = sum(book.num_choices for book in fleet.books())
        try:
            texts = [words(dice, 900) for _ in range(4)]
            for nth in range(16):
                text = texts[nth % 4]
                text += words(dice, 20)
                made, _, _, seconds = await ask(fleet, text, 4)
                text += made
                times.append(seconds)
                await asyncio.sleep(0.2)
            chosen = sum(book.num_choices for book in fleet.books()) - before
            assert (chosen > 0) == (name == "ours"), f"our router has made {chosen} choices for {name}"
        finally:
            close_kept()
        found[name] = statistics.mean(times[4:])
        print(f"{name}: first token after {1e3 * found[name]:.0f} ms, mean of turns 2 to 4", flush=True)
    return found["ours"] < found["power of two"]


async def restart(options: argparse.Namespace) -> bool:
    fleet = await asyncio.to_thread(opened, 2, grace=20.0)
    dice = random.Random(options.seed)
    before, failed, served, over = set(pids(fleet)), [], 0, False

    async def client() -> None:
        nonlocal served
        while not over:
            try:
                await ask(fleet, words(dice, 60), 30)
                served += 1
            except Exception as error:
                failed.append(error)

    clients = [asyncio.ensure_future(client()) for _ in range(4)]
    await asyncio.to_thread(fleet.restart)
    await asyncio.sleep(2)
    over = True
    await asyncio.gather(*clients)
    after = set(pids(fleet))
    print(f"{served} served, {len(failed)} failed {failed[:2]}; replicas {sorted(before)} -> {sorted(after)}")
    return not failed and not before & after and not loads(fleet)


async def nodes(options: argparse.Namespace) -> bool:
    from ray.cluster_utils import Cluster

    close_kept()
    if ray.is_initialized():
        ray.shutdown()
    size = 100 << 20
    head = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": size, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.2", object_store_memory=size)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False, _node_ip_address="127.0.0.1")
    fleet = await asyncio.to_thread(opened, 2, max_per_node=1)
    dice = random.Random(options.seed)
    prompts = [words(dice, 100) for _ in range(8)]
    try:
        undisturbed = [(await ask(fleet, prompt, 120))[0] for prompt in prompts]
        tasks = [asyncio.ensure_future(ask(fleet, prompt, 120)) for prompt in prompts]
        while len(loads(fleet)) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(cluster.remove_node, second, False)
        got = await asyncio.gather(*tasks, return_exceptions=True)
        equal = sum(isinstance(one, tuple) and one[0] == wanted for one, wanted in zip(got, undisturbed, strict=True))
        later = await asyncio.gather(*(ask(fleet, words(dice, 40), 4) for _ in range(20)), return_exceptions=True)
        bad = [one for one in [*got, *later] if isinstance(one, BaseException)]
        print(f"a node was killed: {equal} of 8 equal, {len(later)} later, {len(bad)} failed {bad[:2]}; {loads(fleet)}")
        return equal == 8 and not bad and not loads(fleet)
    finally:
        close_kept()
        ray.shutdown()
        cluster.shutdown()


async def pressure(options: argparse.Namespace) -> bool:
    fleet = await asyncio.to_thread(opened, 1, max_queued=4, replica={"max_requests": 4})
    dice = random.Random(options.seed)
    got = await asyncio.gather(*(ask(fleet, words(dice, 40), 60) for _ in range(40)), return_exceptions=True)
    said = Counter(
        str(getattr(one, "status", type(one).__name__)) if isinstance(one, Exception) else "200" for one in got
    )
    print(f"40 at once, 4 places, 4 may wait: {dict(said)}; left in the table: {loads(fleet)}")
    after = await ask(fleet, words(dice, 40), 4)
    return set(said) == {"200", "429"} and said["200"] >= 8 and len(after[0]) == 4 and not loads(fleet)


async def quotes(options: argparse.Namespace) -> bool:
    fleet = await asyncio.to_thread(opened, 3, replica={"deadlines": 0.95})
    dice, seen, asked = random.Random(options.seed), [], list[str]()

    async def quoter(one: AskQuote) -> WorkerQuote | WorkRefused:
        asked.append(one.worker)
        return await fleet.quote(one)

    every = WorkerQuotes(quoter, lambda: [name for book in fleet.books() for name in book.addresses()])

    async def timely(count: int, seconds: float = 20.0) -> list[tuple[str | None, float]]:
        """Who answered, and after how long, one after the other."""
        found = []
        for _ in range(count):
            began, more = time.perf_counter(), {"quotes": every, "ttft": seconds}
            found.append(((await ask(fleet, words(dice, 60), 4, **more))[2], time.perf_counter() - began))
        return found

    for _ in range(12):  # they learn what steps cost
        await asyncio.gather(*(ask(fleet, words(dice, 5 + nth), 8) for nth in range(6)))
    tasks = len(asyncio.all_tasks())
    said = await every.of(FleetWork(np.array(words(dice, 60), np.int32), Sampling(), PLAIN, ttft=20.0), 20.0)
    print(f"quotes of 3: {sorted(round(1000 * one.soonest) for one in said.values())} ms")
    seen.append(len(said) == 3 and all(one.accepted and one.soonest > 0 for one in said.values()))
    busy = min(said, key=lambda name: said[name].soonest)
    os.kill(pids(fleet)[busy], signal.SIGSTOP)
    asked.clear()
    got = await timely(6)
    print(f"one stopped: {[round(seconds, 2) for _, seconds in got]} s, asked {asked.count(busy)} times")
    seen.append(busy not in {who for who, _ in got} and asked.count(busy) == 6 and busy in every._silent)
    os.kill(pids(fleet)[busy], signal.SIGCONT)
    await asyncio.sleep(1)
    work = FleetWork(np.array(words(dice, 60), np.int32), Sampling(), PLAIN, ttft=20.0)
    back = [len(await every.of(work, 20.0)) for _ in range(5)]
    print(f"it goes on: {back} quotes", flush=True)
    seen.append(back[-1] == 3)
    os.kill(pids(fleet)[busy], signal.SIGKILL)
    try:  # Ray learns of it later
        await fleet.quote(AskQuote(busy, work))
        seen.append(False)
    except WorkerLost as lost:
        print(f"the killed one: {lost}", flush=True)
    got = await timely(6)
    print(f"one killed: {[round(seconds, 2) for _, seconds in got]} s; left in the table: {loads(fleet)}")
    seen.append(busy not in {who for who, _ in got} and not loads(fleet))
    with suppress(WorkerLost):  # asked once more, when it is known
        await fleet.quote(AskQuote(busy, work))
        seen.append(False)
    try:
        await timely(1, 1e-4)
        seen.append(False)
    except TooLate as late:
        print(f"too late: {late}")
        seen.append(late.bound > 1e-4)
    print(f"tasks left: {len(asyncio.all_tasks()) - tasks}")
    return all(seen) and len(asyncio.all_tasks()) <= tasks


async def cost(options: argparse.Namespace) -> bool:
    seed = b"0123456789abcdef"
    tokens = np.array(words(random.Random(options.seed), 8192), np.int32)
    config = CacheConfig((TierConfig("device", 600),), events=True, event_seed=seed, max_length=8192)
    caches = [Cache(config) for _ in range(16)]
    book = WorkerBook()
    publishers = [Publisher(cache, "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", bind=True) for cache in caches]
    for nth, cache in enumerate(caches):
        writer = cache.writer(Request("a", tokens[: 512 * nth + 16]), tier=0)
        assert isinstance(writer, Writer)
        with writer:
            writer.written(len(writer.slots()) * config.block_size)
    for publisher in publishers:
        publisher.tell()
    names = [f"w{nth}" for nth in range(16)]
    book.update(
        {
            name: WorkerAddress(one.endpoint, str(one.replay_endpoint))
            for name, one in zip(names, publishers, strict=True)
        }
    )
    until(lambda: list(book.statuses().values()).count("EXACT") == 16, 30)
    times = []
    for _ in range(2000):
        began = time.perf_counter()
        ranked = book.rank(names, tokens, PLAIN)
        times.append(time.perf_counter() - began)
    found = 1e6 * statistics.median(times)
    print(f"a choice among 16 workers at 8192 tokens: median {found:.0f} us")
    book.close()
    for publisher in publishers:
        publisher.close()
    return found < 300 and ranked[0] == "w15"


CHECKS = {check.__name__: check for check in (burst, kill, only, hits, first, restart, nodes, pressure, quotes, cost)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="+", choices=[*CHECKS, "all"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = []
    for name in CHECKS if "all" in options.checks else options.checks:
        print(f"-- {name}", flush=True)
        if name not in ("nodes", "cost"):
            start_ray()
        if not asyncio.run(CHECKS[name](options)):
            bad.append(name)
    close_kept()
    print("not as it must be: " + ", ".join(bad) if bad else "all is as it must be")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
