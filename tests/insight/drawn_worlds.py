"""Logs of services whose prompts Hypothesis has put together from parts, in any number and size. Knows no detector.

A service is a list of parts: rules, pieces, one of a shelf, some of a shelf, a talk, new text, a closing line; each may
be missing. Tokens are words, some far commoner than others. A fault is done to a part. A text fault counts as one if a
comparison of the log with the same log without it says that it costs ten points of the service's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from quire.core.records.identity import Scope
from quire.trace.prompts.logged_prompts import LoggedPrompt
from quire.trace.units import Int32

PLAIN = Scope()
CHANCE = 4  # tokens that are equal by chance, at most
TOLD = {  # what each may be called
    "nonce": {"changed"}, "nonce in a piece": {"changed"}, "pieces shuffled": {"order"},
    "spellings": {"drift", "changed"}, "talk slides": {"cut"}, "talk summed up": {"compacted", "cut"},
    "salts": {"salt"}, "adapters": {"lora"}, "sent again": {"retries"}, "crawled": {"flush"}, "a batch": {"flood"},
}  # fmt: skip
TEXT = ("nonce", "nonce in a piece", "pieces shuffled", "spellings", "talk slides", "talk summed up")


@dataclass(frozen=True, slots=True)
class Parts:
    """Tokens of each; 0: it is missing."""

    rules: int
    pieces: int  # how many
    piece: int
    shelf: int  # one of forty texts
    picks: int  # of forty texts
    talk: int  # of a message
    new: int
    closing: int


@st.composite
def parts(draw: st.DrawFn, fault: str | None) -> Parts:
    """Of a service that can have this fault."""
    talks = fault in ("talk slides", "talk summed up")
    pieces = fault in ("nonce in a piece", "pieces shuffled")
    some = {"rules": draw(st.integers(120, 1200)), "pieces": 0, "shelf": 0, "picks": 0, "talk": 0}
    if fault is None and draw(st.booleans()):
        some["rules"] = draw(st.sampled_from((0, 12, 40)))
    if pieces or (fault not in ("crawled", "a batch") and draw(st.booleans())):
        some["pieces"] = draw(st.integers(4, 10))
    way = "talk" if talks else draw(st.sampled_from(("talk", "shelf", "picks", "none")))
    if way != "none" and fault not in ("crawled", "a batch"):
        some[way] = draw(st.integers(25, 90)) if way == "talk" else draw(st.integers(1, 4)) if way == "picks" else 120
    return Parts(
        piece=draw(st.integers(30, 140)), new=draw(st.integers(5, 150)), closing=draw(st.integers(0, 8)), **some
    )


@dataclass(frozen=True, slots=True)
class Sent:
    """One request."""

    time: float
    tokens: Int32
    service: int
    scope: Scope = PLAIN


class Service:
    """Writes prompts of its parts."""

    def __init__(self, number: int, made: Parts, fault: str | None, depth: float, seed: int) -> None:
        self.number, self.parts, self.fault = number, made, fault
        self.dice = np.random.default_rng([seed, number])
        self._sums = np.cumsum(1 / np.arange(5, 8005))
        self._mine = self.dice.permutation(8000)[:800]  # words that it is fond of
        self.rules = self._text(made.rules)
        self.pieces = [self._text(made.piece + int(self.dice.integers(made.piece))) for _ in range(made.pieces)]
        self.shelf = [self._text(int(self.dice.integers(80, 300))) for _ in range(40)]
        self.closing = self._text(made.closing)
        self.place = int(depth * max(made.rules - 1, 0))
        self.respelled_at: list[int] = []  # of each way its first place
        self.ways = [self._respelled() for _ in range(int(self.dice.integers(2, 5)))]
        self.talks: list[list[Int32]] = [[] for _ in range(int(self.dice.integers(3, 9)))]
        self.front = [0] * len(self.talks)
        self.notes = [self._text(0)] * len(self.talks)

    def _text(self, tokens: int) -> Int32:
        common = np.searchsorted(self._sums, self.dice.random(tokens) * self._sums[-1])
        fond = self._mine[self.dice.integers(800, size=tokens)]
        return np.where(self.dice.random(tokens) < 0.5, common, fond).astype(np.int32)

    def _respelled(self) -> Int32:
        places = np.sort(self.dice.choice(max(len(self.rules), 4), 3, replace=False))
        self.respelled_at.append(int(places[0]))
        text = np.split(self.rules, places)
        return np.concatenate([text[0], *(np.concatenate([self._text(2), one[1:]]) for one in text[1:])])

    def write(self) -> Int32:
        """The next prompt."""
        rules, pieces = self.rules, list(self.pieces)
        nonce = self.dice.integers(9000, 10**6, size=6).astype(np.int32)
        if self.fault == "nonce":
            rules = np.insert(rules, [self.place] * 6, nonce)
        elif self.fault == "spellings":
            rules = self.ways[int(self.dice.integers(len(self.ways)))]
        elif self.fault == "nonce in a piece":
            pieces[0] = np.insert(pieces[0], [len(pieces[0]) // 2] * 6, nonce)
        elif self.fault == "pieces shuffled":
            pieces = [pieces[place] for place in self.dice.permutation(len(pieces))]
        made = self.parts
        chosen = min(int(self.dice.exponential(8)), 39)
        some = [self.shelf[chosen]] if made.shelf else []
        some += [self.shelf[place] for place in self.dice.choice(40, made.picks, replace=False)]
        some += self._talk() if made.talk else [self._text(made.new)]
        return np.concatenate([rules, *pieces, *some, self.closing]).astype(np.int32)

    def _talk(self) -> list[Int32]:
        which = int(self.dice.integers(len(self.talks)))
        talk = self.talks[which]
        if len(talk) > 30 or self.dice.random() < 0.04:
            talk.clear()
            self.front[which], self.notes[which] = 0, self._text(0)
        talk += [self._text(int(self.parts.talk * (0.5 + self.dice.random()))) for _ in range(1 + bool(talk))]
        if self.fault in ("talk slides", "talk summed up") and len(talk) - self.front[which] > 9:
            self.front[which] += 2
            if self.fault == "talk summed up":
                self.notes[which] = self._text(30)
        return [self.notes[which], *talk[self.front[which] :]]


@dataclass(repr=False)
class DrawnWorld:
    """A log, and which service has which fault."""

    services: list[Service]
    letters: list[Sent]
    faults: dict[str, int]
    memory: int = 1_800_000
    block_size: int = 16
    told: dict[str, set[str]] = field(default_factory=lambda: TOLD)

    def __post_init__(self) -> None:
        self.letters.sort(key=lambda one: one.time)

    def __repr__(self) -> str:
        made = "; ".join(f"{one.fault or 'clean'}: {one.parts}" for one in self.services)
        return f"DrawnWorld({len(self.letters)} requests: {made})"

    @property
    def tokens(self) -> list[Int32]:
        return [one.tokens for one in self.letters]

    def prompts(self) -> Iterator[LoggedPrompt]:
        for line, one in enumerate(self.letters, 1):
            yield LoggedPrompt(one.tokens, one.time, one.scope, None, line)

    def places(self, fault: str) -> range | None:
        """Tokens at which two prompts that have it can begin to differ; None: it has no place in a prompt."""
        service = self.services[self.faults[fault]]
        rules, pieces = len(service.rules), sum(map(len, service.pieces))
        ends: dict[str, tuple[int, ...]] = {
            "nonce": (service.place,),
            "nonce in a piece": (rules + len(service.pieces[0]) // 2 if service.pieces else 0,),
            "pieces shuffled": (rules,),
            "spellings": (min(service.respelled_at), max(service.respelled_at)),
            "talk slides": (rules + pieces,),
            "talk summed up": (rules + pieces,),
            "salts": (0,),
            "adapters": (0,),
        }
        return range(ends[fault][0], ends[fault][-1] + CHANCE + 1) if fault in ends else None

    def time_of(self, fault: str) -> tuple[float, float] | None:
        """From when to when it was, if not always."""
        times = [one.time for one in self.letters if one.service == self.faults[fault]]
        return (min(times), max(times)) if fault == "a batch" else None


@st.composite
def drawn_worlds(draw: st.DrawFn, faults: tuple[str, ...], requests: int, planted: bool = True) -> DrawnWorld:
    """Services with these faults, or as they would be without, and one to three others."""
    kinds = [*faults, *[None] * draw(st.integers(1, 3))]
    seed = draw(st.integers(0, 1 << 30))
    services = [
        Service(n, draw(parts(fault)), fault if planted else None, draw(st.floats(0, 0.8)), seed)
        for n, fault in enumerate(kinds)
    ]
    weights = np.array([draw(st.floats(0.5, 1.5)) for _ in services])
    dice = np.random.default_rng(seed)
    times = np.cumsum(dice.exponential(2.0, requests)).tolist()
    senders = dice.choice(len(services), requests, p=weights / weights.sum()).tolist()
    letters = [Sent(time, services[n].write(), n) for time, n in zip(times, senders, strict=True)]
    world = DrawnWorld(services, letters, {fault: n for n, fault in enumerate(faults)})
    for fault, number in world.faults.items() if planted else ():
        world = _with_traffic(world, fault, number, dice)
    return world


def _with_traffic(world: DrawnWorld, fault: str, number: int, dice: np.random.Generator) -> DrawnWorld:
    mine = [one for one in world.letters if one.service == number]
    others = [one for one in world.letters if one.service != number]
    memory, service = world.memory, world.services[number]
    if fault == "salts":
        mine = [replace(one, scope=Scope(salt=str(n))) for n, one in enumerate(mine)]
    elif fault == "adapters":
        mine = [replace(one, scope=Scope(lora=str(dice.integers(len(mine) // 4)))) for one in mine]
    elif fault == "sent again":
        twice = dice.choice(len(mine), len(mine) // 3, replace=False).tolist()
        mine += [replace(mine[n], time=mine[n].time + float(dice.uniform(2, 8))) for n in twice]
    elif fault in ("crawled", "a batch"):
        mean = int(np.mean([len(one.tokens) for one in others]))
        span, wide = world.letters[-1].time, 10 * mean
        mine = [replace(one, tokens=np.concatenate([one.tokens, service._text(wide)])) for one in mine]
        if fault == "a batch":
            mine = [replace(one, time=span * float(dice.uniform(0.4, 0.5))) for one in mine]
        memory = mean * 25
    return DrawnWorld(world.services, others + mine, world.faults, memory)
