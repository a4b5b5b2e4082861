"""Extent: how much JSON a text holds, counted without building any of it. Knows no fields.

    text ──► which characters are outside strings ──► brackets, commas, digits ──► values, depth, digits

Pieces of the text are compared in NumPy, all of their characters at once. Each takes a few milliseconds, and between
them other threads go on: no body up to the limit keeps the event loop waiting. Of a text that is not JSON the numbers
hold up to the place where it stops to be JSON.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_DEPTH: Final = 128  # lists and objects inside each other
MOST_DIGITS: Final = 400  # of one number
PIECE: Final = 1 << 17  # bytes
_OPEN, _CLOSE, _COMMA = 1, 2, 3
_KINDS = {b"[": _OPEN, b"{": _OPEN, b"]": _CLOSE, b"}": _CLOSE, b",": _COMMA}
_MARKS: Final = bytes(_KINDS.get(bytes([code]), 0) for code in range(256))
_DIGITS: Final = bytes(code in b"0123456789" for code in range(256))
_STEPS: Final = np.array([0, 1, -1, 0], np.int8)  # by kind of mark
_QUOTE: Final = ord('"')
_NAME: Final = re.compile(rb'[{,]?\s*("(?:[^"\\]|\\.)*")')


class FieldExtent(NamedTuple):
    """One field of an object, with its name as it is written."""

    name: bytes
    values: int


class Extent:
    """Of one text: `values` are scalars, lists and objects, roughly; an empty list counts as one, as an entry does."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.values, self.depth = 1, 0
        self.deepest = 0  # the first byte that is nested so deeply
        self.long_number: int | None = None  # where the first number of too many digits is
        self._edges: list[NDArray[Any]] = []  # commas of the outermost list or object
        self._counts: list[NDArray[Any]] = []  # values before each of them
        self._depth, self._inside, self._run = 0, 0, 0  # at the end of the piece before
        plain = _without_escapes(data)
        for start in range(0, len(data), PIECE):
            self._add(plain[start : start + PIECE], start)

    def _add(self, piece: bytes, start: int) -> None:
        """One more piece of the text."""
        outside = _outside(piece, self._inside)
        marks = np.frombuffer(piece.translate(_MARKS), np.uint8) * outside
        places = np.flatnonzero(marks)
        kinds = marks[places]
        depths = np.cumsum(_STEPS[kinds], dtype=np.int32) + self._depth
        values = self.values + np.cumsum(kinds != _CLOSE, dtype=np.int32)
        if len(places):
            if (deepest := int(depths.max())) > self.depth:
                self.depth, self.deepest = deepest, start + int(places[depths.argmax()])
            between = (kinds == _COMMA) & (depths == 1)
            self._edges.append(places[between] + start)
            self._counts.append(values[between])
            self._depth, self.values = int(depths[-1]), int(values[-1])
        digits = np.frombuffer(piece.translate(_DIGITS), np.uint8) * outside
        self._add_digits(digits, start)
        self._inside = 1 - int(outside[-1])

    def _add_digits(self, digits: NDArray[Any], start: int) -> None:
        """Runs of digits, the last of which may go on in the next piece."""
        others = np.flatnonzero(digits == 0)
        ends = np.concatenate([[-1 - self._run], others, [len(digits)]])
        runs = np.diff(ends) - 1
        if self.long_number is None and runs[long := int(runs.argmax())] >= MOST_DIGITS:
            self.long_number = max(0, start + int(ends[long]) + 1)
        self._run = int(runs[-1])

    @property
    def num_sections(self) -> int:
        """Entries of the outermost list or object."""
        return 1 + sum(map(len, self._edges))

    def sections(self, most: int, least_values: int = 0) -> list[FieldExtent]:
        """The first `most` fields of the outermost object that have so many values."""
        edges = np.concatenate([[self._data.find(b"{")], *self._edges])
        values = np.diff(np.concatenate([[1], *self._counts, [self.values]]))
        chosen = np.flatnonzero(values >= least_values)[:most]
        return [FieldExtent(self._name(int(edges[nth])), int(values[nth])) for nth in chosen]

    def section_at(self, place: int) -> bytes:
        """The name of the field that a byte of the text belongs to."""
        edges = np.concatenate([[self._data.find(b"{")], *self._edges])
        return self._name(int(edges[max(0, int(np.searchsorted(edges, place)) - 1)]))

    def _name(self, place: int) -> bytes:
        matched = _NAME.match(self._data, max(place, 0))
        return b"" if matched is None else matched[1]


def outside_strings(data: bytes) -> NDArray[Any]:
    """1 for each character that is outside strings."""
    return _outside(_without_escapes(data), 0)


def _outside(plain: bytes, inside: int) -> NDArray[Any]:
    quotes = np.frombuffer(plain, np.uint8) == _QUOTE
    outside: NDArray[Any] = (np.cumsum(quotes, dtype=np.uint8) & 1) ^ np.uint8(1 - inside)
    return outside


def _without_escapes(data: bytes) -> bytes:
    """The same text with other characters in place of escaped quotes: what is left of them begins and ends strings."""
    if b"\\" not in data:
        return data
    return data.replace(rb"\\", b"__").replace(rb"\"", b"__")
