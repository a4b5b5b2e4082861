"""evaluate: traffic and memory in, a RegretReport out, in steps between which others may work. Knows no cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quire.core.records.config import CacheConfig
from quire.insight.order_sample import ORDERS, OrderSample
from quire.insight.regret_report import GB, CurvePoint, RegretReport, TierRegret
from quire.insight.traffic import Traffic
from quire.insight.what_if import WhatIf

NUM_POINTS = 48  # of a curve
SMALLEST, LARGEST = 1 / 16, 4  # sizes of a curve, of the device's memory and of all there is
NO_FULL_GROUP = "no layer group reads all tokens, so nothing is known of other sizes"


@dataclass(frozen=True, slots=True)
class TierMemory:
    """What one tier has room for."""

    name: str
    blocks: int
    num_bytes: int


def memory_of(config: CacheConfig) -> tuple[TierMemory, ...]:
    """Room in blocks of the layer groups that read all tokens; all bytes count, so a GB is divided as it is now."""
    full = [nth for nth, group in enumerate(config.groups) if group.kind == "full"]
    found = []
    sizes = dict(zip(config.pool_of, (group.page_bytes for group in config.groups), strict=True))
    for tier in config.tiers:
        blocks = min((tier.of_pool(config.pool_of[nth]) for nth in full), default=0)
        num_bytes = sum(tier.of_pool(pool) * page_bytes for pool, page_bytes in sizes.items())
        found.append(TierMemory(tier.name, blocks, num_bytes))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a report is made of."""

    traffic: Traffic
    sample: OrderSample
    memory: tuple[TierMemory, ...]
    block_size: int
    eviction: str
    lost: int = 0


def evaluate(seen: Observed, now: float, orders: bool) -> Iterator[RegretReport | None]:
    """The report is the last that it yields; before it None, to pause."""
    asked = WhatIf(seen.traffic, now)
    unit = seen.block_size / asked.prompt_tokens if asked.prompt_tokens else 0.0
    ends = np.cumsum([tier.blocks for tier in seen.memory])
    total = int(ends[-1])
    best: list[float | None] = []
    gains: dict[str, float] = {}
    if total and orders:
        for end in ends.tolist():
            hits = 0.0
            for found in asked.best(end):
                hits = hits if found is None else found
                yield None
            best.append(hits * unit)
        for answer in seen.sample.gains(total, now - seen.traffic.window):
            gains = gains if answer is None else {name: gain * asked.hittable * unit for name, gain in answer.items()}
            yield None
    lru = asked.lru(ends.astype(np.float64)) * unit
    measured = [tokens / max(asked.prompt_tokens, 1) for tokens in asked.hit_tokens]
    tiers = tuple(
        TierRegret(
            tier.name, tier.blocks, tier.num_bytes, measured[nth], float(lru[nth]), best[nth] if best else None,
            _per_gb(asked, unit, tier, int(ends[nth])),
        )
        for nth, tier in enumerate(seen.memory)
    )  # fmt: skip
    yield RegretReport(
        seconds=min(asked.seconds, seen.traffic.window), requests=asked.num_requests,
        prompt_tokens=asked.prompt_tokens, hit_rate=sum(measured), ceiling=asked.ceiling() * unit,
        optimum=best[-1] if best else None,
        orders={name: float(lru[-1]) + gains[name] for name in ORDERS} if gains else {"lru": float(lru[-1])},
        tiers=tiers, curve=_curve(asked, unit, seen.memory), eviction=seen.eviction, one_in=asked.one_in,
        num_blocks=asked.num_distinct, lost=seen.lost, note="" if total else NO_FULL_GROUP,
    )  # fmt: skip


def _per_gb(asked: WhatIf, unit: float, tier: TierMemory, end: int) -> float | None:
    """What another GB would add. Unknown for a tier of no bytes."""
    if not tier.num_bytes or not tier.blocks:
        return None
    more = end + GB * tier.blocks / tier.num_bytes
    before, after = asked.lru(np.array([end, more])) * unit
    return float(after - before)


def _curve(asked: WhatIf, unit: float, memory: tuple[TierMemory, ...]) -> tuple[CurvePoint, ...]:
    total, device = sum(tier.blocks for tier in memory), memory[0].blocks
    if not total:
        return ()
    sizes = np.geomspace(max(1.0, (device or total) * SMALLEST), max(2.0, total * LARGEST), NUM_POINTS).round()
    sizes = np.unique(np.concatenate([sizes, np.cumsum([tier.blocks for tier in memory if tier.blocks])]))
    size_bytes = sum(tier.num_bytes for tier in memory) / total
    rates = asked.lru(sizes) * unit
    rows = zip(sizes.astype(np.int64).tolist(), rates.tolist(), strict=True)
    return tuple(CurvePoint(blocks, round(blocks * size_bytes), rate) for blocks, rate in rows)
