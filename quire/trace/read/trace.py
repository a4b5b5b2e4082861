"""Trace: the requests of a recorded or written workload, in order of arrival. Reads files; knows no tokens.

A trace is JSON lines, plain, gzip or zstd, of one of two kinds (docs/replay.md): Mooncake's (`hash_ids`) or Quire's own
(`prompt`). A prompt is a row of *parts*: equal parts are equal tokens, and a shorter part is the beginning of a longer
one of the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope
from quire.core.records.retain import RetainRange
from quire.trace.read.lines import LONGEST_LINE, MOONCAKE_BLOCK, PLAIN, LineReader, TraceError, TraceLine
from quire.trace.read.streams import BrokenStream, open_lines
from quire.trace.record.trace_writer import Interruption
from quire.trace.units import Int64

_SHIPPED = Path(__file__).parent / "samples"
SAMPLE, SAMPLE_AGENTS = _SHIPPED / "conversation-1000.jsonl.gz", _SHIPPED / "agents-1000.jsonl.gz"
SAMPLES = {"sample": SAMPLE, "sample-agents": SAMPLE_AGENTS}  # by the names that stand for them
OTHERS = f", or {' or '.join(repr(name) for name in SAMPLES)}"  # than a file
MOST_REQUESTS = 1 << 22  # of one trace; each takes about a kilobyte here
MOST_PARTS = 1 << 26  # of all its prompts together; each takes up to 40 bytes
MOST_BAD = 1 << 16  # lines that are skipped
_TOKEN_IDS = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """One request of a trace."""

    number: int  # place in the trace, by arrival
    time: float  # seconds, by the trace's own clock: only differences matter
    parts: Int64
    length: int  # prompt tokens
    output: int  # tokens it generates
    unit: int = 0  # tokens of every part but the last; 0: `counts` says
    counts: Int64 | None = None
    scope: Scope = PLAIN
    priority: int = 0  # larger ones are served first
    retain: tuple[RetainRange, ...] = ()
    reuse: bool = True
    line: int = 0
    id: str | None = None  # as the trace names it
    session: int | str | None = None  # requests of one conversation or agent have the same
    finish: str | None = None  # why its answer ended: "stop", "tool_calls", "length", ...
    interrupted: Interruption | None = None  # where few tokens part it from an earlier prompt
    back: Back | None = None  # when its text comes back, as was said when it ended

    @property
    def sizes(self) -> Int64:
        """Tokens of each part; they add up to `length`."""
        if self.counts is not None:
            return self.counts
        sizes = np.full(len(self.parts), self.unit, np.int64)
        sizes[-1] = self.length - self.unit * (len(self.parts) - 1)
        return sizes


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; list-like."""

    name: str
    requests: list[TraceRequest]
    unit: int = 0  # tokens of the trace's own blocks; 0: it has none
    skipped: tuple[TraceError, ...] = ()
    lengths_only: bool = False  # what its prompts have in common is not known

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)

    def __getitem__(self, place: int) -> TraceRequest:
        return self.requests[place]

    def head(self, num_requests: int) -> Trace:
        """The first of them."""
        return replace(self, requests=self.requests[:num_requests])

    @property
    def longest(self) -> int:
        """Tokens of the longest request, generated ones included."""
        return max(request.length + request.output for request in self.requests)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all of them."""
        return sum(request.length for request in self.requests)


def read_trace(path: str | Path, *, limit: int | None = None, skip_bad: bool = False, unit: int | None = None) -> Trace:
    """Read a whole trace; "sample" and "sample-agents" come with Quire. A bad line raises, or is counted and left out.

    `unit` is the number of tokens per hash id; None: as the trace says, or Mooncake's 512.
    """
    source = SAMPLES.get(str(path)) or Path(path)
    reader = LineReader(source.name, unit)
    lines: list[TraceLine] = []
    skipped: list[TraceError] = []
    room = MOST_PARTS
    with open_lines(source, LONGEST_LINE, others=OTHERS) as texts:
        for fact in _facts(texts, reader):
            if isinstance(fact, TraceError):
                if not skip_bad:
                    raise fact
                skipped.append(fact)
                _check_bad(reader, skipped)
                continue
            room -= len(fact.names)
            _check_room(reader, len(lines), room)
            lines.append(fact)
            if limit is not None and len(lines) >= limit:
                break
    if not lines:
        raise TraceError(source.name, 0, "it has no requests", "pass JSON lines, one request in each")
    own = (reader.unit or MOONCAKE_BLOCK) if reader.kind == "mooncake" else 0
    return Trace(source.name, _requests(lines, own), own, tuple(skipped), reader.lengths_only)


def _check_bad(reader: LineReader, skipped: list[TraceError]) -> None:
    if len(skipped) > MOST_BAD:
        raise reader.wrong(f"{MOST_BAD:,} lines before it are broken, too", "pass a trace (docs/replay.md)")


def _check_room(reader: LineReader, num_requests: int, room: int) -> None:
    """A file of any size, zipped or not, takes bounded memory."""
    if num_requests >= MOST_REQUESTS or room < 0:
        most = f"{MOST_REQUESTS:,} requests" if room >= 0 else f"{MOST_PARTS:,} parts of prompts"
        cure = "split the trace, or take its beginning (--limit)"
        raise reader.wrong(f"{most} are the most that can be replayed", cure)


def _facts(texts: Iterator[bytes], reader: LineReader) -> Iterator[TraceLine | TraceError]:
    """Lines as they come, and what is wrong with the others; a broken file ends the trace."""
    while True:
        try:
            text = next(texts, b"")
        except BrokenStream as broken:
            yield reader.wrong(str(broken), "fetch the file again", ahead=1)
            return
        if not text:
            return
        try:
            line = reader.read(text)
        except TraceError as error:
            yield error
            continue
        if line is not None:
            yield line


def _requests(lines: list[TraceLine], unit: int) -> list[TraceRequest]:
    """In order of arrival, parts numbered so that their tokens fit into int32."""
    lines.sort(key=lambda line: line.time)  # stable
    names: dict[object, int] = {}
    dense = unit > 0 and all(max(line.names) < _TOKEN_IDS // unit for line in lines)  # type: ignore[type-var, operator]
    requests = []
    for number, line in enumerate(lines):
        if dense:
            parts = np.array(line.names, np.int64)
        else:
            parts = np.fromiter((_numbered(names, name) for name in line.names), np.int64, len(line.names))
        counts = None if unit else np.array(line.sizes, np.int64)
        request = TraceRequest(
            number, line.time, parts, line.length, line.output, unit, counts, line.scope, line.priority,
            line.retain, line.reuse, line.number, line.id, line.session, line.finish, line.interrupted,
            line.back,
        )  # fmt: skip
        requests.append(request)
    return requests


def _numbered(names: dict[object, int], name: int | str | None) -> int:
    """In order of appearance; a part without a name is like no other."""
    return names.setdefault(object() if name is None else name, len(names))


def shared(one: TraceRequest, other: TraceRequest) -> int:
    """Tokens of the prefix that two prompts share."""
    if one.scope != other.scope:
        return 0
    count = min(len(one.parts), len(other.parts))
    if one.unit and one.unit == other.unit:
        alike = one.parts[:count] == other.parts[:count]
        whole = count if alike.all() else int(alike.argmin())
        return min(whole * one.unit, one.length, other.length)
    same = (one.parts[:count] == other.parts[:count]) & (one.sizes[:count] == other.sizes[:count])
    whole = count if same.all() else int(same.argmin())
    rest = 0
    if whole < count and one.parts[whole] == other.parts[whole]:
        rest = int(min(one.sizes[whole], other.sizes[whole]))
    return int(one.sizes[:whole].sum()) + rest


def share_token(one: TraceRequest, other: TraceRequest, token: int) -> bool:
    """Whether two prompts are alike up to a token, and it is the same one in both."""
    if not one.unit or one.unit != other.unit:
        return part_at(one, token) == part_at(other, token) and shared(one, other) > token
    if token >= one.length or token >= other.length or one.scope != other.scope:
        return False
    last = token // one.unit
    if one.parts.item(last) != other.parts.item(last):
        return False  # the usual case
    return one.parts[:last].tobytes() == other.parts[:last].tobytes()


def part_at(request: TraceRequest, token: int) -> int:
    """The part of its prompt that a token is in; -1 behind the end."""
    if token >= request.length:
        return -1
    if request.counts is None:
        return request.parts.item(token // request.unit)
    return int(request.parts[np.searchsorted(np.cumsum(request.counts), token, side="right")])
