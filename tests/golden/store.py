"""Write a shared store in today's format, for later versions to read: python -m tests.golden.store FOLDER REDIS_URL

Once per format number. Two layer groups, a text of three blocks and one of two blocks in another scope: as files in
FOLDER/pages, and as FOLDER/redis.json from a Redis that is empty, with pages cut into parts. It uses public names
alone: what stands here is what a machine finds that has the same model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Request, Scope, TierConfig
from quire.tiers import ArenaTier
from quire.tiers.fingerprint import facts_digest, fingerprint
from quire.tiers.shared import FolderStore, SharedCache, SharedConfig, SharedStore

PAGE_BYTES = (24, 40)
PART_BYTES = 30  # of a value in this Redis: three parts of the larger page
GROUPS = tuple(LayerGroup(name, page_bytes=size) for name, size in zip(("even", "odd"), PAGE_BYTES, strict=True))
TIERS = (TierConfig("device", 0), TierConfig("host", 16))
CONFIG = CacheConfig(TIERS, block_size=4, groups=GROUPS, max_length=32)
TEXTS = [
    (np.arange(100, 112, dtype=np.int32), Scope()),
    (np.arange(50, 58, dtype=np.int32), Scope(lora="sql", salt="tenant")),
]
PATIENT = 120.0  # seconds


class Machine:
    """A cache in front of a store."""

    def __init__(self, store: SharedStore) -> None:
        self.cache = Cache(CONFIG)
        self.host = ArenaTier("host", [16, 16], PAGE_BYTES)
        model = fingerprint(CONFIG, facts_digest({"model": "golden", "revision": "1"}), dtype="float32")
        tiers = [ArenaTier("device", [0, 0], PAGE_BYTES), self.host]
        self.shared = SharedCache(self.cache, tiers, SharedConfig("given"), model, store=store)

    def publish(self, nth: int) -> None:
        """Send a text."""
        tokens, scope = TEXTS[nth]
        writer = self.cache.writer(Request(nth, tokens, scope), tier=1)
        with writer:  # type: ignore[union-attr]
            for group in range(2):
                for block, slot in zip(writer.blocks(group), writer.slots(group), strict=True):  # type: ignore[union-attr]
                    self.host.view(group)[slot] = page_of(nth, int(block), group)
            writer.written(len(tokens))  # type: ignore[union-attr]
        self.shared.publish(Request(nth, tokens, scope))
        assert self.shared.wait_until_idle(PATIENT)

    def fetch(self, nth: int) -> list[np.ndarray]:
        """The pages of a text that come, block by block, and group by group."""
        tokens, scope = TEXTS[nth]
        with self.shared.fetch(Request("again", tokens, scope), wait=PATIENT):
            assert self.shared.wait_until_idle(PATIENT)
            with self.cache.find(Request("there", tokens, scope)) as found:
                slots = [found.slots(group).tolist() for group in range(2)]
                return [
                    self.host.view(group)[slot].copy()
                    for pair in zip(*slots, strict=True)
                    for group, slot in enumerate(pair)
                ]


def page_of(text: int, block: int, group: int) -> np.ndarray:
    return (np.arange(PAGE_BYTES[group]) + 100 * text + 10 * block + group).astype(np.uint8)


def fill(store: SharedStore) -> None:
    machine = Machine(store)
    for nth in range(len(TEXTS)):
        machine.publish(nth)
    assert machine.shared.close(PATIENT)


def values_in(client: Any) -> dict[str, str]:
    """Everything in a Redis, as text."""
    return {key.decode(): client.get(key).hex() for key in sorted(client.keys("*"))}


def main(folder: Path, url: str) -> None:
    import redis

    from quire.tiers.shared.stores.redis_store import RedisStore

    fill(FolderStore(folder / "pages"))
    client = redis.Redis.from_url(url)
    assert client.dbsize() == 0, "it is not empty"
    fill(RedisStore(url, part_bytes=PART_BYTES))
    (folder / "redis.json").write_text(json.dumps(values_in(client), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
