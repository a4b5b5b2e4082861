"""Logs as services write them: stock phrases, files, passages and tools, drawn by Hypothesis. Knows no detector.

Unlike in prompt_worlds.py words are as unevenly common as in a language, the same passages and files stand in many
prompts at any place though nothing is wrong, and a token is a piece of text: white space changes tokens.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from zlib import crc32

import numpy as np
from hypothesis import strategies as st

from quire.core.records.identity import Scope
from quire.trace.prompts.logged_prompts import LoggedPrompt
from quire.trace.units import Int32

PIECE = re.compile(r"[^\W\d]{1,6}|\d{1,3}|\s|[^\w\s]")
STOCK = (
    "Thank you for your question.",
    "Here is what I found:",
    "Let me know if you need anything else.",
    "Best regards,",
)
PLAIN = Scope()
CHANCE = 4  # tokens that are equal by chance, at most: hours, or a word
KINDS = ("helpdesk", "coder", "search", "examples", "summaries", "evaluation", "mail")
TEXT = {  # fault -> kinds that can have it, and what it may be called
    "clock": (("helpdesk", "coder", "examples", "evaluation", "mail"), {"changed"}),
    "hash in front": (("helpdesk", "coder", "examples"), {"changed"}),
    "id in tools": (("coder",), {"changed"}),
    "tools in any order": (("coder",), {"order"}),
    "examples in any order": (("examples",), {"order"}),
    "blanks at line ends": (("coder", "examples"), {"drift", "changed"}),
    "two versions of the client": (("helpdesk", "coder"), {"drift", "changed"}),
    "sliding history": (("helpdesk",), {"cut"}),
    "summary for history": (("helpdesk",), {"compacted", "cut"}),
}
TRAFFIC = {
    "salt": (("helpdesk", "examples", "coder"), {"salt"}),
    "adapter": (("examples", "coder"), {"lora"}),
    "retries": (("helpdesk", "search", "mail"), {"retries"}),
    "crawler": (("summaries",), {"flush"}),
    "batch": (("summaries",), {"flood"}),
    "blocks": (("examples",), {"blocks"}),
}
FAULTS = {name: told for name, (_, told) in (TEXT | TRAFFIC).items()}
PAIRS = (
    ("clock", "salt"), ("tools in any order", "retries"), ("sliding history", "id in tools"),
    ("blanks at line ends", "adapter"), ("hash in front", "crawler"), ("summary for history", "examples in any order"),
    ("clock", "two versions of the client"), ("salt", "batch"), ("retries", "hash in front"),
    ("sliding history", "tools in any order"),
)  # fmt: skip


def pieces(text: str) -> Int32:
    """Its tokens."""
    return np.array([crc32(one.encode()) & 0x7FFFFFFF for one in PIECE.findall(text)], np.int32)


class Language:
    """Sentences of words of which few are common."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        letters = "aeioulnrstdkmpvbgh"
        self._words = ["".join(self.dice.choices(letters, k=self.dice.randint(2, 9))) for _ in range(4000)]
        self._weights = list(accumulate(1 / (place + 3) for place in range(len(self._words))))  # sums up to each

    def sentence(self) -> str:
        if self.dice.random() < 0.06:
            return self.dice.choice(STOCK)
        some = self.dice.choices(self._words, cum_weights=self._weights, k=self.dice.randint(5, 16))
        return " ".join(some).capitalize() + self.dice.choice([".", ".", ".", "?", ";"])

    def text(self, sentences: int) -> str:
        lines = [self.sentence() for _ in range(max(sentences, 1))]
        return "".join(line + ("\n" if self.dice.random() < 0.2 else " ") for line in lines)

    def code(self, lines: int) -> str:
        names = self.dice.choices(self._words, cum_weights=self._weights, k=2 * lines)
        indents = self.dice.choices(["    ", "        ", ""], k=lines)
        return "".join(f"{indent}{names[n]} = {names[-n - 1]}({n})\n" for n, indent in enumerate(indents))

    def hexadecimal(self) -> str:
        return f"{self.dice.getrandbits(64):016x}"


@dataclass(frozen=True, slots=True)
class Letter:
    """One request, as it was sent."""

    time: float
    text: str
    service: int
    scope: Scope = PLAIN
    mended: str = ""  # the same as the advice on its fault would have it


@dataclass
class Service:
    """What one application writes."""

    number: int
    kind: str
    language: Language
    length: int  # sentences of its system prompt
    fault: str | None
    depth: float  # where in the system prompt its fault stands
    talks: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tongue = self.language
        self.system = [tongue.sentence() + "\n" for _ in range(self.length)]
        self.place = int(self.depth * (self.length - 1))
        self.shelf = [tongue.text(tongue.dice.randint(6, 14)) for _ in range(60)]  # passages, examples, profiles
        self.files = [tongue.code(tongue.dice.randint(8, 30)) for _ in range(25)]
        self.tools = [
            {"name": f"tool_{n}", "description": tongue.text(3), "parameters": {"a": tongue.sentence(), "b": "string"}}
            for n in range(tongue.dice.randint(4, 9))
        ]
        self.front: dict[int, int] = {}
        self.notes: dict[int, str] = {}
        self.rarely: dict[int, tuple[int, str]] = {}  # front and notes, were it cut as advised
        self.clock = 0

    def write(self) -> tuple[str, str]:
        """The next prompt, and the same as the advice on its fault would have it."""
        body: dict[str, Callable[[], str | tuple[str, str]]] = {
            "helpdesk": self._helpdesk, "coder": self._coder, "search": self._search, "examples": self._examples,
            "summaries": lambda: "Text:\n" + self.language.text(self.language.dice.randint(20, 60)),
            "evaluation": lambda: self.shelf[min(int(self.language.dice.expovariate(0.25)), 59)],
            "mail": lambda: f"Signature: {self._one(self.shelf)}\nDraft: {self.language.text(8)}",
        }  # fmt: skip
        head, mended_head, behind = self._head()
        written = body[self.kind]()
        text, mended = (written, written) if isinstance(written, str) else written
        text, mended = head + text, mended_head + mended + behind
        if self.fault == "two versions of the client" and self.language.dice.random() < 0.5:
            text = text.replace("### ", "## ").replace("Rules:", "Rules of the house:")
        return text, mended

    def _one(self, shelf: list[str]) -> str:
        return self.language.dice.choice(shelf)

    def _head(self) -> tuple[str, str, str]:
        """As it is, as it would be, and what would stand behind all."""
        lines, behind = ["### Rules:\n", *self.system], ""
        mended = "".join(lines)
        self.clock += self.language.dice.randint(20, 90)
        if self.fault == "clock":
            minutes, seconds = divmod(self.clock, 60)
            behind = f"It is {minutes // 60 % 24:02}:{minutes % 60:02}:{seconds:02} now.\n"
            lines.insert(1 + self.place, behind)
        if self.fault == "hash in front":
            behind = f"x-request: {self.language.hexadecimal()}\n"
            lines.insert(0, behind)
        if self.fault == "blanks at line ends":
            for place in self.language.dice.sample(range(len(lines)), 3):
                lines[place] = lines[place].replace("\n", " \n")
        return "".join(lines), mended, behind

    def _helpdesk(self) -> tuple[str, str]:
        which, talk = self._talk(14)
        talk.append(f"### User: {self.language.text(self.language.dice.randint(1, 4))}\n")
        talk.append("")  # its answer comes later
        if self.fault in ("sliding history", "summary for history") and len(talk) - self.front.get(which, 0) > 10:
            self.front[which] = self.front.get(which, 0) + 4
            if self.fault == "summary for history":
                self.notes[which] = f"So far: {self.language.text(4)}\n"
        text = self.notes.get(which, "") + "".join(talk[self.front.get(which, 0) :])
        front, notes = self.rarely.setdefault(which, (0, ""))
        mended = notes + "".join(talk[front:])
        if len(mended) > 2 * len(text):  # cut rarely and far
            self.rarely[which], mended = (self.front[which], self.notes.get(which, "")), text
        return text + "### Assistant:", mended + "### Assistant:"

    def _talk(self, most: int) -> tuple[int, list[str]]:
        """One of those that go on; its last answer is there now."""
        dice = self.language.dice
        if not self.talks:
            self.talks = [[] for _ in range(dice.randint(4, 10))]
        which = dice.randrange(len(self.talks))
        talk = self.talks[which]
        if talk and (len(talk) > 2 * most or dice.random() < 0.05):
            talk.clear()
            self.front.pop(which, None)
            self.notes.pop(which, None)
            self.rarely.pop(which, None)
        if talk:
            talk[-1] = f"### Assistant: {self.language.text(dice.randint(2, 5))}\n"
        return which, talk

    def _coder(self) -> tuple[str, str]:
        tools, behind = [json.dumps(tool) + "\n" for tool in self.tools], ""
        mended = "".join(tools)
        if self.fault == "id in tools":
            behind = f'"{self.language.hexadecimal()}"'
            tools[1] = tools[1].replace('"string"', behind)
        if self.fault == "tools in any order":
            self.language.dice.shuffle(tools)
        _, talk = self._talk(10)
        if not talk:
            talk += [f"### User: {self.language.text(3)}\n", ""]
        else:  # it reads a file, which it or another talk may have read before
            talk += [f"### Tool: {self._one(self.files)}\n", ""]
        return "".join(tools) + "".join(talk), mended + "".join(talk) + behind

    def _search(self) -> str:
        dice = self.language.dice
        chosen: list[int] = []
        while len(chosen) < 4:
            place = min(int(dice.expovariate(0.12)), len(self.shelf) - 1)
            chosen += [place] if place not in chosen else []
        return (
            "".join(f"[{n}] {self.shelf[one]}\n" for n, one in enumerate(chosen)) + f"Question: {self.language.text(1)}"
        )

    def _examples(self) -> tuple[str, str]:
        count = 0 if self.length == 3 else 7
        chosen = list(range(count))
        if self.fault == "examples in any order":
            self.language.dice.shuffle(chosen)
        item = f"Item: {self.language.text(3)}"
        text, mended = ("".join(f"Example: {self.shelf[one]}\n" for one in some) for some in (chosen, range(count)))
        return text + item, mended + item


@dataclass(repr=False)
class TextWorld:
    """A log, and which service has which fault."""

    services: list[Service]
    letters: list[Letter]
    faults: dict[str, int]
    block_size: int = 16
    memory: int = 1_800_000

    def __post_init__(self) -> None:
        self.letters.sort(key=lambda one: one.time)
        known: dict[str, Int32] = {}
        self.tokens = [known.setdefault(one.text, pieces(one.text)) for one in self.letters]

    def __repr__(self) -> str:
        made = ", ".join(f"{one.kind} ({one.fault or 'clean'})" for one in self.services)
        return f"TextWorld({len(self.letters)} requests: {made})"

    @property
    def told(self) -> dict[str, set[str]]:
        return FAULTS

    def prompts(self) -> Iterator[LoggedPrompt]:
        for line, (letter, tokens) in enumerate(zip(self.letters, self.tokens, strict=True), 1):
            yield LoggedPrompt(tokens, letter.time, letter.scope, None, line)

    def places(self, fault: str) -> range | None:
        """Tokens at which two prompts that have it can begin to differ; None: it has no place in a prompt."""
        service = self.services[self.faults[fault]]
        head = "".join(["### Rules:\n", *service.system])
        tools = [json.dumps(tool) + "\n" for tool in service.tools[:2]]
        before: dict[str, tuple[str, ...]] = {  # the text before the first and before the last of them
            "clock": ("".join(["### Rules:\n", *service.system[: service.place]]) + "It is ",),
            "hash in front": ("x-request: ",),
            "id in tools": (head + tools[0] + tools[1].partition("string")[0],),
            "tools in any order": (head + '{"name": "tool_',),
            "examples in any order": (head + "Example: ",),
            "blanks at line ends": ("### Rules:", head),
            "two versions of the client": ("##",),
            "sliding history": (head + "### User: ",),
            "summary for history": (head, head + "So far: "),
            "salt": ("",),
            "adapter": ("",),
            "blocks": (head + "Item: ",),
        }
        if fault not in before:
            return None
        first, last = (len(pieces(before[fault][end])) for end in (0, -1))
        return range(first, last + CHANCE + 1)

    def mended(self) -> TextWorld:
        """The same requests as the advice on their fault would have them; not of those that are a matter of traffic."""
        letters = [replace(one, text=one.mended, scope=PLAIN) for one in self.letters]
        return TextWorld(self.services, letters, {}, self.block_size, self.memory)

    def time_of(self, fault: str) -> tuple[float, float] | None:
        """From when to when it was, if not always."""
        times = [one.time for one in self.letters if one.service == self.faults[fault]]
        return (min(times), max(times)) if fault == "batch" else None


@st.composite
def text_worlds(draw: st.DrawFn, faults: tuple[str, ...], requests: int, planted: bool = True) -> TextWorld:
    """One to three services that are as they should be, beside one for each fault, or as it would be without."""
    language = Language(draw(st.integers(0, 1 << 30)))
    kinds: list[tuple[str, str | None]] = [(draw(st.sampled_from((TEXT | TRAFFIC)[one][0])), one) for one in faults]
    if "blocks" not in faults:
        kinds += [(draw(st.sampled_from(KINDS)), None) for _ in range(draw(st.integers(1, 3)))]
    services = [
        Service(
            n,
            kind,
            language,
            3 if fault == "blocks" else draw(st.integers(8, 60)),
            fault if planted else None,
            draw(st.floats(0, 0.7)),
        )
        for n, (kind, fault) in enumerate(kinds)
    ]
    weights = [draw(st.floats(0.6, 1.4)) for _ in services]
    letters, now = list[Letter](), 0.0
    for _ in range(requests):
        now += language.dice.expovariate(0.5)
        service = language.dice.choices(services, weights)[0]
        text, mended = service.write()
        letters.append(Letter(now, text, service.number, mended=mended))
    world = TextWorld(services, letters, {fault: n for n, fault in enumerate(faults)})
    for fault, number in world.faults.items() if planted else ():
        world = _with_traffic(world, fault, number, language)
    world.block_size = 256 if "blocks" in faults else 16
    return world


def _with_traffic(world: TextWorld, fault: str, number: int, language: Language) -> TextWorld:
    dice, letters = language.dice, world.letters
    mine = [one for one in letters if one.service == number]
    others = [one for one in letters if one.service != number]
    memory = world.memory
    if fault == "salt":
        mine = [replace(one, scope=Scope(salt=language.hexadecimal())) for one in mine]
    elif fault == "adapter":
        mine = [replace(one, scope=Scope(lora=f"user {dice.randrange(len(mine) // 4)}")) for one in mine]
    elif fault == "retries":
        mine += [replace(one, time=one.time + dice.uniform(2, 9)) for one in dice.sample(mine, len(mine) // 4)]
    elif fault in ("crawler", "batch"):
        mean = sum(len(tokens) for tokens in world.tokens) / len(letters)
        span = letters[-1].time
        mine = [
            replace(one, text=one.text + language.text(int(mean * 8 / 13)), time=span * (0.3 + 0.12 * dice.random())
                    if fault == "batch" else one.time) for one in mine
        ]  # fmt: skip
        memory = int(mean * 25)
    return TextWorld(world.services, others + mine, world.faults, world.block_size, memory)
