"""Twelve kinds of load for orders of eviction: who asks for which blocks, and when. Deterministic by their seeds.

Owns what is asked. Knows no cache. A block is a number that stands for itself and all before it in its text; a text is
the blocks of one prompt. `benchmarks/scales.py` sends them through a cache, on clocks of every speed.

    agents   steps of tool loops: one of five system prompts, then 2 to 6 blocks more with every step
    coding   a project's files, an edit behind them every few seconds; projects come and go
    pairs    chats of two turns: the second one is the first and a little more, then never again
    scan     nine of ten requests are documents nobody asks for again; the others are chats that go on
    change   pairs for the first half, agents from then on
    stack    texts asked again by how many others came between: most soon, some late
    bursts   a subject is asked about some twenty times in a row, and then hardly any more
    daily    users who come back day after day, one after the other, with what they had and a little more
    drift    popular texts of which one after the other is replaced: what was asked often is asked no more
    popular  texts of a fixed popularity, each with a question behind it
    loop     texts that are asked round and round, and some that are not
    shift    popular texts, all of them replaced every so often
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

HOUR = 3600.0
Blocks = tuple[int, ...]
Asked = tuple[float, Blocks]  # when, and which blocks
Question = tuple[float, Blocks, Blocks]  # when, a text that others ask about too, and the question behind it


class Names:
    """Blocks that are like no others."""

    def __init__(self) -> None:
        self._next = count(1)

    def some(self, number: int) -> Blocks:
        """So many of them."""
        return tuple(next(self._next) for _ in range(number))


def agents(rng: Random, end: float = HOUR) -> Iterator[Asked]:
    """Tool loops that grow."""
    names = Names()
    systems = [names.some(20) for _ in range(5)]

    def begin(now: float) -> tuple[float, Blocks, int]:
        return now, rng.choice(systems) + names.some(rng.randint(4, 12)), rng.randint(10, 40)

    def go_on(text: Blocks) -> tuple[float, Blocks]:
        return rng.uniform(5, 60), text + names.some(rng.randint(2, 6))

    return _sessions(rng, begin, go_on, every=28.0, end=end)


def coding(rng: Random, end: float = HOUR) -> Iterator[Asked]:
    """Edits behind a project's files."""
    names = Names()
    projects = [names.some(rng.randint(100, 200)) for _ in range(12)]

    def begin(now: float) -> tuple[float, Blocks, int]:
        if rng.random() < 0.1:
            projects[rng.randrange(len(projects))] = names.some(rng.randint(100, 200))
        return now, rng.choice(projects) + names.some(rng.randint(5, 20)), rng.randint(3, 25)

    def go_on(text: Blocks) -> tuple[float, Blocks]:
        return rng.uniform(2, 20), text[: -rng.randint(1, 4)] + names.some(rng.randint(2, 5))

    return _sessions(rng, begin, go_on, every=55.0, end=end)


def pairs(rng: Random, end: float = HOUR) -> Iterator[Asked]:
    """Chats of two turns."""
    names = Names()

    def begin(now: float) -> tuple[float, Blocks, int]:
        return now, names.some(rng.randint(5, 20)), 2

    def go_on(text: Blocks) -> tuple[float, Blocks]:
        return rng.uniform(20, 120), text + names.some(rng.randint(1, 4))

    return _sessions(rng, begin, go_on, every=0.6, end=end)


def scan(rng: Random, end: float = HOUR) -> Iterator[Asked]:
    """Documents asked for once, and some chats."""
    names = Names()

    def begin(now: float) -> tuple[float, Blocks, int]:
        once = rng.random() < 0.9
        return now, names.some(rng.randint(5, 30)), 1 if once else rng.randint(3, 10)

    def go_on(text: Blocks) -> tuple[float, Blocks]:
        return rng.uniform(20, 180), text + names.some(rng.randint(1, 4))

    return _sessions(rng, begin, go_on, every=0.6, end=end)


def change(rng: Random, end: float = HOUR) -> Iterator[Asked]:
    """One kind of user goes, another one comes."""
    yield from pairs(rng, end / 2)
    for now, text in agents(rng, end / 2):
        yield end / 2 + now, tuple(-block for block in text)


def stack(rng: Random, requests: int = 6000) -> Iterator[Asked]:
    """The nth last text is asked again: n is small most often, and large sometimes."""
    names, texts = Names(), [Names().some(0)]
    for nth in range(requests):
        if len(texts) < 20 or rng.random() < 0.35:
            texts.append(names.some(rng.randint(5, 40)))
        else:
            depth = min(len(texts) - 1, int(rng.paretovariate(0.7)))
            texts.append(texts.pop(-depth))
        yield nth * 1.0, texts[-1]


def bursts(rng: Random, subjects: int = 260) -> Iterator[Asked]:
    """Some twenty questions about one thing, then another; two or three at a time; now and then one comes back."""
    names, now, begun = Names(), 0.0, 0
    open_now: list[list[Any]] = []  # a subject, and how many more questions
    old: list[tuple[int, ...]] = []
    while begun < subjects or open_now:
        now += rng.expovariate(1.0)
        if begun < subjects and (len(open_now) < 2 or rng.random() < 0.02):
            begun += 1
            again = old and rng.random() < 0.15
            open_now.append([rng.choice(old) if again else names.some(rng.randint(20, 120)), rng.randint(10, 30)])
        subject = rng.choice(open_now)
        yield now, subject[0] + names.some(rng.randint(1, 5))
        subject[1] -= 1
        if subject[1] <= 0:
            open_now.remove(subject)
            old.append(subject[0])


def daily(rng: Random, users: int = 60, days: int = 40) -> Iterator[Asked]:
    """Users in about the same order day after day; each comes two to four times at once, then not until tomorrow."""
    names = Names()
    texts = [names.some(rng.randint(10, 30)) for _ in range(users)]
    for day in range(days):
        hours = sorted((rng.gauss(user, 3.0), user) for user in range(users))
        for nth, (_, user) in enumerate(hours):
            if rng.random() < 0.05:
                texts[user] = names.some(rng.randint(10, 30))
            for again in range(rng.randint(2, 4)):
                yield day * 86400.0 + nth * 600.0 + again * 60.0, texts[user] + names.some(rng.randint(1, 4))
            if rng.random() < 0.3:
                texts[user] = texts[user] + names.some(2)


def drift(rng: Random, requests: int = 6000, texts: int = 40, life: int = 8) -> Iterator[Asked]:
    """Texts of about the same popularity; after every so many requests the oldest is replaced."""
    for now, text, question in drifting_texts(rng, Names(), requests, texts, life):
        yield now, text + question


def drifting_texts(rng: Random, names: Names, requests: int, texts: int, life: int) -> Iterator[Question]:
    """What `drift` asks, here and in `windows.py`."""
    known = [names.some(rng.randint(10, 30)) for _ in range(texts)]
    for nth in range(requests):
        if nth % life == life - 1:
            known.pop(0)
            known.append(names.some(rng.randint(10, 30)))
        yield nth * 60.0, rng.choice(known), names.some(rng.randint(1, 3))


def popular(rng: Random, requests: int = 6000, texts: int = 400) -> Iterator[Asked]:
    """Popularity that falls with the rank."""
    names = Names()
    known = [names.some(rng.randint(5, 40)) for _ in range(texts)]
    weights = [1 / (rank + 1) ** 0.8 for rank in range(texts)]
    for nth in range(requests):
        (text,) = rng.choices(known, weights)
        yield nth * 1.0, text + names.some(rng.randint(1, 6))


def loop(rng: Random, rounds: int = 60, texts: int = 70) -> Iterator[Asked]:
    """Round and round, one in four requests aside."""
    names, now = Names(), 0.0
    known = [names.some(rng.randint(10, 30)) for _ in range(texts)]
    for _ in range(rounds):
        for text in known:
            now += 1.0
            yield now, text
            if rng.random() < 0.25:
                yield now + 0.5, names.some(rng.randint(5, 30))


def shift(rng: Random, requests: int = 6000, texts: int = 100, every: int = 1500) -> Iterator[Asked]:
    """Everything popular is replaced at once."""
    for now, text, question in shifting_texts(rng, Names(), requests, texts, every):
        yield now, text + question


def shifting_texts(rng: Random, names: Names, requests: int, texts: int, every: int) -> Iterator[Question]:
    """What `shift` asks, here and in `windows.py`."""
    known: list[Blocks] = []
    weights = [1 / (rank + 1) ** 0.8 for rank in range(texts)]
    for nth in range(requests):
        if nth % every == 0:
            known = [names.some(rng.randint(5, 40)) for _ in range(texts)]
        (text,) = rng.choices(known, weights)
        yield nth * 1.0, text, names.some(rng.randint(1, 6))


LOADS: dict[str, Callable[[Random], Iterator[Asked]]] = {
    "agents": agents, "coding": coding, "pairs": pairs, "scan": scan, "change": change, "stack": stack,
    "bursts": bursts, "daily": daily, "drift": drift, "popular": popular, "loop": loop, "shift": shift,
}  # fmt: skip


def _sessions(
    rng: Random,
    begin: Callable[[float], tuple[float, Blocks, int]],
    go_on: Callable[[Blocks], tuple[float, Blocks]],
    *,
    every: float,
    end: float,
) -> Iterator[Asked]:
    """Sessions that begin every so many seconds, on average, each with its turns; all in the order of time."""
    waiting: list[tuple[float, int, Blocks, int]] = []
    order, begins = count(), rng.expovariate(1 / every)
    while True:
        if not waiting or begins < waiting[0][0]:
            now, text, turns = begin(begins)
            begins += rng.expovariate(1 / every)
        else:
            now, _, text, turns = heappop(waiting)
        if now >= end:
            return
        yield now, text
        if turns > 1:
            later, more = go_on(text)
            heappush(waiting, (now + later, next(order), more, turns - 1))
