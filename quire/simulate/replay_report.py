"""The Python interface of the simulator: a trace and settings in, a typed report out. Prints nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from quire import InputError
from quire.core.records.errors import say, shown
from quire.simulate.capacity.fleet import Fleet, FleetResult, played
from quire.simulate.optimum.belady import Reuse
from quire.simulate.optimum.optimum_prompts import in_blocks, in_tokens
from quire.simulate.play.sweep import optimum_size
from quire.simulate.play.tally import ReplayResult
from quire.simulate.play.trace_player import play
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.trace.read.trace import Trace, read_trace

TraceLike = Trace | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time to the first token, in seconds. It is modelled from the rates in `ReplaySettings.pace`, not measured."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of one replay. `result` has every number that was counted, `to_json` the same as plain values."""

    trace: str  # name of its file
    config: ReplaySettings
    requests: int  # served to the end
    refused: int  # that can never fit into this memory
    prompt_tokens: int  # of the requests that were served
    tokens_saved: int  # prompt tokens that were reused
    tokens_computed: int  # prompt tokens that were computed, by all steps
    hit_rate: float  # tokens_saved / prompt_tokens
    hit_rate_by_tier: dict[str, float]  # where the reused tokens came from; adds up to hit_rate
    misses: dict[str, int]  # tokens that were not reused, by cause (docs/receipts.md); empty without causes
    evictions: int  # device slots taken from cached pages
    dropped: int  # pages lost with their last copy
    preemptions: int
    compute_cost: float  # of its prompts, in tokens at the start of one: with attention, later ones cost more
    hints: dict[str, int]  # how often each was given; empty without
    first_token: FirstToken  # modelled
    seconds: float  # modelled, from the first arrival to the last token
    load: float | None  # work / time, modelled: above 1 requests arrive faster than the engine serves them
    result: ReplayResult

    def to_json(self) -> dict[str, Any]:
        """Every number that was counted, as `quire replay --json` prints it."""
        return self.result.to_json()

    def html(self) -> str:
        """One page with plots, as `quire replay --html` writes it: no scripts, nothing loaded."""
        from quire.simulate.show.page import render  # a second of imports that few need

        return render(self.to_json())


def replay(trace: TraceLike, config: ReplaySettings | None = None, *, causes: bool = True) -> ReplayReport:
    """Play a trace through a real cache on a virtual clock, and report what the cache did with it.

    `trace` is a Trace, the path of one, or one of the two that are shipped: "sample" (conversations), "sample-agents".
    `config` is by default a Llama 3 8B with 40 GB of device and 200 GB of host memory. Without `causes` it is a fifth
    faster, and `misses` is empty.
    """
    settings = replace(_settings(config), receipts=causes)
    result = play(_trace(trace), settings)
    ttft = {name: milliseconds / 1000 for name, milliseconds in result.model["ttft_ms"].items()}
    return ReplayReport(
        trace=result.trace,
        config=settings,
        requests=result.requests,
        refused=result.refused,
        prompt_tokens=result.prompt_tokens,
        tokens_saved=result.tokens_saved,
        tokens_computed=result.tokens_computed,
        hit_rate=result.hit_rate,
        hit_rate_by_tier=result.hit_rate_by_tier,
        misses=result.misses.get("causes", {}),
        evictions=result.evictions,
        dropped=result.dropped,
        preemptions=result.preemptions,
        compute_cost=result.compute_cost,
        hints=result.hints,
        first_token=FirstToken(**ttft),
        seconds=result.model["seconds"],
        load=result.load["load"],
        result=result,
    )


def replay_fleet(trace: TraceLike, fleet: Fleet) -> FleetResult:
    """Play a trace over several workers behind a router, on one virtual clock."""
    if not isinstance(fleet, Fleet):
        raise InputError(
            say(f"a fleet of {shown(fleet)}", "it is not a Fleet", "pass Fleet(workers, router, settings)")
        )
    return played(_trace(trace), fleet)


def best_hit_rate(trace: TraceLike, config: ReplaySettings | None = None) -> float | None:
    """The hit rate of a cache of this size that knows the whole trace; None where no layer is full attention."""
    size, requests = optimum_size(_settings(config)), _trace(trace)
    if size is None:
        return None
    prompts = in_tokens(requests) if size.unit == 1 else in_blocks(requests, size.unit)
    return Reuse(prompts, size.unit).optimum(size.capacity).hit_rate


def _trace(trace: TraceLike) -> Trace:
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, str | PathLike):
        return read_trace(Path(trace))
    raise InputError(say(f"a replay of {shown(trace)}", "it is not a trace", "pass a path, 'sample', or a Trace"))


def _settings(config: ReplaySettings | None) -> ReplaySettings:
    if config is None:
        return ReplaySettings()
    if not isinstance(config, ReplaySettings):
        cure = "pass a ReplaySettings, which makes the cache's configuration from a model's shape and memory"
        raise InputError(say(f"a replay with {shown(config)}", "it is not a ReplaySettings", cure))
    return config
