"""Runs the rounds: every row once per round, all contestants inside one run, minima kept. Knows no output format."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from quire.tools.bench import workload as load
from quire.tools.bench.groups import ONE, THREE, Mix
from quire.tools.bench.peers import Peer, open_floor, open_vllm
from quire.tools.bench.rows import Decode, Rows

Numbers = dict[str, float]
BLOCKS = load.PROMPT // load.BLOCK
REPEATS = 21  # samples of a row in a round


class Best:
    """Minimum per name, in microseconds."""

    def __init__(self) -> None:
        self.numbers: Numbers = {}

    def take(self, name: str, sample: Callable[[], int], repeats: int = REPEATS) -> None:
        """A few samples with the collector off."""
        gc.collect()
        gc.disable()
        try:
            best = min(sample() for _ in range(repeats)) / 1000
        finally:
            gc.enable()
        self.numbers[name] = min(best, self.numbers.get(name, best))


def measure(rounds: int, vllm_python: str | None, *, quick: bool) -> Numbers:
    """All rows, interleaved round by round."""
    best = Best()
    peers = [peer for peer in (open_floor(rounds), open_vllm(vllm_python, rounds)) if peer is not None]
    plain = _warmed()
    full, rich, decode = _warmed(), _warmed(host=20_000, events=True), Decode()
    full.fill()
    for number in range(rounds):
        _progress(number, rounds)
        for name in ("cold_8k_us", "hit90_8k_us", "release_8k_us"):
            best.take(name, getattr(plain, name))
        best.take("full_8k_us", full.full_8k_us)
        best.take("admit_64x8k_us", full.admit_64x8k_us, 3)
        best.take("decode_1024_us", decode.step, 2 * load.BLOCK)
        best.take("rich_cold_8k_us", lambda: _drained(rich))
        for peer in peers:
            _merge(best.numbers, peer)
    numbers = best.numbers
    numbers["tiers_events_factor"] = numbers.pop("rich_cold_8k_us") / numbers["cold_8k_us"]
    numbers["event_ns_per_block"] = (numbers["tiers_events_factor"] - 1) * numbers["cold_8k_us"] * 1000 / BLOCKS
    numbers |= _groups(rounds)
    numbers["bytes_per_block"] = _bytes_per_block(plain)
    numbers["gc_ms"] = _gc_ms(plain)
    if not quick:
        numbers["scale_1m_over_10k"] = _scale()
    for peer in peers:
        peer.close()
    return numbers


def _warmed(*, host: int = 0, events: bool = False) -> Rows:
    cache = load.make_cache(host=host, events=events)
    load.warm(cache)
    return Rows(cache)


def _drained(rows: Rows) -> int:
    took = rows.cold_8k_us()
    rows.cache.take_events()
    return took


def _merge(numbers: Numbers, peer: Peer) -> None:
    for name, value in peer.round().items():
        numbers[name] = min(value, numbers.get(name, value))


def _bytes_per_block(rows: Rows) -> float:
    metadata, _ = rows.cache._state.store.nbytes()
    return metadata / rows.cache.usage().idle


def _gc_ms(rows: Rows) -> float:
    """A full collection beside a cache of 100k blocks."""
    best = Best()

    def collect() -> int:
        from time import perf_counter_ns

        began = perf_counter_ns()
        gc.collect()
        return perf_counter_ns() - began

    assert rows.cache.usage().idle > 80_000
    best.take("gc", collect)
    return best.numbers["gc"] / 1000


def _groups(rounds: int) -> Numbers:
    """Three kinds of layer groups over one full group, the same steps, interleaved."""
    best = Best()
    worlds = {"one": Mix(ONE), "three": Mix(THREE)}
    for _ in range(rounds):
        for name, mix in worlds.items():
            for row in ("cold", "hit"):
                best.take(f"{name}_{row}", getattr(mix, row))
            best.take(f"{name}_step", mix.step, 2 * load.BLOCK)
    numbers = best.numbers
    return {f"groups_{row}_factor": numbers[f"three_{row}"] / numbers[f"one_{row}"] for row in ("cold", "hit", "step")}


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
