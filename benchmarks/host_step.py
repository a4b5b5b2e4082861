"""What a step costs around the model: python -m benchmarks.host_step [--sequences 256] [--steps 400]

Sequences decode, one token each; nothing waits. `calls` are what any engine has to do in such a step, by rows: grow,
the rows of the block table, the slot of each new token, commit, events. `example` is the step of examples/engine.py,
its model left out: schedule, grow, claim and admit, commit, sampled tokens. Medians of single steps, in microseconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, Request, TierConfig

BLOCK, PROMPT = 16, 200


def by_rows(num_sequences: int, steps: int) -> dict[str, float]:
    """Each call of a step by itself, and all of them."""
    pages = num_sequences * -(-(PROMPT + steps + 1) // BLOCK)
    cache = Cache(CacheConfig((TierConfig("device", pages),), BLOCK, max_sequences=num_sequences, max_length=4096))
    requests = [Request(nth, np.arange(PROMPT, dtype=np.int32) + 1000 * nth) for nth in range(num_sequences)]
    sequences = cache.add_sequence_batch(requests).sequences
    rows = np.array([one.row for one in sequences], np.int32)
    cache.commit(rows)
    tokens, lengths = np.zeros(num_sequences, np.int32), np.full(num_sequences, PROMPT)
    memory, nth_row = np.zeros((num_sequences, 4096 // BLOCK), np.int32), np.arange(num_sequences)
    times: dict[str, list[int]] = {"grow": [], "changes": [], "rows": [], "slots": [], "commit": [], "events": []}
    for _ in range(steps):
        marks = [perf_counter_ns()]
        plan = cache.grow(rows, tokens)
        assert plan is not None and not plan
        marks.append(perf_counter_ns())
        cache.take_table_changes()
        marks.append(perf_counter_ns())
        table = cache.table(rows=rows, out=memory)
        marks.append(perf_counter_ns())
        block, place = np.divmod(lengths, BLOCK)
        table[nth_row, block] * BLOCK + place  # where each new token's KV goes
        lengths += 1
        marks.append(perf_counter_ns())
        cache.commit(rows)
        marks.append(perf_counter_ns())
        cache.take_events()
        marks.append(perf_counter_ns())
        for name, one, other in zip(times, marks, marks[1:], strict=False):
            times[name].append(other - one)
    whole = [sum(step) for step in zip(*times.values(), strict=True)]
    return {name: median(some) / 1000 for name, some in times.items()} | {"all": median(whole) / 1000}


def example_engine(num_sequences: int) -> Any:
    """The example for so many sequences; its model computes nothing and answers 1."""
    path = Path(__file__).resolve().parent.parent / "examples" / "engine.py"
    spec = importlib.util.spec_from_file_location("example_engine", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SEQUENCES = num_sequences

    class WithoutModel(module.Engine):  # type: ignore[misc]
        def _compute(self, *_: Any) -> None:
            """A GPU does it."""

        def _sample(self, rows: Any, *_: Any) -> Any:
            return np.ones(len(rows), np.int32)

    return WithoutModel(device_pages=num_sequences * 64, host_pages=64, budget=1 << 20)


def by_example(num_sequences: int, steps: int) -> dict[str, float]:
    """A step of the example while all decode."""
    engine = example_engine(num_sequences)
    for nth in range(num_sequences):
        engine.submit(f"r{nth}", [nth, *range(15)], num_tokens=1 << 30)
    while engine.waiting or any(one.ran < one.length for one in engine.running):
        engine.step()
    times = []
    for _ in range(min(steps, 200)):
        begin = perf_counter_ns()
        engine.step()
        times.append(perf_counter_ns() - begin)
    return {"all": median(times) / 1000}


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    gc.disable()
    for name, measure in (("calls", by_rows), ("example", by_example)):
        found = measure(options.sequences, options.steps)
        print(f"{name:8}", "  ".join(f"{part} {micros:.1f}" for part, micros in found.items()))


if __name__ == "__main__":
    main()
