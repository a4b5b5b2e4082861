"""Fleets: a trace over several workers behind a router, on one virtual clock. A process each; prints nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import numpy as np

from quire import ConfigWarning, InputError, QuireError
from quire.core.records.errors import say
from quire.simulate.capacity.deadline_worker import DeadlineWorker, FleetDeadlines
from quire.simulate.capacity.routers import RouterName, open_router
from quire.simulate.capacity.simulated_worker import SimulatedWorker
from quire.simulate.play.sweep import Executor, TraceSource, _process_pool
from quire.simulate.play.trace_player import PlayedTrace
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace, read_trace

MOST_WORKERS = 1024
PERCENTS = (50, 90, 95, 99)
LOOK = 64  # arrivals after which it is looked who is late


class LateLimit(NamedTuple):
    """How many requests may wait longer than so many seconds."""

    seconds: float
    most: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """A number of equal workers behind a router."""

    workers: int
    router: RouterName
    settings: ReplaySettings  # of each worker
    deadlines: FleetDeadlines | None = None  # within which first tokens are wanted

    def __post_init__(self) -> None:
        if self.deadlines is not None:
            self.deadlines.check()
        elif self.router == "deadline":
            fact = "nothing says when first tokens are wanted"
            raise InputError(say("the router 'deadline'", fact, "give --ttft-ms 500,5000, or another router"))
        if not 1 <= self.workers <= MOST_WORKERS:
            fact = f"a fleet has 1 to {MOST_WORKERS}"
            raise InputError(say(f"{self.workers} workers", fact, "give a number of that range"))


@dataclass(frozen=True, slots=True)
class DeadlineResult:
    """Of a fleet whose first tokens are wanted in time."""

    in_time: int  # requests whose first token came within its deadline
    goodput: float  # of those, a second
    refused: int  # at once: no worker would have been in time
    left: int  # clients whose time was over
    bounds: int  # that were given, and ended
    kept: int  # of those


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What came of it. Times are modelled; the names are those of the JSON."""

    workers: int
    router: str
    requests: int  # that were served
    refused: int  # that fit into no worker
    prompt_tokens: int
    hit_rate: float  # of the requests that ran
    ttft_ms: dict[str, float]  # mean, p50, p90, p95, p99
    seconds: float  # from the first arrival to the last token
    offered_load: float  # prompt tokens to compute per second, of what all workers together can compute: 1 is full
    imbalance: float  # prompt tokens computed by the busiest worker, of the mean
    deadlines: DeadlineResult | None = None  # where they were given

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        found = asdict(self)
        if self.deadlines is None:
            del found["deadlines"]
        return found

    @property
    def in_time(self) -> float:
        """The share of all requests, refused ones too, whose first token came within its deadline."""
        found = self.deadlines
        if found is None:
            return 0.0
        return found.in_time / max(1, self.requests + self.refused + found.refused + found.left)

    def ttft(self, percent: float) -> float:
        """Seconds to the first token, of one of the percentiles above."""
        return self.ttft_ms[f"p{percent:g}"] / 1000


def play_fleet(
    trace: Trace, fleet: Fleet, percents: Iterable[float] = PERCENTS, *, late: LateLimit | None = None,
    objective: float | None = None,
) -> FleetResult | None:  # fmt: skip
    """Run a whole trace; None when more are late than may be, as soon as that is known.

    With `objective` the times have that percentile too, by this name.
    """
    shared = PlayedTrace.from_trace(trace, fleet.settings)
    workers = [_worker(shared, fleet) for _ in range(fleet.workers)]
    for worker in workers:
        worker.late_after = inf if late is None else late.seconds
    route = open_router(fleet.router, workers, fleet.settings)
    busy: dict[int, SimulatedWorker] = {}
    refused = 0
    for request, time in zip(trace, shared.times, strict=True):
        for nth, worker in list(busy.items()):
            if worker.quiet_until < time:
                worker.run_until(request.number)
                if worker.at_rest and not worker.has_disk:
                    del busy[nth]
        if late is not None and request.number % LOOK == 0 and refused + _overdue(workers) > late.most:
            return None
        choice = route(request)
        refused += choice.worker < 0
        if choice.worker >= 0:
            busy[choice.worker] = workers[choice.worker]
            workers[choice.worker].give(request, choice.tokens)
    for worker in workers:
        worker.run_to_end()
    named = {f"p{one:g}": float(one) for one in percents}
    return _result(trace, fleet, workers, named if objective is None else {**named, "objective": objective})


def _overdue(workers: list[SimulatedWorker]) -> int:
    return sum(worker.num_overdue() for worker in workers)


def _worker(shared: PlayedTrace, fleet: Fleet) -> SimulatedWorker:
    if fleet.deadlines is None:
        return SimulatedWorker(shared, fleet.settings)
    return DeadlineWorker(shared, fleet.settings, fleet.deadlines, has_door=fleet.router == "deadline")


def _in_time(workers: list[SimulatedWorker], seconds: float, offered: int) -> DeadlineResult | None:
    ours = [one for one in workers if isinstance(one, DeadlineWorker)]
    if not ours:
        return None
    good = sum(wait <= one.wanted.of(number) for one in ours for number, wait in one.first_tokens.items())
    counts = [one.door.counts for one in ours]
    kept = sum(one.fates["kept"] for one in counts)
    return DeadlineResult(
        in_time=good, goodput=good / max(seconds, 1e-9), refused=offered - sum(one.num_given for one in ours),
        left=sum(one.num_left for one in ours), bounds=kept + sum(one.broken for one in counts), kept=kept,
    )  # fmt: skip


def _result(trace: Trace, fleet: Fleet, workers: list[SimulatedWorker], percents: dict[str, float]) -> FleetResult:
    waits = np.array([wait for worker in workers for wait in worker.first_tokens.values()] or [0.0]) * 1000
    prompt, saved = (sum(getattr(worker, name) for worker in workers) for name in ("prompt_tokens", "saved_tokens"))
    computed = [worker.prompt_tokens - worker.saved_tokens for worker in workers]
    served = sum(len(worker.first_tokens) for worker in workers)
    arriving = max(fleet.settings.times(trace)[-1], 1e-9)
    rate = fleet.settings.pace.prefill_tokens_per_second * fleet.workers
    seconds = max(worker.now for worker in workers)
    in_time = _in_time(workers, seconds, len(trace))
    gone = 0 if in_time is None else in_time.refused + in_time.left
    return FleetResult(
        workers=fleet.workers,
        router=fleet.router,
        requests=served,
        refused=len(trace) - served - gone,
        prompt_tokens=prompt,
        hit_rate=saved / max(prompt, 1),
        ttft_ms={
            "mean": round(float(waits.mean()), 3),
            **{name: round(float(np.percentile(waits, one)), 3) for name, one in percents.items()},
        },
        seconds=seconds,
        offered_load=sum(computed) / arriving / rate,
        imbalance=max(computed) / max(sum(computed) / len(computed), 1e-9),
        deadlines=in_time,
    )


def played(trace: Trace, fleet: Fleet, percents: Iterable[float] = PERCENTS) -> FleetResult:
    """A whole trace, to the end."""
    result = play_fleet(trace, fleet, percents)
    assert result is not None
    return result


def play_fleets(
    source: TraceSource, fleets: Iterable[Fleet], *, executor: Executor | None = None, jobs: int | None = None,
    tell: Callable[[FleetResult | str], None] = lambda _: None,
) -> list[FleetResult | str]:  # fmt: skip
    """Each in a process of its own, as many at once as there are cores; one that cannot run answers with the reason."""
    every = list(fleets)
    if not every:
        raise InputError(say("no fleet", "there is nothing to run", "give at least one number of workers"))
    load_trace(source)  # a bad trace is reported here, once
    count = min(jobs or os.cpu_count() or 1, len(every))
    with nullcontext(executor) if executor is not None else _process_pool(count) as runner:
        pending = [runner.submit(run_fleet, source, fleet) for fleet in every]
        answers = []
        for one in pending:
            answers.append(one.result())
            tell(answers[-1])
    return answers


def run_fleet(source: TraceSource, fleet: Fleet) -> FleetResult | str:
    """One fleet, or why it cannot run."""
    with catch_warnings():
        simplefilter("ignore", ConfigWarning)
        try:
            return played(load_trace(source), fleet)
        except QuireError as error:
            return str(error)


@lru_cache(maxsize=1)
def load_trace(source: TraceSource) -> Trace:
    """Read once per process."""
    return read_trace(source.path, limit=source.limit, skip_bad=source.skip_bad, unit=source.unit)
