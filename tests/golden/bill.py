"""Write a bill of today's format, for later versions to read and to go on with: python -m tests.golden.bill FILE

Tenants that share, an adapter, a session, an account without tenant, evictions, reads from a host tier, others, nobody.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Request, Scope, TierConfig
from quire.insight.bills import Bill, Bills, save_bill

TEXT = np.arange(24, dtype=np.int32)


def lived() -> Bill:
    """One small life."""
    time = 0
    bills = Bills(sessions=True, most_accounts=7, clock=lambda: time, now=lambda: datetime(2026, 11, 19, tzinfo=UTC))
    tiers = (TierConfig("device", 6), TierConfig("host", 3))
    config = CacheConfig(tiers, 4, [LayerGroup(page_bytes=1000)], max_length=64, eviction="lru", offload_min_priority=0)
    cache = Cache(config, watchers=[bills])
    asked: list[tuple[str | None, dict[str, Any]]] = [
        ("alice", {}), ("bob", {}), ("alice", {"session": "s"}), ("bob", {"scope": Scope(lora="sql")}), (None, {}),
             ("carol", {}), ("dave", {}), ("alice", {})]  # fmt: skip
    for number, (tenant, more) in enumerate(asked):
        batch = cache.add_sequence_batch([Request(number, TEXT[: 24 - number], tenant=tenant, **more)])
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        cache.release(batch.sequences)
        time += 1_000_000_007
    return bills.bill()


if __name__ == "__main__":
    save_bill(lived(), Path(sys.argv[1]))
