"""What one pool of host memory for all groups of a hybrid model keeps under vLLM, against a pool for each.

    python benchmarks/vllm_pool.py [--groups 2 3 6] [--gib 1 2 4] [--turns 300] [--seeds 3]

Conversations of 500 to 16,000 tokens, in blocks of 32, of a model with one group of full attention and others with a
window of 1,024; 64 KiB for a block of a group. Each turn is looked up, loaded and stored as the connector does it, part
by part; vLLM itself has nothing. Prints the share of prompt tokens that need not be computed. Needs no vLLM.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from quire import Cache, CacheConfig, Request, TierConfig
from quire.core.records.request import Int32
from quire.core.state.claim import Refusal
from quire.integrations.vllm.common.cache_groups import HOST, cache_config
from quire.integrations.vllm.common.connector_options import ConnectorOptions

BLOCK, WINDOW, PAGE, PART = 32, 1024, 64 << 10, 12  # tokens, tokens, bytes, blocks


class FullAttentionSpec(SimpleNamespace):
    """Known by its name, as vLLM's is."""


class SlidingWindowSpec(SimpleNamespace):
    """The same."""


def one_pool(groups: int, host: int) -> CacheConfig:
    """As the connector has it."""
    specs: list[SimpleNamespace] = [FullAttentionSpec(block_size=BLOCK, page_size_bytes=PAGE)]
    specs += [SlidingWindowSpec(block_size=BLOCK, page_size_bytes=PAGE, sliding_window=WINDOW)] * (groups - 1)
    made = [SimpleNamespace(kv_cache_spec=spec, layer_names=["layer"]) for spec in specs]
    model = SimpleNamespace(kv_cache_groups=made, kv_cache_tensors=[SimpleNamespace(size=PAGE)], num_blocks=1)
    return cache_config(model, ConnectorOptions(host=host), world_size=1, max_length=1 << 15, events=False)


def own_pools(config: CacheConfig) -> CacheConfig:
    """The same memory, cut up."""
    groups = tuple(replace(group, pool=None) for group in config.groups)
    each = config.tiers[HOST].of_pool(0) // len(groups)
    return replace(config, groups=groups, tiers=(TierConfig("device", 0), TierConfig("host", each)))


def turns(count: int, seed: int) -> Iterator[Int32]:
    """Whole conversations so far, each a few hundred tokens longer than when it was last asked."""
    dice = np.random.default_rng(seed)

    def words(least: int, most: int) -> Int32:
        return dice.integers(0, 50_000, dice.integers(least, most)).astype(np.int32)

    texts = [words(500, 6000) for _ in range(24)]
    for nth in range(count):
        which = int(dice.integers(len(texts))) if dice.random() < 0.5 else nth % len(texts)
        longer = np.concatenate([texts[which], words(50, 600)])
        texts[which] = longer if len(longer) <= 16_000 else words(500, 6000)
        yield texts[which]


def reused(config: CacheConfig, count: int, seed: int) -> float:
    """The share of prompt tokens that was found."""
    cache, asked, hit = Cache(config), 0, 0
    for nth, text in enumerate(turns(count, seed)):
        with cache.find(Request(nth, text, reuse_limit=len(text) - 1)) as found:
            found.used()
            end = found.end
        asked, hit = asked + len(text), hit + end
        whole = len(text) // BLOCK * BLOCK
        writer = cache.writer(Request(nth, text), tier=HOST, from_=end, end=0)
        assert not isinstance(writer, Refusal)
        with writer:
            for at in range(end, whole, PART * BLOCK):
                stop = min(whole, at + PART * BLOCK)
                if writer.extend(None, end=stop) is not None:
                    break
                writer.written(stop)
    return hit / asked


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 3, 6])
    parser.add_argument("--gib", type=float, nargs="+", default=[0.25, 0.5, 1])
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("| groups | host memory | a pool for each group | one pool |\n|---|---|---|---|")
    for groups in args.groups:
        for gib in args.gib:
            config = one_pool(groups, int(gib * (1 << 30)))
            rows = [
                [reused(one, args.turns, seed) for seed in range(1, args.seeds + 1)]
                for one in (own_pools(config), config)
            ]
            told = [f"{100 * min(row):.0f} to {100 * max(row):.0f} %" for row in rows]
            print(f"| {groups} | {gib:g} GiB | {told[0]} | {told[1]} |", flush=True)


if __name__ == "__main__":
    main()
