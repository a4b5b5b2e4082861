"""Stops: where an answer's text reaches a stop string. One automaton for all of them; knows no tokens.

    "she", "he"    0 -s-> 1 -h-> 2 -e-> 3*      a node stands for the beginning of a stop: the longest
                   0 -h-> 4 -e-> 5*             one that the text ends with

A character costs one step, and each step back to a shorter beginning (from 2, "sh", to 4, "h") was paid for by an
earlier character: however long the stops are, a text costs at most two steps per character.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import NamedTuple

ROOT = 0
KEPT = 64  # automata of other answers, which often have the same stops


class FoundStop(NamedTuple):
    """A stop string that is complete in a text."""

    end: int  # characters of the text up to its end
    length: int


class StopSearch(NamedTuple):
    """Where a text has led."""

    node: int  # to go on from; of no use behind a stop
    found: FoundStop | None  # the one that is complete first, of several the longest


class Stops:
    """The automaton. It is never changed: many answers read by it, each from its own node."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._straight = [""]  # the character that leads from a node to the next one by number
        self._forks: dict[tuple[int, str], int] = {}  # other ways; never more than there are stops
        self._depths = array("i", [0])  # characters of the beginning that it stands for
        self._ends = array("i", [0])  # length of the longest stop that ends there; 0: none
        for stop in stops:
            self._ends[self._plant(stop)] = len(stop)
        self._shorter = self._linked()

    def depth(self, node: int) -> int:
        """Characters at the end of the text that a stop may begin with: all others are final."""
        return self._depths[node]

    def read(self, node: int, text: str, heed: bool = True) -> StopSearch:
        """Go on by a text, to its end or to the end of a stop; `heed` False: whatever is complete in it is passed."""
        for place, char in enumerate(text, start=1):
            while not (after := self._after(node, char)) and node:
                node = self._shorter[node]
            node = after
            if self._ends[node] and heed:
                return StopSearch(node, FoundStop(place, self._ends[node]))
        return StopSearch(node, None)

    def _after(self, node: int, char: str) -> int:
        return node + 1 if self._straight[node] == char else self._forks.get((node, char), ROOT)

    def _plant(self, stop: str) -> int:
        """The node of a whole stop, with the way there."""
        node = ROOT
        for char in stop:
            if after := self._after(node, char):
                node = after
                continue
            fresh = len(self._depths)
            if fresh == node + 1:
                self._straight[node] = char
            else:
                self._forks[node, char] = fresh
            self._straight.append("")
            self._depths.append(self._depths[node] + 1)
            self._ends.append(0)
            node = fresh
        return node

    def _linked(self) -> array[int]:
        """From each node to the longest shorter beginning that its own one ends with; shallow nodes first."""
        shorter = array("i", [ROOT]) * len(self._depths)
        ways = [(node, char, node + 1) for node, char in enumerate(self._straight) if char]
        ways += [(node, char, after) for (node, char), after in self._forks.items()]
        for parent, char, node in sorted(ways, key=lambda way: self._depths[way[2]]):
            if parent:
                back = shorter[parent]
                while not (after := self._after(back, char)) and back:
                    back = shorter[back]
                shorter[node] = after
            self._ends[node] = self._ends[node] or self._ends[shorter[node]]
        return shorter


@lru_cache(KEPT)
def stops_of(stops: tuple[str, ...]) -> Stops:
    """The automaton of these; answers with equal stops share it."""
    return Stops(stops)
