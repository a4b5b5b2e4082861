"""ReplaySettings: what decides a replay's result besides its trace, as plain values. Makes the cache's config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from quire import CacheConfig, InputError, RetainRange, Retention, TierConfig
from quire.core.records.config import Eviction, EvictionCost, usual_order
from quire.core.records.errors import say
from quire.core.records.memory import parse_bytes
from quire.simulate.setup.engine_pace import USUAL, Pace, check_clock
from quire.simulate.setup.shape import ModelShape, find_shape
from quire.simulate.setup.slow_pace import SlowPace
from quire.trace.read.trace import Trace, TraceRequest

Arrivals = Literal["trace", "poisson", "at-once"]
Hints = Literal["none", "finish", "exact"]
MOST_PAGES = 1 << 27  # each takes about a hundred bytes here
CHUNKS = 1 << 20  # of text that receipts of a replay find again; ids of blocks say what is before them, too
MOST_BLOCK = MOST_STRIDE = 1 << 20
MOST_SPEED = 1e9
USUAL_DOUBLE = 30_000  # tokens; of models of 8B parameters
ARRIVALS: tuple[Arrivals, ...] = ("trace", "poisson", "at-once")
HINTS: tuple[Hints, ...] = ("none", "finish", "exact")


@dataclass(frozen=True, slots=True)
class Memory:
    """One tier: its bytes, or its blocks of each group (one number, or one per group)."""

    name: str
    bytes: int | str = 0  # 40 * 10**9, or "40GB"; kept as the number
    blocks: tuple[int, ...] = ()
    slow: bool = False  # no step waits for it: a disk, a shared store

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_bytes(self.bytes, f"{self.name} memory"))
        if any(count < 0 for count in self.blocks):
            ask = f"{','.join(map(str, self.blocks))} blocks of {self.name}"
            raise InputError(say(ask, "a number of blocks is not negative", "give 0 or more"))

    @property
    def num_bytes(self) -> int:
        """The same, as the number that it is."""
        return int(self.bytes)

    def slots(self, shape: ModelShape, block_size: int) -> tuple[int, ...]:
        """Pages per group."""
        count = len(shape.layers)
        if len(self.blocks) == 1:
            return self.blocks * count
        if self.blocks:
            if len(self.blocks) != count:
                fact = f"{len(self.blocks)} numbers for the {count} layer groups of {shape.name!r}"
                raise InputError(say(f"blocks of {self.name}", fact, "give one number, or one per group"))
            return self.blocks
        return shape.slots(self.num_bytes, block_size)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """One way to run a trace."""

    shape: str = "llama-3-8b"
    tiers: tuple[Memory, ...] = (Memory("device", 40 * 10**9), Memory("host", 200 * 10**9))
    block_size: int = 16
    token_budget: int | None = 8192  # prompt tokens of one step
    max_chunk: int | None = 8192  # longest part of a prompt that one step computes
    batch: int = 16  # waiting requests considered in one step
    two_phase: bool = True
    eviction: Eviction = "auto"
    retain: tuple[RetainRange, ...] = ()  # of every request that brings none of its own
    decode_priority: int | None = None  # of generated tokens
    offload_min_priority: int = 30
    partial_reuse: bool = True
    shadows: bool = True
    max_sequences: int = 256
    prefill_only: bool = False  # release a request when its prompt is computed
    arrivals: Arrivals = "trace"
    speed: float = 1.0  # arrivals come so many times faster
    decode_stride: int = 16  # turns that pass at once while no prompt is computed
    seed: int = 0
    pace: Pace = USUAL
    slow: SlowPace | None = None  # of the coldest tier, if it is a slow one
    receipts: bool = False  # causes of misses; decides nothing
    eviction_cost: EvictionCost = "tokens"  # as in CacheConfig
    compute_doubles_at: int = USUAL_DOUBLE  # likewise; and what prompts cost is counted by it
    hints: Hints = "none"  # what is said of each request: whose it is, and when its text comes back

    def __post_init__(self) -> None:
        if any(tier.slow for tier in self.tiers) != (self.slow is not None):
            fact = "a slow tier and its bandwidths go together"
            raise InputError(say("a slow tier", fact, "give Memory(..., slow=True) and slow=SlowPace(), or neither"))
        if not 1 <= self.block_size <= MOST_BLOCK:
            fact = "a block has tokens" if self.block_size < 1 else "no page is that large"
            raise InputError(say(f"block_size {self.block_size}", fact, f"give at least 1, up to {MOST_BLOCK}"))
        if self.seed < 0:
            raise InputError(say(f"seed {self.seed}", "seeds are not negative", "give 0 or more"))
        if self.batch < 1:
            raise InputError(say(f"batch {self.batch}", "no request would be considered", "give at least 1"))
        if self.token_budget is not None and self.token_budget < 1:
            raise InputError(say(f"token_budget {self.token_budget}", "no prompt fits", "give at least 1, or None"))
        if not 1 <= self.decode_stride <= MOST_STRIDE:
            fact = "time would stand" if self.decode_stride < 1 else "no answer is that long"
            raise InputError(say(f"decode_stride {self.decode_stride}", fact, f"give at least 1, up to {MOST_STRIDE}"))
        if not 1 / MOST_SPEED <= self.speed <= MOST_SPEED:
            fact = "nothing would arrive" if self.speed <= 0 else "it is not a pace of requests"
            cure = f"give a number above 0, of {1 / MOST_SPEED:g} to {MOST_SPEED:g}, or arrivals='at-once'"
            raise InputError(say(f"speed {self.speed!r}", fact, cure))
        if self.arrivals not in ARRIVALS:
            raise InputError(say(f"arrivals {self.arrivals!r}", "it is not a known way", f"use one of {ARRIVALS}"))
        if self.hints not in HINTS:
            raise InputError(say(f"hints {self.hints!r}", "they are not known hints", f"use one of {HINTS}"))

    def with_memory(self, name: str, num_bytes: int | str = 0, blocks: tuple[int, ...] = ()) -> ReplaySettings:
        """The same with another size of one tier; a new name is added as the coldest."""
        memory = Memory(name, num_bytes, blocks)
        if any(tier.name == name for tier in self.tiers):
            return replace(self, tiers=tuple(memory if tier.name == name else tier for tier in self.tiers))
        return replace(self, tiers=(*self.tiers, memory))

    @property
    def admission(self) -> str:
        """Its name for people."""
        return "two-phase" if self.two_phase else "one at a time"

    @property
    def order(self) -> Eviction:
        """The order of eviction in force; for an unknown shape, the one asked for."""
        if self.eviction != "auto":
            return self.eviction
        try:
            return usual_order(find_shape(self.shape).groups(self.block_size))
        except InputError:
            return self.eviction

    def config(self, trace: Trace) -> CacheConfig:
        """The cache for this trace."""
        shape = find_shape(self.shape)
        groups = shape.groups(self.block_size)
        tiers = [TierConfig(tier.name, tier.slots(shape, self.block_size), tier.slow) for tier in self.tiers]
        total = sum(tier.of_pool(index) for tier in tiers for index in range(len(groups)))
        if total > MOST_PAGES:
            fact = f"its tiers hold {total:,} pages, and {MOST_PAGES:,} is the most that can be replayed"
            raise InputError(say(f"memory of {self.shape}", fact, "give less memory, or use larger blocks"))
        for index, group in enumerate(groups):
            if tiers[0].of_pool(index) < 1:
                fact = f"it holds no page of group {group.name!r} ({group.page_bytes} bytes)"
                raise InputError(say(f"memory of {tiers[0].name}", fact, "give more, or use smaller blocks"))
        return CacheConfig(
            tuple(tiers), self.block_size, groups, self._rows(trace), self._most_tokens(trace), self.max_chunk,
            eviction=self.eviction, eviction_cost=self.eviction_cost, compute_doubles_at=self.compute_doubles_at,
            offload_min_priority=self.offload_min_priority, partial_reuse=self.partial_reuse,
            shadows=self.shadows, receipts=self.receipts, receipt_scopes=self._other_scopes(trace),
            receipt_chunks=CHUNKS if self.receipts and not trace.unit and not trace.lengths_only else 0,
        )  # fmt: skip

    def _other_scopes(self, trace: Trace) -> int:
        """In how many other scopes a receipt looks for what is new in its own."""
        return 8 if self.receipts and any(one.scope != trace[0].scope for one in trace) else 0

    def _most_tokens(self, trace: Trace) -> int:
        """Of one sequence: a replay gives slots up to a block edge."""
        return -(-trace.longest // self.block_size) * self.block_size

    def _rows(self, trace: Trace) -> int:
        """Rows of the cache's tables: no more than there are requests."""
        rows = min(self.max_sequences, len(trace))
        if rows * (trace.longest // self.block_size + 1) > MOST_PAGES:
            fact = f"{rows} sequences of up to {trace.longest:,} tokens may run at once, too many for tables in memory"
            raise InputError(say(f"trace {trace.name!r}", fact, "allow fewer (--max-sequences), or use larger blocks"))
        return rows

    def times(self, trace: Trace) -> list[float]:
        """When each request comes, in seconds after the first one."""
        times = np.array([request.time for request in trace])
        times = np.round(times - times[0], 6)  # microseconds are enough
        if self.arrivals == "at-once":
            times[:] = 0.0
        elif self.arrivals == "poisson":
            mean = float(times[-1]) / max(len(times) - 1, 1)
            times[1:] = np.cumsum(np.random.default_rng(self.seed).exponential(mean, len(times) - 1))
        times /= self.speed
        check_clock(float(times[-1]))
        return [float(time) for time in times]

    def retention(self, request: TraceRequest) -> Retention | None:
        """The request's own rules, or those of the settings, cut to its prompt."""
        ranges = request.retain
        if self.retain and not ranges:
            ranges = tuple(rule for rule in self.retain if rule.start < request.length)
        if not ranges and self.decode_priority is None:
            return None
        if self.decode_priority is None:
            return Retention(ranges)
        return Retention(ranges, self.decode_priority)

    def session(self, request: TraceRequest) -> str | None:
        """The session it belongs to, if hints are given."""
        return None if self.hints == "none" or request.session is None else str(request.session)

    def to_json(self) -> dict[str, Any]:
        """For the page and the JSON: plain values, in a fixed order."""
        memory = {tier.name: list(tier.blocks) or tier.num_bytes for tier in self.tiers}
        return {
            "shape": self.shape,
            "admission": self.admission,
            "memory": {name: size if isinstance(size, int) else f"{size} blocks" for name, size in memory.items()},
            "block_size": self.block_size,
            "token_budget": self.token_budget,
            "max_chunk": self.max_chunk,
            "batch": self.batch,
            "eviction": self.order,
            "retain": [[item.start, item.end, item.priority, item.seconds] for item in self.retain],
            "decode_priority": self.decode_priority,
            "offload_min_priority": self.offload_min_priority,
            "partial_reuse": self.partial_reuse,
            "shadows": self.shadows,
            "max_sequences": self.max_sequences,
            "prefill_only": self.prefill_only,
            "arrivals": self.arrivals,
            "speed": self.speed,
            "decode_stride": self.decode_stride,
            "seed": self.seed,
            "pace": {
                "prefill_tokens_per_second": self.pace.prefill_tokens_per_second,
                "decode_ms": self.pace.decode_ms,
                "decode_ms_per_sequence": self.pace.decode_ms_per_sequence,
                "link_bytes_per_second": [self.pace.link(n) for n in range(1, len(self.tiers))],
            },
            **({} if self.slow is None else {"slow_tier": self.slow.to_json()}),
            **({} if self.eviction_cost == "tokens" else {"eviction_cost": self.eviction_cost}),
            **({} if self.compute_doubles_at == USUAL_DOUBLE else {"compute_doubles_at": self.compute_doubles_at}),
            **({} if self.hints == "none" else {"hints": self.hints}),
        }
