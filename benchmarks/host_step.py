"""What a step costs around the model: python -m benchmarks.host_step [--sequences 256] [--steps 400] [--block 16]

Sequences decode, one token each; nothing waits. `calls` are what any engine has to do in such a step, by rows: grow,
the rows of the block table, the slot of each new token, commit, events. `engine` and `overlap` are the steps of
examples/engine.py and examples/overlap.py, their model left out: schedule, grow, claim and admit, commit, sampled
tokens. With `--nano-vllm FOLDER`, a checkout of github.com/GeeeekExplorer/nano-vllm, its own step in the same run
(nano_vllm.py says what of it). Medians of single steps, in microseconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.nano_vllm import by_nano_vllm
from quire import Cache, CacheConfig, Request, TierConfig

PROMPT = 200


def by_rows(num_sequences: int, steps: int, size: int) -> dict[str, float]:
    """Each call of a step by itself, and all of them."""
    pages = num_sequences * -(-(PROMPT + steps + 1) // size)
    cache = Cache(CacheConfig((TierConfig("device", pages),), size, max_sequences=num_sequences, max_length=4096))
    requests = [Request(nth, np.arange(PROMPT, dtype=np.int32) + 1000 * nth) for nth in range(num_sequences)]
    sequences = cache.add_sequence_batch(requests).sequences
    rows = np.array([one.row for one in sequences], np.int32)
    cache.commit(rows)
    tokens, lengths = np.zeros(num_sequences, np.int32), np.full(num_sequences, PROMPT)
    memory, nth_row = np.zeros((num_sequences, 4096 // size), np.int32), np.arange(num_sequences)
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
        block, place = np.divmod(lengths, size)
        table[nth_row, block] * size + place  # where each new token's KV goes
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


def example_engine(name: str, num_sequences: int, longest: int, size: int) -> Any:
    """An example for so many sequences; its model computes nothing and answers 1."""
    folder = str(Path(__file__).resolve().parent.parent / "examples")
    sys.path.insert(0, folder)
    try:
        engine: Any = importlib.import_module("engine")
        module: Any = importlib.import_module(name)
    finally:
        sys.path.remove(folder)
    engine.SEQUENCES, engine.LONGEST, engine.BLOCK, module.BLOCK = num_sequences, longest, size, size

    class WithoutModel(module.AheadEngine if name == "overlap" else engine.Engine):  # type: ignore[misc]
        def _compute(self, *_: Any) -> None:
            """A GPU does it."""

        def _sample(self, rows: Any, *_: Any) -> Any:
            return np.ones(len(rows), np.int32)

    return WithoutModel(device_pages=num_sequences * -(-longest // size), host_pages=64, budget=1 << 20)


def by_example(name: str, num_sequences: int, steps: int, size: int) -> dict[str, float]:
    """A step of an example while all decode."""
    engine = example_engine(name, num_sequences, PROMPT + steps + 64, size)
    for nth in range(num_sequences):
        engine.submit(f"r{nth}", [nth, *range(PROMPT - 1)], num_tokens=1 << 30)
    while engine.waiting or any(one.ran < one.prompt_end for one in engine.running):
        engine.step()
    times = []
    for _ in range(steps):
        begin = perf_counter_ns()
        engine.step()
        times.append(perf_counter_ns() - begin)
    return {"all": median(times) / 1000}


def main() -> None:
    """Print all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument(
        "--nano-vllm", type=Path, metavar="FOLDER", help="a checkout of it, whose own step is timed too"
    )
    options = parser.parse_args()
    gc.disable()
    sizes = options.sequences, options.steps, options.block
    measured = {"calls": by_rows(*sizes)}
    measured |= {name: by_example(name, *sizes) for name in ("engine", "overlap")}
    if options.nano_vllm is not None:
        measured["nano-vllm"] = by_nano_vllm(options.nano_vllm, *sizes, PROMPT)
    for name, found in measured.items():
        print(f"{name:10}", "  ".join(f"{part} {micros:.1f}" for part, micros in found.items()))


if __name__ == "__main__":
    main()
