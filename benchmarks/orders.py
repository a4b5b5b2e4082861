"""Rows and columns of `benchmarks/eviction.py`: every kind of load beside every order of eviction. Runs no processes.

Recorded loads go through `quire.simulate`: prompts only, an engine that is never the bottleneck, blocks of 512 tokens.
What is counted is the second half of the requests, when the pool is full and an order has learned.

    conversation, synthetic   Mooncake's public traces (`--conversation`, `--synthetic`; else the sample of the first)
    agents low, middle, high  WEKA's recorded coding agents (`--weka`): sessions with odd numbers, begun over 24, 6 and
                              1.5 hours; 7,500 blocks are 500 GB at 128 KiB a token. Else the sample: agents
    mixed middle, mixed high  those agents (or the sample), and the conversation stretched over the same time
    windows                   documents asked about three times, in one pool with windows (`windows.py`)
    scales                    twelve generated loads on three clocks (`scales.py`): how far an order is above or below
                              lru where it is worst

    lru, adaptive             orders, told nothing
    finish, exact             adaptive, with sessions and finish reasons, or with hints that know the future
    exact soon                of that future only what comes back soon
    swapped, false never      finish with soon and later exchanged; with never said of one request in twenty
    cost, finish cost         adaptive, where a page counts as much as it costs to compute again
    optimum                   the best that any order could have, for whom the host is as near as the device
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import windows
from loads import LOADS
from scales import measure

from quire import CacheConfig
from quire.core.records.config import Eviction
from quire.core.records.hint_words import Back
from quire.simulate import Memory, Pace, ReplaySettings, Trace, TraceRequest, read_trace
from quire.simulate.optimum.belady import Reuse
from quire.simulate.optimum.optimum_prompts import in_blocks
from quire.simulate.play.hints import BY_FINISH, ReplayHints
from quire.simulate.play.trace_player import play
from quire.simulate.setup.replay_settings import Hints
from quire.trace.logs.sessions import Read, SessionMix, begins
from quire.trace.logs.weka import files_of, read_weka
from quire.trace.read.lines import TraceError

UNIT = 512  # tokens
HOURS = {"low": 24.0, "middle": 6.0, "high": 1.5}
SIZES = {"low": (3000, 7500), "middle": (7500, 14875), "high": (7437, 14875, 37250)}
OPTIMUM = "optimum"
HAS_COST = any(field.name == "eviction_cost" for field in fields(CacheConfig))


class Order(NamedTuple):
    """What a column is measured with."""

    eviction: Eviction
    hints: Hints = "none"
    cost: bool = False  # pages count as much as computing them again costs
    told: Callable[[Trace], Iterator[TraceRequest]] | None = None  # with what is said at their ends, in place of that

    @property
    def more(self) -> dict[str, Any]:
        """Of the cache's config, besides its order."""
        return {"eviction_cost": "compute"} if self.cost else {}


def swapped(trace: Trace) -> Iterator[TraceRequest]:
    """The other of two."""
    exchanged: dict[Back | None, Back] = {"soon": "later", "later": "soon"}
    for one in trace:
        yield replace(one, back=exchanged.get(BY_FINISH.get(one.finish or "")))


def false_never(trace: Trace) -> Iterator[TraceRequest]:
    """Of one in twenty what cannot be known."""
    for one in trace:
        yield replace(one, back="never" if one.number % 20 == 7 else None)


def soon_alone(trace: Trace) -> Iterator[TraceRequest]:
    """What is back soon, known exactly, and of the rest nothing."""
    future = ReplayHints(trace, "exact", [one.time for one in trace])
    for one in trace:
        soon = future.back(one, one.time) == "soon"
        yield replace(one, back="soon" if soon else None, finish=None)


ORDERS = {
    "lru": Order("lru"), "adaptive": Order("adaptive"), "finish": Order("adaptive", "finish"),
    "exact soon": Order("adaptive", "finish", told=soon_alone), "exact": Order("adaptive", "exact"),
    "swapped": Order("adaptive", "finish", told=swapped),
    "false never": Order("adaptive", "finish", told=false_never), "cost": Order("adaptive", cost=True),
    "finish cost": Order("adaptive", "finish", cost=True),
}  # fmt: skip
COLUMNS = [*(name for name, order in ORDERS.items() if HAS_COST or not order.cost), OPTIMUM]


class Cell(NamedTuple):
    """What an order did with a load."""

    rate: float  # % of prompt tokens, or points above lru
    cost: float | None = None  # token-equivalents computed per request, in the mean
    loads: float | None = None  # blocks that came up from the host


Measured = Callable[[str], Cell | None]  # by a column's name; None: it is not for this load


@dataclass(frozen=True, slots=True)
class Row:
    """A load in a cache of some size."""

    load: str
    size: str  # blocks, by tier
    measure: Measured
    prepare: Callable[[], object] = bool  # reads or makes the load: once, before processes begin


class Given(NamedTuple):
    """Where the recorded loads are, and how much of them."""

    conversation: str = "sample"
    synthetic: str | None = None
    weka: str | None = None
    every: int = 1  # one agent session in so many; sizes shrink with it
    seed: int = 1


def rows(given: Given) -> Iterator[Row]:
    """Of all loads that can be had. Nothing is read yet."""
    agents = [f"agents {load}" for load in HOURS] if given.weka is not None else ["agents"]
    synthetic = [] if given.synthetic is None else ["synthetic"]
    both = ["mixed middle", "mixed high"] if given.weka is not None else ["mixed"]
    for name in ("conversation", *synthetic, *agents, *both):
        most = (sizes := _sizes(name, given))[-1]
        for tiers in (*((size,) for size in sizes), (most // 4, most - most // 4)):
            told = " + ".join(f"{blocks:,}" for blocks in tiers)
            yield Row(name, told, partial(replayed, name, given, tiers), partial(trace_of, name, given))
    for named in (False, True):
        yield Row("windows, points named" if named else "windows", "1,300", partial(behind_windows, named))
    for memory, told in (("device", "1,000"), ("host", "250 + 750")):
        yield Row("scales", told, partial(at_scales, memory))


def _sizes(name: str, given: Given) -> tuple[int, ...]:
    """Blocks of a recorded load: in one tier of each size, and in two, with a quarter of the largest on the device."""
    if name in ("conversation", "synthetic"):
        return (300, 1000) if given.conversation == "sample" and name == "conversation" else (1000, 3000, 10000)
    if given.weka is None:
        return (1000, 2000) if name == "agents" else (2000,)
    sizes = (14875,) if name.startswith("mixed") else SIZES[name.removeprefix("agents ")]
    return tuple(size // given.every for size in sizes)


@lru_cache(maxsize=1)
def trace_of(name: str, given: Given) -> Trace:
    """A recorded load."""
    if name.startswith("mixed"):
        talk, load = read_trace(given.conversation), name.removeprefix("mixed ")
        agents = sessions(given, load)
        seconds = agents[len(agents) - 1].time - agents[0].time if given.weka is None else 3600 * HOURS[load]
        return mixed(agents, talk.head(len(talk) // given.every), seconds)
    if name.startswith("agents"):
        return sessions(given, name.removeprefix("agents "))
    return read_trace(given.conversation if name == "conversation" else given.synthetic or "")


class WeighedSettings(ReplaySettings):
    """With an order that weighs pages by their cost."""

    def config(self, trace: Trace) -> CacheConfig:
        """The cache for this trace."""
        more: dict[str, Any] = Order("adaptive", cost=True).more
        return replace(ReplaySettings.config(self, trace), **more)


def replayed(name: str, given: Given, tiers: tuple[int, ...], column: str) -> Cell | None:
    """A recorded load through a cache of so many blocks."""
    trace = trace_of(name, given)
    if column == OPTIMUM:
        return Cell(100 * Reuse(in_blocks(trace, UNIT), UNIT).optimum(sum(tiers), skip=len(trace) // 2).hit_rate)
    order = ORDERS[column]
    if order.told is not None:
        trace = Trace(trace.name, list(order.told(trace)), UNIT)
    places = tuple(Memory(name, blocks=(size,)) for name, size in zip(("device", "host"), tiers, strict=False))
    settings = (WeighedSettings if order.cost else ReplaySettings)(
        tiers=places, block_size=UNIT, prefill_only=True, partial_reuse=False, max_sequences=64, token_budget=None,
        max_chunk=None, pace=Pace(prefill_tokens_per_second=1e7), eviction=order.eviction, hints=order.hints,
    )  # fmt: skip
    result = play(trace, settings)
    page = settings.config(trace).groups[0].page_bytes
    moved = result.onboarded_bytes / page if len(tiers) > 1 else None
    return Cell(100 * result.hit_rate_second_half, result.compute_cost_mean, moved)


def sessions(given: Given, load: str) -> Trace:
    """Recorded agents, of which every so many are taken, begun over so many hours; or the sample."""
    if given.weka is None:
        return read_trace("sample-agents")
    odd = [path for path in files_of([given.weka]) if path.stem[-1] in "13579"][:: given.every]
    reads: list[Read] = [partial(read_weka, path) for path in odd]
    mix = SessionMix(UNIT, _leave_out)
    requests = []
    for number, one in enumerate(mix.records(begins(reads, len(odd) / (HOURS[load] * 3600), given.seed))):
        parts = np.array(one.hash_ids, np.int64)
        request = TraceRequest(number, one.time_ms / 1000, parts, one.input_length, one.output_length, UNIT)
        requests.append(replace(request, session=one.session, finish=one.finish))
    return Trace("agents", requests, UNIT)


def _leave_out(wrong: TraceError) -> None:
    print(f"left out: {wrong}")


def mixed(agents: Trace, talk: Trace, seconds: float) -> Trace:
    """Both at once: the second stretched over so many seconds, its parts apart from the first's."""
    apart = 1 + max(int(one.parts.max()) for one in agents)
    began = talk[0].time
    slower = seconds / max(talk[len(talk) - 1].time - began, 1e-9)
    moved = [replace(one, parts=one.parts + apart, time=agents[0].time + (one.time - began) * slower) for one in talk]
    every = sorted([*agents, *moved], key=lambda one: one.time)
    return Trace("mixed", [replace(one, number=number) for number, one in enumerate(every)], UNIT)


def behind_windows(named: bool, column: str) -> Cell | None:
    """Documents asked about three times, in one pool with windows."""
    if column == OPTIMUM or ORDERS[column].hints != "none":
        return None
    asks = list(windows.documents(Random(1)))
    groups = windows.groups_of(1, False)
    config = windows.config_of(asks, groups, windows.tiers_of(groups, 1300, 0), ORDERS[column].eviction)
    return Cell(windows.run(asks, replace(config, **ORDERS[column].more), named))


def at_scales(memory: str, column: str) -> Cell | None:
    """By how many points an order is above lru where it is worst, of all generated loads on three clocks."""
    if column not in ("lru", "adaptive"):
        return None
    if column == "lru":
        return Cell(0.0)
    found = []
    for load in LOADS.values():
        outcome = measure(list(load(Random(1))), 1000, memory, [0.001, 1.0, 1000.0])
        if outcome is not None:
            lru, others = outcome
            found += [other.rate - lru.rate for other in others]
    return Cell(min(found))


def paths(given: Given) -> list[Path]:
    """Files and folders that were named."""
    return [Path(name) for name in given[:3] if isinstance(name, str) and name != "sample"]
