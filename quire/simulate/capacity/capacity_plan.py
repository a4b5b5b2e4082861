"""Plans: the cheapest fleet that gives first tokens soon enough, found by playing fleets from the cheapest up.

    what no fleet can do is said -> candidates by price -> play -> too late: the same memory with more workers -> ...
    -> soon enough: nothing is cheaper

Prints nothing. Every number is modelled; a PredictionCheck says how far the model was from an engine that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from heapq import heappop, heappush
from itertools import product
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

from quire import ConfigWarning, InputError, QuireError
from quire.core.records.errors import say
from quire.simulate.capacity.bounds import NO_BOUNDS, Bounds, find_bounds
from quire.simulate.capacity.deadline_worker import FleetDeadlines
from quire.simulate.capacity.fleet import MOST_WORKERS, Fleet, FleetResult, LateLimit, load_trace, play_fleet
from quire.simulate.capacity.routers import RouterName
from quire.simulate.play.sweep import Executor, TraceSource, _process_pool
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.slow_pace import DISK

GB = 10**9
LONGEST_CURRENCY = 12  # characters
MOST_OFF = 0.25  # of a measured first token: what a prediction may be off


@dataclass(frozen=True, slots=True)
class Prices:
    """By the hour, in any currency."""

    worker: float = 0.5  # each, without memory
    device: float = 0.025  # per GB
    host: float = 0.005
    disk: float = 0.0001

    def per_hour(self, fleet: Fleet) -> float:
        """What a fleet costs."""
        by_tier = {"device": self.device, "host": self.host, "disk": self.disk}
        for tier in fleet.settings.tiers:
            if tier.name not in by_tier:
                fact = "a plan chooses among device, host and disk, each worker's own, and has prices for these"
                raise InputError(say(f"a plan with memory {tier.name!r}", fact, "leave out --shared and --tier"))
        memory = sum(by_tier[tier.name] * tier.num_bytes / GB for tier in fleet.settings.tiers)
        return fleet.workers * (self.worker + memory)


class PredictionCheck(NamedTuple):
    """One load of an engine: its p-th first token as predicted and as measured, in seconds."""

    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """The difference, of what was measured."""
        return abs(self.predicted - self.measured) / max(self.measured, 1e-9)


class MeasuredEngine(NamedTuple):
    """What was measured on an engine: its rates, and how well they predict."""

    pace: Pace
    checks: tuple[PredictionCheck, ...]

    @property
    def is_good(self) -> bool:
        """Whether every load was predicted well enough."""
        return bool(self.checks) and all(check.off <= MOST_OFF for check in self.checks)


@dataclass(frozen=True, slots=True)
class Objective:
    """A percentage of first tokens within a number of seconds, and every request fits into a worker.

    With `bounds_kept` each request has these seconds: a door, as the router 'deadline' has it, refuses at once what
    would be late, and keeps such a share of its bounds; without one, clients leave when their time is over.
    """

    seconds: float
    percent: float = 95.0
    bounds_kept: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < 1e6 or not 0 < self.percent < 100:
            ask = f"{self.percent:g} % of first tokens within {self.seconds:g} s"
            raise InputError(say(ask, "it is not an objective", "give seconds above 0, and a percentage below 100"))

        if self.deadlines is not None:
            self.deadlines.check()

    @property
    def deadlines(self) -> FleetDeadlines | None:
        """Of every request."""
        return None if self.bounds_kept is None else FleetDeadlines((self.seconds,), self.bounds_kept)

    def limit(self, requests: int) -> LateLimit:
        """How many first tokens may be late."""
        return LateLimit(self.seconds, int(requests * (100 - self.percent) / 100))


@dataclass(frozen=True, slots=True)
class Tried:
    """A fleet that was played."""

    fleet: Fleet
    price: float
    result: FleetResult | None  # None: it was too late, and given up
    error: str = ""

    @property
    def num_refused(self) -> int:
        """Requests that fit into no worker, as far as it was played."""
        return 0 if self.result is None else self.result.refused

    def keeps(self, objective: Objective) -> bool:
        """Whether every request is served, and the objective is met."""
        if self.result is None or self.num_refused:
            return False
        if objective.bounds_kept is not None:
            return self.result.in_time * 100 >= objective.percent
        return self.result.ttft_ms["objective"] <= objective.seconds * 1000

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        memory = {tier.name: tier.num_bytes for tier in self.fleet.settings.tiers}
        facts = {"workers": self.fleet.workers, "memory": memory, "price": round(self.price, 4)}
        return {**facts, "result": None if self.result is None else self.result.to_json(), "error": self.error}


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What was found: the cheapest one, or None; and all that was tried, cheapest first."""

    objective: Objective
    chosen: Tried | None
    tried: tuple[Tried, ...]
    bounds: Bounds = NO_BOUNDS

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        chosen = None if self.chosen is None else self.chosen.to_json()
        return {
            "objective": {name: value for name, value in asdict(self.objective).items() if value is not None},
            "bounds": asdict(self.bounds),
            "chosen": chosen,
            "tried": [one.to_json() for one in self.tried],
        }


@dataclass(frozen=True, slots=True)
class Search:
    """What a plan may choose from."""

    source: TraceSource
    memories: Sequence[ReplaySettings]  # of a worker
    objective: Objective
    prices: Prices = Prices()
    router: RouterName = "exact"
    most_workers: int = 64
    currency: str = ""  # of the prices, as it is shown

    def __post_init__(self) -> None:
        name = self.currency
        if len(name) > LONGEST_CURRENCY or not name.isprintable() or name != name.strip():
            raise InputError(say(f"currency {name[:20]!r}", "it is not the name of one", "write EUR, or $"))
        self.fleet(1, self.memories[0])  # a router that needs what is not there is refused now

    def fleet(self, workers: int, memory: ReplaySettings) -> Fleet:
        """One to be tried."""
        return Fleet(workers, self.router, memory, self.objective.deadlines)


def find_plan(
    search: Search, *, executor: Executor | None = None, jobs: int = 1, tell: Callable[[Tried], None] = lambda _: None
) -> CapacityPlan:
    """Play fleets from the cheapest up, `jobs` at a time, until none that is cheaper might meet the objective."""
    if not 1 <= search.most_workers <= MOST_WORKERS:
        raise InputError(say(f"{search.most_workers} workers", "it is not a number of workers", f"1 to {MOST_WORKERS}"))
    objective = search.objective
    bounds = find_bounds(load_trace(search.source), search.memories[0], objective.seconds, objective.percent)
    if bounds.seconds > objective.seconds or bounds.workers > search.most_workers:
        return CapacityPlan(objective, None, (), bounds)
    least = bounds.workers
    waiting: list[tuple[float, int, Fleet]] = []
    failed: dict[ReplaySettings, int] = {}
    tried: list[Tried] = []
    chosen: Tried | None = None
    for nth, memory in enumerate(search.memories):
        _push(waiting, search, nth, search.fleet(least, memory))
    with nullcontext(executor) if executor is not None else _process_pool(jobs) as runner:
        while waiting and (chosen is None or waiting[0][0] < chosen.price):
            batch = [heappop(waiting) for _ in range(min(jobs, len(waiting)))]
            pending = [runner.submit(try_fleet, search, fleet) for _, _, fleet in batch]
            for (_, nth, fleet), answer in zip(batch, [one.result() for one in pending], strict=True):
                tried.append(answer)
                tell(answer)
                if answer.keeps(objective):
                    chosen = answer if chosen is None or answer.price < chosen.price else chosen
                elif not answer.error and not answer.num_refused:  # what fits into no worker fits into no more of them
                    failed[fleet.settings] = fleet.workers
                    _push(waiting, search, nth, replace(fleet, workers=_more(fleet.workers)))
        if chosen is not None:
            low = failed.get(chosen.fleet.settings, least - 1)
            for answer in _fewer(search, chosen, low, runner):
                tried.append(answer)
                tell(answer)
                chosen = answer if answer.keeps(objective) else chosen
    return CapacityPlan(objective, chosen, tuple(sorted(tried, key=lambda one: one.price)), bounds)


def _fewer(search: Search, chosen: Tried, low: int, runner: Executor) -> Iterator[Tried]:
    """The same memory with fewer workers, until it is known how few will do; `low` were too few."""
    high = chosen.fleet.workers
    while high - low > 1:
        middle = (low + high) // 2
        answer: Tried = runner.submit(try_fleet, search, replace(chosen.fleet, workers=middle)).result()
        yield answer
        low, high = (low, middle) if answer.keeps(search.objective) else (middle, high)


def _push(waiting: list[tuple[float, int, Fleet]], search: Search, nth: int, fleet: Fleet) -> None:
    if fleet.workers <= search.most_workers:
        heappush(waiting, (search.prices.per_hour(fleet), nth, fleet))


def _more(workers: int) -> int:
    return workers + max(1, workers // 4)


def try_fleet(search: Search, fleet: Fleet) -> Tried:
    """Play one; it is given up when too many are late."""
    trace, price = load_trace(search.source), search.prices.per_hour(fleet)
    with catch_warnings():
        simplefilter("ignore", ConfigWarning)
        try:
            result = play_fleet(
                trace, fleet, late=search.objective.limit(len(trace)), objective=search.objective.percent
            )
        except QuireError as error:
            return Tried(fleet, price, None, str(error))
    return Tried(fleet, price, result)


def memories(
    settings: ReplaySettings, device: Iterable[int], host: Iterable[int], disk: Iterable[int]
) -> list[ReplaySettings]:
    """Every combination of sizes, in bytes; 0 is a tier that is not there. A disk has the settings' rates, if any."""
    fast = replace(settings, tiers=tuple(tier for tier in settings.tiers if not tier.slow), slow=None)
    variants = []
    for one, other, coldest in product(device, host, disk):
        variant = fast.with_memory("device", one).with_memory("host", other)
        if coldest:
            tiers = (*variant.tiers, Memory("disk", coldest, slow=True))
            variant = replace(variant, tiers=tiers, slow=settings.slow or DISK)
        variants.append(variant)
    return variants
