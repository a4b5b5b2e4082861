"""What watching a cache costs, and how far a sample of its blocks is from the truth, by seed.

    python benchmarks/regret.py TRACE [--block-size 512] [--one-in 10] [--seeds 6]

Prints per seed the largest difference in points, over lru and the optimum at five sizes and the ceiling; then the time
per request, the memory, and what a report takes.
"""

from __future__ import annotations

import time
import tracemalloc
from argparse import ArgumentParser

import numpy as np
from numpy.typing import NDArray

from quire.insight.order_sample import OrderSample
from quire.insight.traffic import AskedPrompt, Traffic
from quire.insight.what_if import WhatIf
from quire.trace.read.token_ids import TokenIds
from quire.trace.read.trace import Trace, read_trace
from quire.trace.record.block_ids import TraceKey

SHARES = (0.003, 0.01, 0.03, 0.1, 0.3)  # sizes, of all blocks asked for


def main() -> None:
    """Both tables."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--one-in", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    trace = read_trace(options.trace)
    exact = rates(trace, options.block_size, 1, 0)
    print("exact, %:", " ".join(f"{rate:.2f}" for rate in exact))
    differences = []
    for seed in range(options.seeds):
        found = rates(trace, options.block_size, options.one_in, seed) - exact
        differences.append(found)
        print(f"seed {seed}: " + " ".join(f"{one:+.2f}" for one in found) + f"   worst {np.abs(found).max():.2f}")
    if differences:
        print("bias:   " + " ".join(f"{one:+.2f}" for one in np.mean(differences, axis=0)))
    cost(trace, options.block_size)


def rates(trace: Trace, size: int, one_in: int, seed: int) -> NDArray[np.float64]:
    """In percent of all prompt tokens."""
    traffic, blocks = watched(trace, size, one_in, seed)
    asked = WhatIf(traffic, trace[len(trace) - 1].time)
    sizes = [round(share * blocks) for share in SHARES]
    best = [[found for found in asked.best(one) if found is not None][-1] for one in sizes]
    hits = [*asked.lru(np.array(sizes, np.float64)), *best, asked.ceiling()]
    return np.array(hits) * size / asked.prompt_tokens * 100


def watched(trace: Trace, size: int, one_in: int, seed: int) -> tuple[Traffic, int]:
    """The whole trace, under the keys of a seed; and how many blocks it asks for."""
    key, tokens, blocks = TraceKey(seed.to_bytes(16, "little")), TokenIds(trace), 0
    traffic, root = Traffic(1, 1e12, one_in=one_in), 1
    for request in trace:
        keys = key.whole_blocks(tokens.prompt(request), size, root)
        blocks += len(keys)
        hittable = max(request.length - 1, 0) // size
        traffic.use(keys, request.time, AskedPrompt(request.length, min(len(keys), hittable), (0,)))
    return traffic, blocks


def cost(trace: Trace, size: int) -> None:
    """Of the thread: keys, the traffic, the sample for orders; and of a report."""
    key, tokens = TraceKey(), TokenIds(trace)
    traffic, sample, spent = Traffic(1, 1e12), OrderSample(), 0.0
    tracemalloc.start()
    for request in trace:
        prompt = tokens.prompt(request)
        before = time.thread_time()
        keys = key.whole_blocks(prompt, size, 1)
        hittable = min(len(keys), max(request.length - 1, 0) // size)
        traffic.use(keys, request.time, AskedPrompt(request.length, hittable, (0,)))
        sample.add(keys, request.time, hittable)
        spent += time.thread_time() - before
    seconds, tokens_each = trace[len(trace) - 1].time - trace[0].time, sum(one.length for one in trace) / len(trace)
    print(f"{spent / len(trace) * 1e6:.0f} us a request of {tokens_each:.0f} tokens: {spent / seconds:.2%} of a core")
    before = time.thread_time()
    asked, total = WhatIf(traffic, trace[len(trace) - 1].time), max(traffic.num_distinct // 4, 1)
    for steps in (asked.best(total), sample.gains(total, 0.0)):
        for _ in steps:
            pass
    print(f"optimum and orders: {time.thread_time() - before:.2f} s of processor time")
    peak = tracemalloc.get_traced_memory()[1]
    print(f"{(traffic.num_bytes + sample.num_bytes) / 1e6:.1f} MB, at most {peak / 1e6:.1f} MB with what is temporary")


if __name__ == "__main__":
    main()
