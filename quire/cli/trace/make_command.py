"""quire trace make: requests as they were logged, or traces, become a trace of block ids, without text or tokens."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from quire import InputError
from quire.cli.trace.progress import progress
from quire.core.records.errors import say
from quire.trace.logs.make import LENGTHS, REQUESTS, TRACE, Made, MakeOptions, make, make_sessions
from quire.trace.logs.sessions import SESSIONS, WEKA
from quire.trace.logs.weka import files_of
from quire.trace.prompts.arrival_times import UNITS
from quire.trace.read.streams import STDIN, zstd
from quire.trace.record.block_ids import TraceKey, read_key
from quire.trace.record.output_file import OutputFile, Pack, pack_gzip

_FROM = {REQUESTS: "logged prompts", LENGTHS: "logged lengths", TRACE: "traces"}
_PER = {"s": 1.0, "min": 60.0, "h": 3600.0}  # seconds


def add_options(parser: ArgumentParser) -> None:
    """What `make` takes."""
    parser.set_defaults(act=run)
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT",
        help="OpenAI-style logs, tables of lengths, or traces; plain, gzip or zstd; '-' is standard input",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="source", choices=SESSIONS,
        help="INPUT are recorded sessions: weka: files of kv-cache-tester, or folders of them; tracelab: TraceLab's "
        "rounds; aiperf: AIPerf's mooncake_trace with sessions",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", default=STDIN, metavar="FILE", help="FILE.jsonl[.gz|.zst]; default: standard output"
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="of the model that was asked: its tokenizer's files")
    parser.add_argument(
        "--drop-tools", action="store_true",
        help="leave out tools that the chat template does not print: the model that was asked did not see them either",
    )  # fmt: skip
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="tokens per hash id (default 16 for logs, 512 for lengths)"
    )
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="a secret for the ids, made if it is not there: traces with one can be joined",
    )
    _add_log_options(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used and go on")


def _add_log_options(parser: ArgumentParser) -> None:
    """When a request came, and whose it was."""
    parser.add_argument("--time-field", metavar="NAME", help="of arrivals, such as created_at or meta.received")
    parser.add_argument("--time-unit", choices=UNITS, help="of times that are not since the epoch")
    parser.add_argument(
        "--rate", type=rate_of, metavar="N[/s|/min|/h]",
        help="requests per second, for logs without times; with --from: how many sessions begin, such as 30/h",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with --from: of when sessions begin")
    parser.add_argument(
        "--scope-field", action="append", default=[], metavar="NAME",
        help="requests share only where it is equal, besides model and cache_salt (a tenant); may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--session-field", metavar="NAME", help="which conversation a request is of (default: session_id and the like)"
    )


def run(options: Namespace) -> int:
    """Make it, and say on standard error what was done."""
    settings = MakeOptions(
        options.tokenizer, options.block_size, options.time_field, options.time_unit, options.rate,
        tuple(options.scope_field), options.session_field, options.skip_bad, options.limit, options.drop_tools,
        options.seed,
    )  # fmt: skip
    if options.inputs.count(STDIN) > 1:
        raise InputError(say("standard input twice", "it can be read once", "name it once"))
    _check_apart(options)
    try:
        with open_output(options.output) as out:
            key = TraceKey() if options.key_file is None else read_key(options.key_file)
            with progress(options.inputs) as passed:
                if options.source is not None:
                    made = make_sessions(options.source, options.inputs, settings, out.write, passed)
                else:
                    made = make(options.inputs, settings, key, out.write, passed)
    except BrokenPipeError:
        raise
    except OSError as error:  # of writing: its reader reports what cannot be read
        which = "standard output" if options.output == STDIN else f"output {options.output!r}"
        raise InputError(say(which, f"{error.strerror or error}", "make room, or name another file")) from None
    for line in summary_lines(made):
        print(line, file=sys.stderr)
    return 0


def _check_apart(options: Namespace) -> None:
    """The output takes the place of no file that is read: a log may be all there is of its requests."""
    if not Path(options.output).is_file():
        return
    inputs = files_of(options.inputs) if options.source == WEKA else map(Path, options.inputs)
    for path in [*inputs, *([] if options.key_file is None else [Path(options.key_file)])]:
        if path.exists() and path.samefile(options.output):
            fact = f"it is {str(path)!r}, which is read for it"
            raise InputError(say(f"output {options.output!r}", fact, "name another file"))


def rate_of(text: str) -> float:
    """So many per second, of "2", "2/s", "40/min" or "30/h"."""
    number, _, unit = text.partition("/")
    try:
        return float(number) / _PER[unit or "s"]
    except (KeyError, ValueError):
        raise ArgumentTypeError(f"{text!r} is not a rate; write a number, or such as 30/h") from None


@contextmanager
def open_output(path: str) -> Iterator[OutputFile | BinaryIO]:
    """Where the trace goes: a file that is there only when it is whole, or standard output."""
    if path == STDIN:
        if sys.stdout.isatty():
            raise InputError(say("the trace", "standard output is a terminal", "name a file: -o trace.jsonl.gz"))
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    pack: Pack | None = None
    if path.endswith(".gz"):
        pack = pack_gzip
    elif path.endswith((".zst", ".zstd")):
        module = zstd()
        pack = lambda inner: cast(BinaryIO, module.ZstdFile(inner, "wb"))  # noqa: E731
    with OutputFile(path, pack) as file:
        yield file


def summary_lines(made: Made) -> Iterator[str]:
    """What was done, in words."""
    what = "files" if made.kind == WEKA else "lines"
    for wrong in made.errors:
        yield f"skipped: {wrong}"
    if made.skipped > len(made.errors):
        yield f"skipped: {made.skipped - len(made.errors):,} more {what}"
    yield f"{made.requests:,} requests, from {_FROM.get(made.kind, 'recorded sessions')}" + (
        f"; {made.skipped:,} {what} skipped" if made.skipped else ""
    )
    if made.times:
        yield f"times: {made.times}"
    if made.late:
        yield f"note: {made.late:,} requests stand far behind later ones: sort the log by time for exact numbers"
    if made.kind == LENGTHS:
        yield "note: lengths only: which prompts share a beginning is not known, so no reuse can be computed from them"
    if made.kind in SESSIONS:
        yield f"sessions: {made.summary['sessions']:,}, those of sub-agents included"
    if made.kind == REQUESTS:
        yield from _told_of_requests(made)
    yield from (f"note: {note}" for note in made.notes)


def _told_of_requests(made: Made) -> Iterator[str]:
    summary = made.summary
    if missing := summary.get("without_output"):
        yield f"note: {missing:,} requests have neither usage nor an answer: their output_length is 0"
    if other := summary.get("other_length"):
        fact = f"note: {other:,} prompts have another number of tokens than the log counted"
        yield f"{fact}: is it the tokenizer (and chat template) of that model?"
    if dropped := summary.get("tools_dropped"):
        yield f"note: {dropped:,} requests have tools that the chat template does not print: they are not in the trace"
    if unusable := summary.get("unusable"):
        yield f"note: {unusable:,} prompts were left out: no tokens, or too many for one line"
    if (scopes := summary.get("scopes", 1)) > 1:
        yield f"scopes: {scopes:,} (by model, cache_salt and --scope-field); requests share only within one"
