"""Encode: entries as plain values, packed into bytes that only this process reads. They still hold tokens.

Arrays become bytes, and of what a call answered only its size and a checksum are kept. Owns which id has which number.
Knows neither the cache nor the names that a file has in place of tokens.
"""

from __future__ import annotations

import marshal
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from quire.core.records.encoder import Encoder
from quire.core.records.identity import Scope
from quire.core.records.lasting import BlockNodes, LastingPages
from quire.core.records.request import Request
from quire.core.records.retain import Retention
from quire.incidents.record.entry import AskedRequest, Entry

MOST_IDS = 1 << 16  # that are known again; an id that comes back after so many others gets a new number
Line = tuple[Any, ...]  # verb, time, clock, given, answer


class LineEncoder:
    """Makes plain lines of entries, in order."""

    def __init__(self) -> None:
        self._ids: OrderedDict[Hashable, int] = OrderedDict()
        self._next_id = 0

    def line(self, entry: Entry) -> Line:
        """One entry."""
        verb, time, clock, given, answer = entry
        return verb, time, clock, self._given(verb, given), checksum(answer)

    def pack(self, entries: Iterable[Entry]) -> bytes:
        """Some entries; `unpack` gives their lines."""
        return zlib.compress(marshal.dumps([*map(self.line, entries)]), 1)

    def _given(self, verb: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if verb == "grow":
            rows, tokens, num_tokens = given
            return _plain(rows), None if tokens is None else _tokens(tokens), _plain(num_tokens)
        if verb in ("commit", "commit_step"):
            *others, tokens = given
            return *[self._value(value) for value in others], None if tokens is None else _come(tokens)
        if verb == "fork":
            return given[0], tuple(map(self._id, given[1]))
        return tuple([self._value(value) for value in given])

    def _value(self, value: Any) -> Any:
        """What a call is given."""
        if value is None or type(value) in (int, str, bool, float, bytes):
            return value
        kind = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        if kind is not None:
            return _PLAIN[kind](value)
        if isinstance(value, AskedRequest):
            fresh = None if value.fresh is None else self._request(value.fresh)
            return value.number, value.prepared, value.junction, fresh
        if isinstance(value, np.ndarray):
            return _plain(value)
        if isinstance(value, list | tuple):
            return tuple([self._value(item) for item in value])
        return int(value) if hasattr(value, "__index__") else float(value)

    def _request(self, request: Request) -> tuple[Any, ...]:
        words = request.words()
        return (
            self._id(request.id), request.tokens.tobytes(), None if words is None else words.tobytes(),
            request.scope.key, request.length, self._value(request.retention), request.reuse, request.reuse_limit,
            int(request.beams), int(request.extra_tokens), int(request.max_new_tokens), tuple(request.resume_points),
            self._value(request.encoder), tuple([(span.start, span.end) for span in request.uncut]), request.tenant,
            request.session, int(request.redo_blocks),
        )  # fmt: skip

    def _id(self, name: Hashable) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = self._next_id
            self._next_id += 1
            if len(self._ids) > MOST_IDS:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(name)
        return number


def unpack(packed: bytes) -> list[Line]:
    """What was packed."""
    lines: list[Line] = marshal.loads(zlib.decompress(packed))
    return lines


def checksum(answer: Any) -> Any:
    """What a call answered, in short: equal for equal answers."""
    if answer is None or type(answer) in (int, str, bool, float):
        return answer
    if isinstance(answer, np.ndarray):
        return (
            (len(answer), zlib.crc32(np.ascontiguousarray(answer, dtype=np.int32).tobytes())) if len(answer) else (0, 0)
        )
    if isinstance(answer, list | tuple):
        return tuple([checksum(item) for item in answer])
    return int(answer)


def _plain(value: Any) -> Any:
    """Rows and numbers: an array, a list, or one; which of them they were matters to the call."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, dtype=np.int32).tobytes()
    return tuple(value) if isinstance(value, list) else value


def _tokens(tokens: Any) -> bytes:
    return bytes(np.ascontiguousarray(tokens, dtype=np.int32).tobytes())


def _come(tokens: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[bytes, bytes]:
    """Tokens that came with a commit, of each row those before its first negative one: how many, and all of them."""
    table = tokens.reshape(len(tokens), tokens.shape[1] if tokens.ndim == 2 else 1)
    taken = (table >= 0).cumprod(axis=1, dtype=np.bool_)
    return _tokens(taken.sum(axis=1)), _tokens(table[taken])


def _retention(retention: Retention) -> tuple[Any, ...]:
    ranges = tuple([(one.start, one.end, one.priority, one.seconds) for one in retention.ranges])
    return ranges, retention.decode_priority, retention.decode_seconds, retention.by


def _nodes(nodes: BlockNodes) -> tuple[Any, ...]:
    arrays = (nodes.number, nodes.parent, nodes.start, nodes.tokens, nodes.words, nodes.word_at)
    return *[np.ascontiguousarray(array).tobytes() for array in arrays], nodes.roots


def _pages(pages: LastingPages) -> tuple[Any, ...]:
    arrays = zip((pages.group, pages.slot, pages.node), (np.int32, np.int32, np.int64), strict=True)
    return tuple([np.ascontiguousarray(array, dtype=kind).tobytes() for array, kind in arrays])


_PLAIN: dict[type, Callable[[Any], Any]] = {
    Retention: _retention,
    Scope: lambda scope: (scope.key,),
    Encoder: lambda encoder: (encoder.length, encoder.name()),
    BlockNodes: _nodes,
    LastingPages: _pages,
}
