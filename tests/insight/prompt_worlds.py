"""Worlds of applications that send prompts, drawn by Hypothesis, with faults planted into some. Knows no detector.

A world is a list of applications; each is a generator of prompts that keeps conversations of words going. A word is a
token. Faults change how an application writes its prompts, or who sends what when.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from hypothesis import strategies as st

from quire.core.records.identity import Scope
from quire.trace.prompts.logged_prompts import LoggedPrompt

PLAIN = Scope()
VOCABULARY = 50_000
SHAPES = ("chat", "agent", "rag", "labels", "drafts", "samples", "profiles")
TEXT_FAULTS = ("time", "id", "shuffle", "cut", "compact", "spaces", "template")
TRAFFIC_FAULTS = ("salt", "adapter", "retries", "flush", "flood", "blocks")
NAMED = {  # what each may be called by a detector
    "time": {"changed"}, "id": {"changed"}, "shuffle": {"order"}, "cut": {"cut"}, "compact": {"compacted", "cut"},
    "spaces": {"drift", "changed"}, "template": {"drift", "changed"}, "salt": {"salt"}, "adapter": {"lora"},
    "retries": {"retries"}, "flush": {"flush"}, "flood": {"flood"}, "blocks": {"blocks"},
}  # fmt: skip


@dataclass
class Sent:
    """One request."""

    time: float
    tokens: list[int]
    app: int
    scope: Scope = PLAIN


class Writer:
    """Words of one application: some are its own, most are new."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def words(self, number: int) -> list[int]:
        return [self.random.randrange(100, VOCABULARY) for _ in range(number)]

    def some(self, low: int, high: int) -> list[int]:
        return self.words(self.random.randint(low, high))


@dataclass
class App:
    """How one application writes."""

    number: int
    shape: str
    seed: int
    system: int  # words
    pieces: int  # tools or documents
    piece: int  # words of each
    talks: int  # at once
    fault: str | None = None
    at: float = 0.5  # where in the system prompt
    write: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.write = Writer(self.seed * 16 + self.number)
        self.rules = self.write.words(self.system)
        self.parts = [self.write.words(self.piece + self.write.random.randint(0, self.piece)) for _ in range(40)]
        self.clock = count()
        self.place = int(self.at * (self.system - 1))
        self.end = self.write.words(5)  # of a message
        self.start = self.write.words(3)
        self.talk: list[list[list[int]]] = [[] for _ in range(self.talks)]  # messages
        self.front = [0] * self.talks  # messages that were cut
        self.notes: list[list[int]] = [[] for _ in range(self.talks)]

    def places(self, fault: str) -> range | None:
        """Tokens at which two prompts that have it can begin to differ; None: it has no place in a prompt."""
        ends: dict[str, tuple[int, ...]] = {
            "time": (self.place + 2,), "id": (self.place,), "shuffle": (self.system,), "cut": (self.system,),
            "compact": (self.system,), "spaces": (1, self.system), "template": (20, self.system), "salt": (0,),
            "adapter": (0,), "blocks": (self.system,),
        }  # fmt: skip
        return range(ends[fault][0], ends[fault][-1] + 3) if fault in ends else None

    # -- what stands in front ------------------------------------------------------------------------------------

    def head(self) -> list[int]:
        rules = list(self.rules)
        tick = next(self.clock)
        if self.fault == "time":
            rules[self.place : self.place] = [11, 12, 20 + tick // 60 % 60, 13, 20 + tick % 60]
        elif self.fault == "id":
            rules[self.place : self.place] = self.write.words(9)
        elif self.fault == "spaces":
            for _ in range(3):
                rules.insert(self.write.random.randrange(1, len(rules)), 7)
        elif self.fault == "template":
            for place in range(20, len(rules), max(len(rules) // 6, 12)):
                rules[place:place] = [[7], [8, 9]][self.write.random.random() < 0.5]
        return rules

    def tools(self) -> list[int]:
        order = list(range(self.pieces))
        if self.fault == "shuffle":
            self.write.random.shuffle(order)
        return [word for piece in order for word in self.parts[piece]]

    # -- one request ---------------------------------------------------------------------------------------------

    def prompt(self) -> list[int]:
        if self.shape in ("chat", "agent"):
            return self._turn()
        if self.shape == "rag":
            chosen = self.write.random.sample(range(len(self.parts)), 3)
            texts = [word for piece in chosen for word in self.parts[piece]]
            return self.head() + texts + self.write.some(15, 60) + self.start
        if self.shape == "samples":  # few prompts, asked again and again
            return self.head() + self.parts[min(int(self.write.random.expovariate(0.2)), 39)] + self.start
        if self.shape == "profiles":  # the user's own text behind what all have, then a closing line
            user = self.parts[self.write.random.randrange(len(self.parts))]
            return self.head() + user + self.write.some(30, 200) + self.end + self.start
        if self.shape == "labels":
            return self.head() + self.tools() + self.write.some(20, 120) + self.start
        return self.head() + self.write.some(200, 700) + self.end  # drafts: a text that nobody has seen

    def _turn(self) -> list[int]:
        which = self.write.random.randrange(self.talks)
        talk = self.talk[which]
        if len(talk) > 24 or (talk and self.write.random.random() < 0.06):
            talk.clear()
            self.front[which], self.notes[which] = 0, []
        if talk:
            talk.append(self.write.some(20, 90) + self.end)  # the answer
        talk.append(self.write.some(15, 80) + self.end)
        if self.fault in ("cut", "compact") and len(talk) - self.front[which] > 7:
            self.front[which] += 2
            self.notes[which] = self.write.words(25) if self.fault == "compact" else []
        shown = [word for message in talk[self.front[which] :] for word in message]
        tools = self.tools() if self.shape == "agent" or self.fault == "shuffle" else []
        return self.head() + tools + self.notes[which] + shown + self.start


@dataclass(repr=False)
class World:
    """A log, the faults in it, and which application each is in."""

    sent: list[Sent]
    faults: dict[str, int]
    apps: list[App]
    block_size: int = 16
    memory: int = 1_800_000

    def __repr__(self) -> str:
        made = ", ".join(f"{app.shape} {app.seed} ({app.fault or 'clean'})" for app in self.apps)
        return f"World({len(self.sent)} requests: {made})"

    def prompts(self) -> Iterator[LoggedPrompt]:
        for line, one in enumerate(self.sent, 1):
            yield LoggedPrompt(np.array(one.tokens, np.int32), one.time, one.scope, None, line)

    def tokens(self, number: int) -> list[int]:
        return self.sent[number].tokens


@st.composite
def apps(draw: st.DrawFn, number: int, fault: str | None) -> App:
    shapes = {
        "cut": ("chat",), "compact": ("chat",), "shuffle": ("agent", "labels"), "blocks": ("labels",),
        "salt": ("labels", "chat", "agent"), "adapter": ("labels", "agent"), "flush": ("drafts",), "flood": ("drafts",),
    }.get(fault or "", ("chat", "agent", "labels") if fault else SHAPES)  # fmt: skip
    shape = draw(st.sampled_from(shapes))
    system = draw(st.integers(150, 900))
    if fault == "blocks":
        system = draw(st.integers(60, 100))
    return App(
        number, shape, draw(st.integers(0, 1 << 30)), system, 0 if fault == "blocks" else draw(st.integers(4, 9)),
        draw(st.integers(40, 90)), draw(st.integers(3, 12)), fault, draw(st.floats(0.0, 0.6)),
    )  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn, chosen: Sequence[str], requests: int = 700) -> World:
    """One to four applications, with these faults in different ones."""
    clean = draw(st.integers(1, 2))
    made = [draw(apps(place, fault)) for place, fault in enumerate([*chosen, *[None] * clean])]
    if "blocks" in chosen:
        made = made[:1]
    dice = random.Random(draw(st.integers(0, 1 << 30)))
    weights = [draw(st.floats(0.5, 1.5)) for _ in made]
    world = World(_mixed(made, weights, requests, dice), {fault: place for place, fault in enumerate(chosen)}, made)
    if "blocks" in chosen:
        world.block_size = 128
    for fault, place in world.faults.items():
        _in_traffic(world, fault, place, dice)
    world.sent.sort(key=lambda one: one.time)
    return world


def _mixed(made: list[App], weights: list[float], requests: int, dice: random.Random) -> list[Sent]:
    sent, now = [], 0.0
    for _ in range(requests):
        now += dice.expovariate(1.0)
        app = dice.choices(made, weights)[0]
        sent.append(Sent(now, app.prompt(), app.number))
    return sent


def _in_traffic(world: World, fault: str, place: int, dice: random.Random) -> None:
    mine = [one for one in world.sent if one.app == place]
    if fault == "salt":
        for number, one in enumerate(mine):
            one.scope = Scope(salt=f"request {number}")
    elif fault == "adapter":
        for one in mine:
            one.scope = Scope(lora=f"adapter {dice.randrange(len(mine) // 3)}")
    elif fault == "retries":
        again = dice.sample(mine, int(0.3 * len(mine)))
        world.sent += [Sent(one.time + dice.uniform(1.0, 6.0), one.tokens, one.app) for one in again]
    elif fault in ("flush", "flood"):
        others = sum(len(one.tokens) for one in world.sent if one.app != place) / max(len(world.sent) - len(mine), 1)
        span = world.sent[-1].time
        write = Writer(dice.randrange(1 << 30))
        for one in mine:
            one.tokens = write.words(int(others * 8))
            if fault == "flood":
                one.time = span * (0.4 + 0.15 * dice.random())
        world.memory = int(others * 25)
