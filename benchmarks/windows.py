"""Hybrid models in one pool: what a second question about a document finds, and what that costs everybody else.

    python benchmarks/windows.py [--loads documents,chats] [--windows 1] [--slots 1300] [--orders lru,adaptive]
                                 [--own] [--host 1300] [--named] [--every 1024] [--state] [--seed 1]

Groups of full attention and of windows (8 blocks of 16 tokens) share one pool. `--windows 5` has five groups of windows
beside one of full attention, as Gemma-3 has layers; `--windows 0 --state` a recurrent state instead. With `--own` each
has a pool of its own, a quarter of the slots for a window, an eighth for a state; `--host` adds host memory of so many
slots, for the full group where pools are apart. A request is admitted, computed in chunks of 32 blocks and released
with its answer at its arrival. With `--named` each request names its resume points: the ends of the system prompt, of
the document, of the last turn; with `--every 0` none is guessed. Prints which share of prompt blocks is found, in %.

    documents  a document of 16 to 48 blocks, three questions about it, each by itself, minutes apart
    chats      3 to 8 turns, each the whole talk before it and a little more
    agents     forks of one task: each begins with its system prompt and the task's text, and goes a few steps by itself
    coding     a project's files, an edit behind them every few seconds; projects come and go
    drift      popular texts of which one after the other is replaced
    shift      popular texts, all of them replaced every so often
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

import numpy as np
from loads import Blocks, Names, drifting_texts, shifting_texts

from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig
from quire.core.records.config import Eviction
from quire.core.store import StoreName

BLOCK, WINDOW, CHUNK = 16, 8, 32  # a window and a chunk in blocks


class Ask(NamedTuple):
    """One request."""

    now: float
    text: Blocks
    answer: Blocks = ()
    points: tuple[int, ...] = ()  # ends of its parts, in blocks


class Later:
    """What comes later, in the order of time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Ask]] = []
        self._order = count()

    def add(self, ask: Ask) -> None:
        heappush(self._waiting, (ask.now, next(self._order), ask))

    def until(self, now: float) -> Iterator[Ask]:
        """All that is due."""
        while self._waiting and self._waiting[0][0] <= now:
            yield heappop(self._waiting)[2]


def documents(rng: Random, number: int = 700) -> Iterator[Ask]:
    """Three questions about each document, and nobody asks again."""
    names, later, now = Names(), Later(), 0.0
    for _ in range(number):
        now += rng.expovariate(1 / 20)
        document, when = names.some(rng.randint(16, 48)), now
        for _ in range(3):
            question = names.some(rng.randint(1, 6))
            later.add(Ask(when, document + question, names.some(rng.randint(1, 6)), (len(document),)))
            when += rng.uniform(20, 180)
        yield from later.until(now)
    yield from later.until(np.inf)


def chats(rng: Random, number: int = 500) -> Iterator[Ask]:
    """Talks of several turns; who talks thinks before going on."""
    names, later, now = Names(), Later(), 0.0
    for _ in range(number):
        now += rng.expovariate(1 / 20)
        text, when = names.some(rng.randint(2, 8)), now
        for _ in range(rng.randint(3, 8)):
            answer = names.some(rng.randint(1, 6))
            later.add(Ask(when, text, answer, (len(text),)))
            text = text + answer + names.some(rng.randint(1, 5))
            when += rng.uniform(60, 300)
        yield from later.until(now)
    yield from later.until(np.inf)


def agents(rng: Random, number: int = 160) -> Iterator[Ask]:
    """Each task is read once, then three to six go on from there, each a few steps by itself."""
    names, later, now = Names(), Later(), 0.0
    systems = [names.some(8) for _ in range(3)]
    for _ in range(number):
        now += rng.expovariate(1 / 30)
        task = rng.choice(systems) + names.some(rng.randint(8, 24))
        later.add(Ask(now, task, names.some(2), (8, len(task))))
        for _ in range(rng.randint(3, 6)):
            text, when = task, now + rng.uniform(10, 200)
            for _ in range(rng.randint(2, 5)):
                text = text + names.some(rng.randint(1, 4))
                later.add(Ask(when, text, names.some(1), (8, len(task))))
                when += rng.uniform(5, 300)
        yield from later.until(now)
    yield from later.until(np.inf)


def coding(rng: Random, number: int = 120) -> Iterator[Ask]:
    """Edits behind a project's files."""
    names, later, now = Names(), Later(), 0.0
    projects = [names.some(rng.randint(50, 120)) for _ in range(10)]
    for _ in range(number):
        now += rng.expovariate(1 / 35)
        if rng.random() < 0.2:
            projects[rng.randrange(len(projects))] = names.some(rng.randint(50, 120))
        files = rng.choice(projects)
        text, when = files + names.some(rng.randint(5, 20)), now
        for _ in range(rng.randint(2, 10)):
            later.add(Ask(when, text, names.some(1), (len(files),)))
            text = text[: -rng.randint(1, 4)] + names.some(rng.randint(2, 5))
            when += rng.uniform(10, 300)
        yield from later.until(now)
    yield from later.until(np.inf)


def drift(rng: Random, requests: int = 3000, texts: int = 26, life: int = 8) -> Iterator[Ask]:
    """Texts of about the same popularity; after every so many requests the oldest is replaced."""
    names = Names()
    for now, text, question in drifting_texts(rng, names, requests, texts, life):
        yield Ask(now, text + question, names.some(1), (len(text),))


def shift(rng: Random, requests: int = 3000, texts: int = 100, every: int = 800) -> Iterator[Ask]:
    """Everything popular is replaced at once."""
    names = Names()
    for now, text, question in shifting_texts(rng, names, requests, texts, every):
        yield Ask(now, text + question, names.some(1), (len(text),))


LOADS: dict[str, Callable[[Random], Iterator[Ask]]] = {
    "documents": documents, "chats": chats, "agents": agents, "coding": coding, "drift": drift, "shift": shift,
}  # fmt: skip


def tokens_of(text: Blocks) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.repeat(np.array(text, np.int32), BLOCK)


def serve(cache: Cache, request: Request, answer: Blocks) -> int:
    """From claim to release; where it began."""
    batch = cache.add_sequence_batch([request])
    (sequence,) = batch.sequences
    while True:
        cache.finish(batch.plan)
        cache.commit(sequence)
        if sequence.computed == sequence.prompt_end:
            break
        batch = cache.add_sequence_batch([], continuing=[sequence])
    for block in answer:
        plan = cache.grow(sequence, tokens_of((block,)))
        assert plan is not None, "the pool holds one sequence"
        cache.finish(plan)
        cache.commit(sequence)
    cache.release(sequence)
    return int(sequence.start)


def groups_of(windows: int, state: bool, own: bool = False) -> tuple[LayerGroup, ...]:
    """One of full attention and so many others, in its pool or in pools of their own."""
    width = (WINDOW - 1) * BLOCK + 2  # tokens: the blocks before an edge that it reads are so many
    pool = None if own else "kv"
    others = [LayerGroup(f"window {nth}", window=width, pool=pool) for nth in range(windows)]
    states = [LayerGroup("state", snapshot_every=64 * BLOCK, pool=pool)] if state else []
    return (LayerGroup("full", pool=pool), *others, *states)


def tiers_of(groups: tuple[LayerGroup, ...], slots: int, host: int) -> tuple[TierConfig, ...]:
    """A device, and host memory if it has any."""
    parts = {True: 4, False: 8}  # of a window, of a state
    return tuple(
        TierConfig(
            name, size if groups[0].pool else (size, *(size // parts[group.window is not None] for group in groups[1:]))
        )
        for name, size in (("device", slots), ("host", host))
        if size
    )


def config_of(
    asks: list[Ask], groups: tuple[LayerGroup, ...], tiers: tuple[TierConfig, ...], order: Eviction, every: int = 1024
) -> CacheConfig:
    """For a load."""
    longest = BLOCK * max(len(ask.text) + len(ask.answer) + 1 for ask in asks)
    return CacheConfig(
        tiers, BLOCK, groups, max_sequences=2, max_length=longest,
        max_chunk=CHUNK * BLOCK, partial_reuse=False, eviction=order, resume_every=every,
    )  # fmt: skip


def run(asks: list[Ask], config: CacheConfig, named: bool, store: StoreName = "auto") -> float:
    """The share of prompt blocks found, in %."""
    now, found, total = 0.0, 0, 0
    cache = Cache(config, clock=lambda: now, store=store)
    for ask in asks:
        now = max(now, ask.now)
        points = [at * BLOCK for at in ask.points] if named else []
        found += serve(cache, Request("r", tokens_of(ask.text), resume_points=points), ask.answer) // BLOCK
        total += len(ask.text)
    return 100 * found / total


def options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--orders", default="lru,adaptive,release_order")
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--state", action="store_true")
    parser.add_argument("--slots", type=int, default=1300)
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--own", action="store_true", help="each group has a pool of its own")
    parser.add_argument("--every", type=int, default=1024, help="as CacheConfig.resume_every; 0: nothing is guessed")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("auto", "compiled", "twin"), default="auto")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    given = options(argv)
    orders: list[Eviction] = given.orders.split(",")
    groups = groups_of(given.windows, given.state, given.own)
    tiers = tiers_of(groups, given.slots, given.host)
    print(f"{'load':12}" + "".join(f"{order:>15}" for order in orders))
    for name in given.loads.split(","):
        asks = list(LOADS[name](Random(given.seed)))
        rates = []
        for order in orders:
            config = config_of(asks, groups, tiers, order, given.every)
            rates.append(run(asks, config, given.named, given.store))
        print(f"{name:12}" + "".join(f"{rate:15.1f}" for rate in rates), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
