"""Runs the rounds: every row once per round, all contestants inside one run, minima kept. Knows no output format."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns

from cachebench import workload as load
from cachebench.peers import Peer, open_floor, open_vllm
from cachebench.rows import Rows
from cachebench.samples import LOOKS, ROWS, Samples, fewest_us

Numbers = dict[str, float]
BLOCKS = load.PROMPT // load.BLOCK


class Best:
    """Minimum per name, in microseconds."""

    def __init__(self) -> None:
        self.numbers: Numbers = {}

    def take(self, name: str, sample: Callable[[], int], repeats: int = 21) -> None:
        """A few samples with the collector off."""
        best = fewest_us(sample, repeats)
        self.numbers[name] = min(best, self.numbers.get(name, best))


def measure(rounds: int, vllm_python: str | None, *, quick: bool) -> Numbers:
    """All rows, interleaved round by round."""
    best, samples = Best(), Samples()
    peers = [peer for peer in (open_floor(rounds), open_vllm(vllm_python, rounds)) if peer is not None]
    for number in range(rounds):
        _progress(number, rounds)
        for name in ROWS + LOOKS:
            best.take(name, *samples.row(name))
        for peer in peers:
            _merge(best.numbers, peer)
    numbers = best.numbers
    numbers["tiers_events_factor"] = numbers.pop("rich_cold_8k_us") / numbers["cold_8k_us"]
    numbers["event_ns_per_block"] = (numbers["tiers_events_factor"] - 1) * numbers["cold_8k_us"] * 1000 / BLOCKS
    for short, row in (("cold", "cold_8k_us"), ("hit", "hit75_8k_us"), ("decode", "decode_1024_us")):
        three, one = numbers.pop(f"three_groups_{row}"), numbers.pop(f"one_group_{row}")
        numbers[f"groups_{short}_factor"] = three / one
    for row in LOOKS[1:]:
        numbers[row.replace("_8k_us", "_factor")] = numbers.pop(row) / numbers["claim_drop_8k_us"]
    numbers["bytes_per_block"], numbers["ghost_bytes_per_slot"] = _bytes(samples.plain), _ghost_bytes()
    numbers["gc_ms"] = _gc_ms(samples.plain)
    if not quick:
        numbers["scale_1m_over_10k"] = _scale()
    for peer in peers:
        peer.close()
    return numbers


def _merge(numbers: Numbers, peer: Peer) -> None:
    for name, value in peer.round().items():
        numbers[name] = min(value, numbers.get(name, value))


def _bytes(rows: Rows) -> float:
    """Of what is known of pages that are there, per block."""
    metadata, _ = rows.cache._setup.store.nbytes()
    usage = rows.cache.usage()
    return (metadata - usage.ghost_bytes) / usage.idle


def _ghost_bytes() -> float:
    """Of what is known of pages that are gone, per slot, when as many have gone as are remembered."""
    cache = load.make_cache(slots=2 * BLOCKS, rows=8)
    for seed in range(20):
        load.run_through(cache, load.text(60_000_000 + seed, load.PROMPT))
    return cache.usage().ghost_bytes / cache.usage().capacity


def _gc_ms(rows: Rows) -> float:
    """A full collection beside a cache of 100k blocks."""
    import gc

    def collect() -> int:
        began = perf_counter_ns()
        gc.collect()
        return perf_counter_ns() - began

    if rows.cache.usage().idle <= 80_000:
        raise RuntimeError(f"the cache should hold 89k idle blocks and has {rows.cache.usage().idle}")
    return fewest_us(collect, 21) / 1000


def _scale() -> float:
    """Cold and 90 % hit with a million indexed blocks against ten thousand, interleaved: the worse ratio."""
    best = Best()
    worlds = {"small": _indexed(10_000), "large": _indexed(1_000_000)}
    for _ in range(7):
        for name, rows in worlds.items():
            best.take(f"{name}_cold", rows.cold_8k_us)
            best.take(f"{name}_hit", rows.hit90_8k_us)
    numbers = best.numbers
    return max(numbers[f"large_{row}"] / numbers[f"small_{row}"] for row in ("cold", "hit"))


def _indexed(num_blocks: int) -> Rows:
    cache = load.make_cache(slots=num_blocks + 2_000, rows=8)
    load.run_through(cache, load.document())
    seed = 0
    while cache.usage().idle < num_blocks - BLOCKS:
        seed += 1
        load.run_through(cache, load.text(50_000_000 + seed, load.PROMPT))
    return Rows(cache)


def _progress(number: int, rounds: int) -> None:
    if sys.stderr.isatty():
        print(f"\rround {number + 1} of {rounds}", end="" if number + 1 < rounds else "\n", file=sys.stderr, flush=True)
