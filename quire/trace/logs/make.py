"""make: files of logged requests, lengths, traces or recorded sessions become one trace, in bounded memory.

The first line of a file says what it has; all files of one trace have the same. Prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.records.errors import InputError, say
from quire.trace.logs.aiperf import AIPerfTurns
from quire.trace.logs.arrival_order import ArrivalOrder
from quire.trace.logs.joined import JoinedTraces
from quire.trace.logs.lengths import LengthLog
from quire.trace.logs.request_maker import RequestMaker
from quire.trace.logs.session_lines import LineFormat, read_lines
from quire.trace.logs.sessions import TRACELAB, WEKA, Begin, Read, SessionMix, as_recorded, begins
from quire.trace.logs.tracelab import TraceLabRounds
from quire.trace.logs.weka import files_of, read_weka
from quire.trace.prompts.arrival_times import ArrivalTimes, check_rate
from quire.trace.prompts.fields import INPUT_COUNTS, Fields, body_of, count_of
from quire.trace.prompts.log_lines import LONGEST_LOG_LINE, read_object, take_ids
from quire.trace.prompts.prompt_tokenizer import PromptTokenizer
from quire.trace.prompts.request_log import RequestLog
from quire.trace.read.lines import LONGEST, LineReader, TraceError, Wrong
from quire.trace.read.not_a_trace import session_cure
from quire.trace.read.streams import STDIN, BrokenStream, open_lines
from quire.trace.record.block_ids import TraceKey
from quire.trace.record.trace_writer import TraceRecord, TraceWriter, iso_text

BLOCK_SIZE = 16  # tokens, of logs: that of most engines
KEPT_ERRORS = 10
REQUESTS, LENGTHS, TRACE = "requests", "lengths", "traces"


@dataclass(frozen=True, slots=True)
class MakeOptions:
    """How a trace is made."""

    tokenizer: str | None = None  # folder
    block_size: int | None = None  # None: 16 for logs, else as it is
    time_field: str | None = None
    time_unit: str | None = None
    rate: float | None = None  # requests per second, where a log has no times; of sessions, how many begin
    scope_fields: tuple[str, ...] = ()
    session_field: str | None = None  # None: one of the usual names
    skip_bad: bool = False
    limit: int | None = None
    drop_tools: bool = False  # that the template does not print
    seed: int = 0  # of when sessions begin

    def __post_init__(self) -> None:
        for name, value, most in (("block_size", self.block_size, LONGEST), ("limit", self.limit, 1 << 62)):
            if value is not None and not 1 <= value <= most:
                raise InputError(say(f"--{name.replace('_', '-')} {value}", "it is out of range", f"give 1 to {most}"))
        check_rate(self.rate)


@dataclass(slots=True)
class Made:
    """What came of it."""

    kind: str = ""
    requests: int = 0
    skipped: int = 0
    errors: list[TraceError] = field(default_factory=list)  # the first of those skipped
    late: int = 0
    times: str = ""  # where they came from
    summary: dict[str, Any] = field(default_factory=dict)  # of the end mark
    notes: list[str] = field(default_factory=list)

    def skip(self, wrong: TraceError) -> None:
        """One more that is left out."""
        self.skipped += 1
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append(wrong)


class Maker:
    """Makes one trace."""

    def __init__(self, options: MakeOptions, key: TraceKey, write: Callable[[bytes], object], alone: bool) -> None:
        self._options, self._key, self._write = options, key, write
        self.made = Made()
        times = ArrivalTimes(options.time_field, options.time_unit, options.rate)
        self._times = times
        self._order = ArrivalOrder(self._put)
        folder = options.tokenizer
        size = options.block_size or BLOCK_SIZE
        log = RequestLog(times, options.scope_fields, options.session_field)
        opener = None if folder is None else lambda: PromptTokenizer(folder)
        self._requests = RequestMaker(log, opener, key, size, self._order.add, drop_tools=options.drop_tools)
        self._lengths = LengthLog(times, options.block_size)
        self._joined = JoinedTraces(write, options.block_size, alone)
        self._writer: TraceWriter | None = None
        self._began = 0.0
        self._table = False  # this file is one
        self._opened = False  # its first line has been understood

    @property
    def is_full(self) -> bool:
        """Whether there are as many requests as were wanted."""
        return self._options.limit is not None and self.made.requests >= self._options.limit

    def read(self, path: str | Path, passed: Callable[[int], None] | None = None) -> None:
        """All lines of one file."""
        name = "standard input" if str(path) == STDIN else Path(path).name
        reader = LineReader(name)
        self._table = self._opened = False
        number = 0
        with open_lines(path, LONGEST_LOG_LINE, passed=passed) as texts:
            try:
                for text in texts:
                    number += 1
                    self._line(text, reader, number)
                    if self.is_full:
                        break
            except BrokenStream as broken:
                self._bad(TraceError(name, number + 1, str(broken), "fetch the file again"))

    def _line(self, text: bytes, reader: LineReader, number: int) -> None:
        reader.number = number - 1  # it counts for itself
        try:
            if len(text) > LONGEST_LOG_LINE:
                raise Wrong(f"it is longer than {LONGEST_LOG_LINE:,} bytes", "write one request per line")
            if text.strip():
                self.made.requests += self._understand(text, reader)
        except Wrong as error:
            self._bad(TraceError(reader.name, number, *error.args))
        except TraceError as error:
            self._bad(error)
        except RecursionError:
            self._bad(TraceError(reader.name, number, "it is nested too deep", "write the request as it was sent"))

    def _bad(self, wrong: TraceError) -> None:
        if not self._options.skip_bad:
            raise wrong
        self.made.skip(wrong)

    def _understand(self, text: bytes, reader: LineReader) -> int:
        """One line of whatever the file has; how many requests it was."""
        if self._opened and self.made.kind == TRACE:
            return self._joined.add(text)
        if self._table:
            self._order.add(self._lengths.read_row(text))
            return 1
        if not self._opened and text.lstrip(b"\xef\xbb\xbf \t")[:1] != b"{":
            self._lengths.begin_table(text)
            self._open(LENGTHS)
            self._table = True
            return 0
        short, ids = take_ids(text)
        fields = read_object(short)
        if not self._opened:
            self._open(_kind(fields))
            if self.made.kind == TRACE:
                self._joined.begin(reader)
                return self._joined.add(text)
        if self.made.kind == REQUESTS:
            return self._requests.add(fields, ids)
        self._order.add(self._lengths.read(fields))
        return 1

    def _open(self, kind: str) -> None:
        if self.made.kind not in ("", kind):
            fact = f"it has {kind}, and what came before has {self.made.kind}"
            raise InputError(say("these files", fact, "make a trace of each"))
        self.made.kind, self._opened = kind, True

    def _put(self, record: TraceRecord) -> None:
        """Into the trace, in order of arrival."""
        if self._writer is None:
            self._began = record.time_ms
            began = iso_text(record.time_ms)
            known = self.made.kind == REQUESTS
            size = self._options.block_size or BLOCK_SIZE if known else self._lengths.block_size
            header = {"block_size": size, "from": self.made.kind} | ({"began": began} if began else {})
            header |= {"key": self._key.fingerprint} if known else {"sharing": "unknown"}
            self._writer = TraceWriter(self._write, header)
        self._writer.add(record.line(self._began))

    def end(self) -> Made:
        """Whatever is still on its way, and the end mark."""
        made = self.made
        self._requests.flush()
        self._order.end()
        made.late = self._order.num_late
        losses = {name: count for name, count in (("skipped", made.skipped), ("late", made.late)) if count}
        if made.kind == REQUESTS:
            losses |= self._requests.summary()
        made.summary = losses
        made.requests = self._writer.num_requests if self._writer is not None else self._joined.num_requests
        if not made.requests:
            raise InputError(
                say("a trace", "there are no requests in what was read", "see docs/trace.md for the forms")
            )
        if self._writer is not None:
            self._writer.end(losses)
            made.times = self._times.told()
        self._joined.end(losses)
        made.notes = [*self._requests.notes, *self._joined.notes]
        return made


def make(
    inputs: Sequence[str | Path], options: MakeOptions, key: TraceKey, write: Callable[[bytes], object],
    passed: Callable[[int], None] | None = None,
) -> Made:  # fmt: skip
    """One trace of all of `inputs`; `passed` hears how many more bytes of them were read."""
    maker = Maker(options, key, write, alone=len(inputs) == 1 and options.block_size is None)
    for path in inputs:
        maker.read(path, passed)
        if maker.is_full:
            break
    return maker.end()


def make_sessions(
    source: str, inputs: Sequence[str], options: MakeOptions, write: Callable[[bytes], object],
    passed: Callable[[int], None] | None = None,
) -> Made:  # fmt: skip
    """One trace of recorded agent sessions, which begin at `options.rate` per second, or as they did."""
    made = Made(source)

    def skip(wrong: TraceError) -> None:
        if not options.skip_bad:
            raise wrong
        made.skip(wrong)

    mix, writer = SessionMix(options.block_size, skip), None
    for record in mix.records(_begins(source, inputs, options, made, skip, passed)):
        if writer is None:
            header = {"block_size": mix.block_size, "from": source}
            if options.rate is not None:
                header["arrivals"] = {"sessions_per_second": options.rate, "model": "poisson", "seed": options.seed}
            writer = TraceWriter(write, header)
        writer.add(record.line(0.0))
        if writer.num_requests == options.limit:
            break
    if writer is None:
        raise InputError(say("a trace", "there are no requests in what was read", "see docs/trace.md for the forms"))
    made.requests = writer.num_requests
    made.summary = {"sessions": mix.num_sessions} | ({"skipped": made.skipped} if made.skipped else {})
    writer.end(made.summary)
    return made


def _begins(
    source: str, inputs: Sequence[str], options: MakeOptions, made: Made, skip: Callable[[TraceError], None],
    passed: Callable[[int], None] | None,
) -> list[Begin]:  # fmt: skip
    """The sessions of all inputs, and when each begins."""
    if source == WEKA:
        reads: list[Read] = [partial(read_weka, path, passed) for path in files_of(list(inputs))]
        known = None
    else:
        form: LineFormat = (TraceLabRounds if source == TRACELAB else AIPerfTurns)(options.block_size)
        read_lines(inputs, form, skip, passed)
        found = form.sessions()
        reads, known, made.notes = [one.read for one in found], as_recorded(found), list(form.notes)
    if options.rate is not None:
        made.times = f"sessions begin at {options.rate * 3600:g} an hour, at random (seed {options.seed})"
        return begins(reads, options.rate, options.seed)
    if known is None and reads:
        cure = "pass --rate, such as 30/h: how many sessions begin"
        raise InputError(say("a trace of sessions", "nothing says how soon after each other they begin", cure))
    made.times = "as they were recorded"
    return known or []


def _kind(fields: Fields) -> str:
    if "hash_ids" in fields or {"time_ms", "prompt", "output_tokens"} <= fields.keys():
        return TRACE
    if body_of(fields) is not None:
        return REQUESTS
    if count_of(fields, INPUT_COUNTS) is not None:
        return LENGTHS
    cure = session_cure(fields) or "see docs/trace.md for the forms"
    raise Wrong("it has no messages, no prompt, no lengths and no hash ids", cure)
