"""A grid of replays: every combination of sizes and policies, spread over processes or a cluster. Prints nothing.

The work is plain functions of picklable records (`TraceSource`, `ReplaySettings`), so whatever has `submit` can run it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIG_DFL, SIGINT, signal
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol
from warnings import catch_warnings, simplefilter

from quire import ConfigWarning, InputError, QuireError
from quire.core.records.caller_arguments import renamed_keyword
from quire.core.records.errors import say
from quire.simulate.optimum.belady import Reuse
from quire.simulate.optimum.optimum_prompts import in_blocks, in_tokens
from quire.simulate.play.trace_player import play
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.setup.shape import find_shape
from quire.trace.read.streams import STDIN
from quire.trace.read.trace import Trace, read_trace

_ALONE = Lock()  # one replay at a time in a process: warnings are caught for all of it


class Pending(Protocol):
    """An answer that is under way."""

    def result(self) -> Any:
        """Wait for it."""


class Executor(Protocol):
    """What runs the work: concurrent.futures, Dask's `get_executor()`, or anything of that shape."""

    def submit(self, work: Callable[..., Any], /, *args: Any) -> Pending:
        """Start `work(*args)` somewhere."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Which requests: read again in every process, so the path must be valid there."""

    path: str
    limit: int | None = None
    skip_bad: bool = False
    unit: int | None = None  # tokens per hash id; None: as the trace says, or 512

    def __post_init__(self) -> None:
        if self.path == STDIN:
            fact = "every process reads the trace for itself"
            raise InputError(say("a sweep of standard input", fact, "write it to a file first"))


@dataclass(frozen=True, slots=True)
class Point:
    """One combination and what came of it."""

    settings: ReplaySettings
    result: dict[str, Any]  # as ReplayResult.to_json() without series, and notes (warnings); or empty
    optimum: float | None  # the best hit rate any policy could have had in this memory
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A whole grid."""

    trace: str
    points: tuple[Point, ...]
    unlimited: float | None  # hit rate in whole blocks with memory for everything

    def to_json(self) -> dict[str, Any]:
        """For machines; one entry per combination."""
        points = [
            {
                "settings": point.settings.to_json(),
                **({"error": point.error} if point.error else point.result),
                "optimum_hit_rate": point.optimum,
            }
            for point in self.points
        ]
        return {"trace": self.trace, "unlimited_hit_rate": self.unlimited, "points": points}


@renamed_keyword("told", "on_result")
def sweep(
    source: TraceSource | str,
    settings: Iterable[ReplaySettings],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    tell: Callable[[int], None] | None = None,
    on_result: Callable[[ReplaySettings, dict[str, Any] | str], None] | None = None,
) -> Sweep:
    """Replay a trace with each of `settings`; in `workers` processes (default: the cores), or where `executor` says.

    `tell` is called with how many more are done, `on_result` with the result of each, in their order.
    """
    source = TraceSource(source) if isinstance(source, str) else source
    grid = list(settings)
    if not grid:
        raise InputError("a sweep of no settings: there is nothing to run; give at least one combination")
    name = _trace(source).name  # a bad trace is reported here, once
    questions = _questions(grid)
    count = min(workers or os.cpu_count() or 1, len(grid) + len(questions))
    with nullcontext(executor) if executor is not None else _process_pool(count) as runner:
        searches = {size: runner.submit(find_optima, source, size, sizes) for size, sizes in questions.items()}
        pending = [runner.submit(run_one, source, one) for one in grid]
        answers = []
        for asked_for, one in zip(grid, pending, strict=True):
            answers.append(one.result())
            if on_result is not None:
                on_result(asked_for, answers[-1])
            if tell is not None:
                tell(1)
        found = {size: one.result() for size, one in searches.items()}
    points = [_point(one, answer, found) for one, answer in zip(grid, answers, strict=True)]
    unlimited = max((optima[None] for optima in found.values()), default=None)
    return Sweep(name, tuple(points), unlimited)


@contextmanager
def _process_pool(count: int) -> Iterator[Executor]:
    """Processes of our own, none of which outlives this block, however it ends; a single one is this one."""
    if count == 1:
        yield LocalExecutor()
        return
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)  # nothing is ever sent: its end is the word
    pool = ProcessPoolExecutor(count, context, initializer=_end_with_parent, initargs=(theirs,))
    try:
        yield pool
    except BaseException:
        ours.close()  # what has begun need not go on
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for end in (theirs, ours):
            end.close()


def _end_with_parent(parent: Connection) -> None:
    """In a process of ours: Ctrl-C ends it silently; so does the end of its parent, by any signal."""
    signal(SIGINT, SIG_DFL)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    parent.poll(None)  # until the other end is closed: by hand, or by the system when its process is gone
    os._exit(1)


class FinishedWork:
    """An answer that is there already."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def result(self) -> Any:
        """It."""
        return self.answer


class LocalExecutor:
    """The smallest executor: does the work at once, in this process."""

    def submit(self, work: Callable[..., Any], /, *args: Any) -> Pending:
        """Do it."""
        return FinishedWork(work(*args))


def _point(settings: ReplaySettings, answer: dict[str, Any] | str, found: dict[int, dict[int | None, float]]) -> Point:
    size = _optimum_size(settings)
    optimum = None if size is None else found[size.unit][size.capacity]
    return Point(settings, {}, optimum, answer) if isinstance(answer, str) else Point(settings, answer, optimum)


def _questions(grid: Sequence[ReplaySettings]) -> dict[int, tuple[int, ...]]:
    """Unit -> the capacities whose optimum is wanted."""
    wanted: dict[int, set[int]] = {}
    for size in map(_optimum_size, grid):
        if size is not None:
            wanted.setdefault(size.unit, set()).add(size.capacity)
    return {unit: tuple(sorted(numbers)) for unit, numbers in wanted.items()}


class OptimumSize(NamedTuple):
    """Memory as the optimum sees it: so many units of `unit` tokens, each kept or dropped whole."""

    unit: int
    capacity: int


def _optimum_size(settings: ReplaySettings) -> OptimumSize | None:
    """The same, also for a combination that cannot run: it has none."""
    try:
        return optimum_size(settings)
    except QuireError:
        return None


def optimum_size(settings: ReplaySettings) -> OptimumSize | None:
    """What all tiers hold together of full attention; None for a model without such layers.

    Where hits may end inside a block, no policy is better than one that keeps single tokens.
    """
    shape, size = find_shape(settings.shape), settings.block_size
    partial = settings.partial_reuse and not any(layers.snapshot_every is not None for layers in shape.layers)
    for nth, layers in enumerate(shape.layers):
        if layers.window is None and layers.snapshot_every is None:
            blocks = sum(tier.slots(shape, size)[nth] for tier in settings.tiers)
            return OptimumSize(1, blocks * size) if partial else OptimumSize(size, blocks)
    return None


def run_one(source: TraceSource, settings: ReplaySettings) -> dict[str, Any] | str:
    """One replay; a combination that cannot run answers with the reason."""
    with _ALONE, catch_warnings(record=True) as caught:
        simplefilter("always", ConfigWarning)
        try:
            result = play(_trace(source), settings).to_json()
        except QuireError as error:
            return str(error)
    facts = {name: value for name, value in result.items() if name not in ("series", "settings")}
    if unknown := result["settings"].get("trace_sharing"):
        facts["trace_sharing"] = unknown
    return {**facts, "notes": list(dict.fromkeys(str(reason.message) for reason in caught))}


def find_optima(source: TraceSource, unit: int, capacities: tuple[int, ...]) -> dict[int | None, float]:
    """The best hit rate for each capacity; None stands for unlimited memory."""
    trace = _trace(source)
    reuse = Reuse(in_tokens(trace) if unit == 1 else in_blocks(trace, unit), unit)
    rates: dict[int | None, float] = {size: reuse.optimum(size).hit_rate for size in capacities}
    rates[None] = reuse.most().hit_rate
    return rates


@lru_cache(maxsize=1)
def _trace(source: TraceSource) -> Trace:
    """Read once per process."""
    return read_trace(source.path, limit=source.limit, skip_bad=source.skip_bad, unit=source.unit)
