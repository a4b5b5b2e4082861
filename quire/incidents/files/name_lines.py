"""NameLines: the lines of a file from those of the ring: numbers for whatever could say something of a text or a user.

Two passes over the same calls: one reads every text, in order, and the other writes each line with the names that
follow from all of them. Owns where texts are in calls. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from quire.core.records.config import CacheConfig
from quire.core.records.identity import digest_of
from quire.incidents.files.naming import TextEnd, TokenNames, encoder_digests
from quire.incidents.record.encode import Line

Plain = list[Any]
ASKED = ("claim", "add", "find", "writer", "prefetch", "truncate")  # calls that name requests, first of all


class NameLines:
    """The lines of one file."""

    def __init__(self, config: CacheConfig) -> None:
        slots = [sum(config.slots_of(tier, group) for tier in range(len(config.tiers))) for group in _groups(config)]
        self._names = TokenNames(config.block_size, max(slots))
        self._size = config.block_size
        self._found: list[slice] = []  # of every text, in the order of the calls
        self._requests: dict[int, TextEnd] = {}
        self._num_unknown = 0
        self._rows: dict[int, TextEnd] = {}
        self._writers: dict[int, TextEnd] = {}
        self._encoders: dict[bytes, int] = {}
        self._taken: Iterator[slice] = iter(())
        self._digests: dict[bytes, bytes] = {}

    def lines(self, lines: list[Line]) -> Iterator[Plain]:
        """Every line as JSON takes it."""
        for line in lines:
            self._read(line)
        self._names.settle()
        self._taken = iter(self._found)
        self._digests = encoder_digests([(length, name) for name, length in self._encoders.items()])
        return map(self._named, lines)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, line: Line) -> None:
        verb, _, _, given, answer = line
        if verb in ASKED:
            many = given[0] if verb in ("claim", "add") else (given[0],)
            for number, _, _, fresh in many:
                if fresh is not None:
                    self._read_request(number, fresh)
        if verb in ("add", "admit"):
            for number, row, _, _ in answer[0]:
                self._rows[row] = self._request(number).copy()
        elif verb == "grow" and given[1] is not None:
            self._read_grown(given, kept=answer is not None)
        elif verb in ("commit", "commit_step") and given[-1] is not None:
            counts, tokens = (np.frombuffer(part, np.int32) for part in given[-1])
            self._read_rows([self._row(row) for row in _rows(given[-3])], counts, tokens)
        elif verb == "trim":
            for row, length in zip(_rows(given[0]), answer[1], strict=True):
                place = self._row(row)
                place.cut(min(length, place.length), self._size)
        elif verb == "fork" and answer is not None:
            for row in answer[0]:
                self._rows[row] = self._row(given[0]).copy()
        elif verb == "suspend" and given[1] is not None:
            self._text(self._row(given[0]).copy(), given[1])
        elif verb == "hint":
            self._text(self._names.begin(digest_of(given[2][0])), given[0])
        elif verb == "writer" and isinstance(answer[0], int):
            self._writers[answer[0]] = self._request(given[0][0]).copy()
        elif verb == "extend_writer" and given[1] is not None:
            place = self._writers.get(given[0]) or self._unknown()
            self._text(place if isinstance(answer[0], tuple | list) else place.copy(), given[1])
        elif verb == "restore":
            self._read_restored(given[0])

    def _unknown(self) -> TextEnd:
        """A text that began before the first call that is left."""
        self._num_unknown += 1
        return self._names.begin(b"unknown %d" % self._num_unknown)

    def _request(self, number: int) -> TextEnd:
        return self._requests.get(number) or self._unknown()

    def _row(self, row: int) -> TextEnd:
        if row not in self._rows:
            self._rows[row] = self._unknown()
        return self._rows[row]

    def _text(self, place: TextEnd, tokens: bytes) -> None:
        self._found.append(self._names.read(place, np.frombuffer(tokens, np.int32)))

    def _read_request(self, number: int, fresh: Any) -> None:
        tokens = np.frombuffer(fresh[1], np.int32)
        words = None if fresh[2] is None else np.frombuffer(fresh[2], np.uint64).reshape(-1, 3)
        length, encoder = fresh[4], fresh[12]
        name = None
        if encoder is not None:
            name = encoder[1] or b"request %d" % number
            if encoder[1] is not None:
                self._encoders[name] = encoder[0]
        place = self._names.begin(digest_of(fresh[3]), name)
        self._found.append(self._names.read(place, tokens, words))
        if length is not None and length < len(tokens):
            place.cut(length, self._size)
        self._requests[number] = place

    def _read_grown(self, given: Any, kept: bool) -> None:
        rows, tokens = _rows(given[0]), np.frombuffer(given[1], np.int32)
        places = [self._row(row) if kept else self._row(row).copy() for row in rows]
        self._read_rows(places, _counts(given, len(rows)), tokens)

    def _read_rows(self, places: list[TextEnd], counts: Any, tokens: Any) -> None:
        """One token after the other, of all rows at once; some have more than others."""
        starts = np.cumsum(counts) - counts
        for nth in range(int(counts.max(initial=0))):
            there = np.flatnonzero(counts > nth)
            self._found.append(self._names.read_each([places[place] for place in there], tokens[starts[there] + nth]))

    def _read_restored(self, nodes: Any) -> None:
        numbers, parents = (np.frombuffer(nodes[nth], np.int64).tolist() for nth in (0, 1))
        start, tokens = np.frombuffer(nodes[2], np.int64), np.frombuffer(nodes[3], np.int32)
        words = np.zeros((len(tokens), 3), np.uint64)
        words[np.frombuffer(nodes[5], np.int64)] = np.frombuffer(nodes[4], np.uint64).reshape(-1, 3)
        places: dict[int, TextEnd] = {}
        for nth, (number, parent) in enumerate(zip(numbers, parents, strict=True)):
            under = self._names.begin(nodes[6][-1 - parent]) if parent < 0 else places[parent].copy()
            part = slice(start[nth], start[nth + 1])
            self._found.append(self._names.read(under, tokens[part], words[part]))
            places[number] = under

    # -- writing -----------------------------------------------------------------------------------------------------

    def _named(self, line: Line) -> Plain:
        verb, time, clock, given, answer = line
        return [verb, time, list(clock), self._given(verb, given), answer]

    def _given(self, verb: str, given: Any) -> Plain:
        if verb in ("claim", "add"):
            return [[*map(self._asked, given[0])], *given[1:]]
        if verb in ASKED:
            return [self._asked(given[0]), *given[1:]]
        if verb == "grow":
            counts = None if given[1] is None else _counts(given, len(_rows(given[0])))
            return [_plain_rows(given[0]), None if counts is None else self._columns(counts), _numbers(given[2])]
        if verb in ("commit", "commit_step"):
            *number, rows, ends, made = given
            counts = None if made is None else np.frombuffer(made[0], np.int32)
            come = None if counts is None else [counts.tolist(), self._columns(counts)]
            return [*number, _plain_rows(rows), _numbers(ends), come]
        if verb == "trim":
            return [_plain_rows(given[0]), _numbers(given[1])]
        if verb == "launch":
            return [_plain_rows(given[0])]
        if verb == "suspend":
            return [given[0], None if given[1] is None else self._next()]
        if verb == "hint":
            return [self._next(), given[1], self._names.scope(digest_of(given[2][0])), given[3]]
        if verb == "forget":
            return [self._names.scope(digest_of(given[0][0]))]
        if verb == "extend_writer":
            return [given[0], None if given[1] is None else self._next(), *given[2:]]
        if verb == "restore":
            return self._restored(given)
        return list(given)

    def _next(self) -> list[int]:
        return self._names.taken(next(self._taken))

    def _columns(self, counts: Any) -> list[list[int]]:
        """What was read of several rows at once."""
        return [self._next() for _ in range(int(counts.max(initial=0)))]

    def _asked(self, asked: Any) -> Plain:
        number, prepared, junction, fresh = asked
        return [number, prepared, junction, None if fresh is None else self._spec(fresh)]

    def _spec(self, fresh: Any) -> dict[str, Any]:
        (name, _, _, scope, length, retention, reuse, limit, beams, extra, new, points, encoder, uncut, tenant,
         session, redo) = fresh  # fmt: skip
        line: dict[str, Any] = {"id": name, "tokens": self._next()}
        numbers = self._names.scope(digest_of(scope))
        digest = None if encoder is None or encoder[1] is None else self._digests[encoder[1]].hex()
        others = {
            "scope": numbers if any(part is not None for part in numbers) else None, "length": length,
            "retention": retention, "reuse_limit": limit, "beams": beams if beams > 1 else None,
            "extra_tokens": extra or None, "max_new_tokens": new or None, "resume_points": list(points) or None,
            "encoder": None if encoder is None else [encoder[0], digest], "uncut": list(uncut) or None,
            "tenant": self._names.number("tenant", tenant), "session": self._names.number("session", session),
            "reuse": None if reuse else False, "redo_blocks": redo or None,
        }  # fmt: skip
        return line | {name: value for name, value in others.items() if value is not None}

    def _restored(self, given: Any) -> Plain:
        nodes, pages = given
        numbers, parents = (np.frombuffer(nodes[nth], np.int64).tolist() for nth in (0, 1))
        tokens = [self._next() for _ in numbers]
        roots = [self._names.scope(digest) for digest in nodes[6]]
        kinds = (np.int32, np.int32, np.int64)
        where = [np.frombuffer(part, kind).tolist() for part, kind in zip(pages, kinds, strict=True)]
        return [numbers, parents, tokens, roots, where]


def _groups(config: CacheConfig) -> Iterable[int]:
    return range(len(config.groups))


def _rows(rows: Any) -> list[int]:
    if isinstance(rows, bytes):
        found: list[int] = np.frombuffer(rows, np.int32).tolist()
        return found
    return [rows] if isinstance(rows, int) else list(rows)


def _plain_rows(rows: Any) -> Any:
    """One number, a list, or an array, which begins with a word."""
    return ["rows", *_rows(rows)] if isinstance(rows, bytes) else rows


def _counts(given: Any, num_rows: int) -> Any:
    """Of a grow with tokens: how many each row gets."""
    if isinstance(given[2], bytes):
        return np.frombuffer(given[2], np.int32)
    return np.full(num_rows, len(given[1]) // 4 // max(1, num_rows), np.int32)


def _numbers(some: Any) -> Any:
    """One number, or a list from an array."""
    return np.frombuffer(some, np.int32).tolist() if isinstance(some, bytes) else some
