"""Shrink: a list of calls that fails, made as short as it goes while it fails in the same way. Knows lists, not caches.

First calls are taken out, then what is inside them and inside the world; all of it again until nothing can go.
What is left is minimal: no call, no item of a list and no argument can be taken out, no number made smaller by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pprint import pformat
from typing import Any

from fuzzing.compare import kind_of
from fuzzing.lists.calls import Recording, recording
from fuzzing.lists.replay import Outcome, outcome
from fuzzing.subject import StoreName

Data = dict[str, Any]
Tell = Callable[[int, int], None]  # tries so far, calls left
Key = str | int
PLAINER = {"add_watched": "add", "suspend": "release"}


class Shrinker:
    """One failing list on its way to a shorter one."""

    def __init__(self, failing: Recording, stores: Sequence[StoreName], tell: Tell | None = None) -> None:
        self.stores, self.tell = stores, tell
        self.tries = 0
        self.seen: set[str] = set()
        self.best = failing.data()
        first = outcome(failing, stores)
        if first.failure is None:
            raise ValueError("shrink: the list does not fail; give the store on which it does")
        self.kind = kind_of(first.failure)
        self.keep(first)

    def keep(self, found: Outcome) -> None:
        """What was really played until it failed is the list from now on."""
        self.best = Recording(found.world, found.calls, str(found.failure)).data()

    def fails(self, data: Data) -> bool:
        """Whether this list fails in the same way; if so it is kept."""
        text = json.dumps([data["world"], data["calls"]])
        if text in self.seen:
            return False
        self.seen.add(text)
        self.tries += 1
        if self.tell is not None:
            self.tell(self.tries, len(self.best["calls"]))
        try:
            found = outcome(recording(data), self.stores)
        except Exception:
            return False  # no such world, or no such request
        if found.failure is None or kind_of(found.failure) != self.kind:
            return False
        self.keep(found)
        return True

    def run(self) -> Recording:
        """Until no part can go."""
        before = None
        while before != (before := json.dumps(self.best)):
            self.fewer(("calls",))
            self.plainer()
            self.fewer_groups()
            self.smaller(("world",))
            self.smaller(("calls",))
        return recording(self.best)

    # -- parts -------------------------------------------------------------------------------------------------------

    def fewer(self, path: tuple[Key, ...]) -> None:
        """Take items out of a list: halves first, then less, at last one by one."""
        size = len(at(self.best, path))
        while size:
            end = len(at(self.best, path))
            while end > 0:
                start = max(0, end - size)
                items = at(self.best, path)
                self.fails(changed(self.best, path, items[:start] + items[end:]))
                end = min(start, len(at(self.best, path)))
            size //= 2

    def plainer(self) -> None:
        """Put a plainer call in the place of one, or of a claim and its admission."""
        for place in reversed(range(len(self.best["calls"]))):
            if place < len(self.best["calls"]):
                call = self.best["calls"][place]
                if call["call"] in PLAINER:
                    self.fails(changed(self.best, ("calls", place), {**call, "call": PLAINER[call["call"]]}))
                elif call["call"] == "admit":
                    self.fails({**self.best, "calls": at_once(self.best["calls"], place)})

    def fewer_groups(self) -> None:
        """Take layer groups out of the world, and out of the calls that name one."""
        place = len(self.best["world"]["tiers"][0]) - 1
        while place >= 0:
            self.fails(without_group(self.best, place))
            place = min(place, len(self.best["world"]["tiers"][0])) - 1

    def smaller(self, path: tuple[Key, ...]) -> None:
        """Make a value smaller, whatever it is; a shorter list may move what comes after it, so paths may end."""
        value = at(self.best, path)
        if isinstance(value, dict):
            for key in list(value):
                there = at(self.best, path)
                if isinstance(there, dict) and key in there:
                    less = {name: item for name, item in there.items() if name != key}
                    if not self.fails(changed(self.best, path, less)):
                        self.smaller((*path, key))
        elif isinstance(value, list):
            self.fewer(path)
            place = 0
            while isinstance(there := at(self.best, path), list) and place < len(there):
                self.smaller((*path, place))
                place += 1
        elif isinstance(value, int) and not isinstance(value, bool):
            for number in lower(value):
                if self.fails(changed(self.best, path, number)):
                    return self.smaller(path)


def lower(number: int) -> Iterator[int]:
    """Numbers nearer to zero, the nearest first."""
    tried = {0, number // 2, number - 1} if number > 0 else set()
    yield from sorted(tried - {number})


def at(data: Any, path: Sequence[Key]) -> Any:
    """What is at the end of a path; None where it does not lead."""
    for key in path:
        if not (key in data if isinstance(data, dict) else isinstance(data, list) and int(key) < len(data)):
            return None
        data = data[key]
    return data


def changed(data: Any, path: Sequence[Key], value: Any) -> Any:
    """The same with another value at the end of a path."""
    if not path:
        return value
    copy: Any = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


def at_once(calls: list[Data], place: int) -> list[Data]:
    """The same calls with an admission and its claim in one."""
    admit = calls[place]
    claims = [at for at in range(place) if calls[at]["call"] == "claim" and calls[at]["key"] == admit["key"]]
    given = {**calls[claims[0]], **admit, "call": "add"}
    added = {name: value for name, value in given.items() if name not in ("key", "purpose")}
    return [*calls[: claims[0]], *calls[claims[0] + 1 : place], added, *calls[place + 1 :]]


def without_group(data: Data, place: int) -> Data:
    """The same with one layer group less."""
    world = dict(data["world"])
    world["tiers"] = [slots[:place] + slots[place + 1 :] for slots in world["tiers"]]
    if "groups" in world:
        world["groups"] = world["groups"][:place] + world["groups"][place + 1 :]
    calls = []
    for call in data["calls"]:
        group = call.get("group", 0)
        if call["call"] != "offload" or group < place:
            calls.append(call)
        elif group > place:
            calls.append({**call, "group": group - 1})
    return {**data, "world": world, "calls": calls}


def as_test(short: Recording, name: str) -> str:
    """A list as a test that is ready to be run."""
    data = short.data()
    calls = "\n".join(f"        {call!r}," for call in data["calls"])
    world = pformat(data["world"], width=108, sort_dicts=False).replace("\n", "\n        ")
    return f'''"""{short.what}"""

import pytest

from fuzzing.lists.calls import recording
from fuzzing.lists.replay import replay
from fuzzing.subject import available_stores

LIST = {{
    "world": {world},
    "calls": [
{calls}
    ],
}}


@pytest.mark.parametrize("store", available_stores())
def test_{name}(store):
    replay(recording(LIST), [store])
'''
