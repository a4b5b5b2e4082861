"""Hits of vLLM's own host cache under its own policies and under ours, on traces; and what ours takes per block.

    make vllm-env
    PYTHONPATH=. .vllm-env/bin/python benchmarks/vllm_policy.py [conversation.jsonl synthetic.jsonl]

vLLM's `CPUOffloadingManager` runs as its scheduler drives it: each request looks its blocks up, loads the hit, stores
the rest in steps of 16 blocks, and finishes. No bytes are moved. Without files the samples that ship are taken. The
policy's time is that of its calls alone, recorded in one run and repeated by themselves on new policies, in turn.
Beside it stands what an addition in a Python loop took in the same turns: rows of two machines compare by it.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quire.trace.read.trace import SAMPLES, Trace, read_trace

STEP = 16  # blocks that a step stores: 8,192 tokens of 512
POLICIES = ("lru", "arc", "QuireLruPolicy", "QuirePolicy")
SIZES = (1000, 3000, 10_000)


class Clock:
    """The trace's own time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def key_of(part: int, before: bytes) -> bytes:
    """A block's chained hash, and its group: as vLLM makes keys."""
    return hashlib.sha256(before + part.to_bytes(8, "little")).digest() + bytes(4)


def asked_blocks(trace: Trace) -> list[tuple[float, list[bytes]]]:
    """When each request came, and the keys of its whole blocks."""
    found = []
    for request in trace:
        keys: list[bytes] = []
        for part, size in zip(request.parts.tolist(), request.sizes.tolist(), strict=True):
            if size < request.sizes[0]:
                break
            keys.append(key_of(part, keys[-1] if keys else b""))
        found.append((request.time, keys))
    return found


def manager_with(policy: str, size: int, clock: Clock) -> Any:
    """vLLM's manager of that many blocks."""
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    if not policy.startswith("Quire"):
        return CPUOffloadingManager(size, policy)
    manager = CPUOffloadingManager(size, policy, "quire.integrations.vllm.policy")
    manager._policy = type(manager._policy)(size, clock)
    return manager


def serve(manager: Any, number: int, keys: list[bytes]) -> int:
    """One request's life; blocks of its hit."""
    from vllm.v1.kv_offload.base import LookupResult, ReqContext

    context = ReqContext(str(number))
    for nth, key in enumerate(keys):
        context.set_offload_key_position(key, (nth + 1) * 512)
    manager.on_new_request(context)
    hit = 0
    while hit < len(keys) and manager.lookup(keys[hit], context) is LookupResult.HIT:
        hit += 1
    if hit:
        manager.prepare_load(keys[:hit], context)
        manager.complete_load(keys[:hit], context)
    for start in range(hit, len(keys), STEP):
        stored = manager.prepare_store(keys[start : start + STEP], context)
        if stored is not None:
            manager.complete_store(stored.keys_to_store, context)
    manager.on_request_finished(context)
    return hit


def hit_rate(policy: str, size: int, asked: list[tuple[float, list[bytes]]]) -> float:
    """% of the blocks of the second half that were hit."""
    clock = Clock()
    manager, hits, blocks = manager_with(policy, size, clock), 0, 0
    for number, (clock.now, keys) in enumerate(asked):
        hit = serve(manager, number, keys)
        if 2 * number >= len(asked):
            hits, blocks = hits + hit, blocks + len(keys)
    return 100 * hits / max(1, blocks)


class Recording:
    """A policy whose calls are written down, each with the time of the trace."""

    def __init__(self, policy: Any, clock: Clock) -> None:
        self.policy, self.clock, self.calls = policy, clock, list[tuple[float, str, tuple[Any, ...]]]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.policy, name)

        def call(*given: Any) -> Any:
            self.calls.append((self.clock.now, name, given))
            return method(*given)

        setattr(self, name, call)
        return call


Step = tuple[float, list[tuple[Any, int]], Any, list[tuple[Any, ...]]]
"""When; what the manager counts in chunks first; then a method, and what it is given each time."""


def repeatable(calls: list[tuple[float, str, tuple[Any, ...]]], policy: Any) -> list[Step]:
    """The same calls of another policy, with chunks of its own, whose readers are counted as the manager does. Calls of
    one method in a row are one step, so that what repeats them adds as little as can be."""
    there: dict[bytes, Any] = {}
    steps: list[Step] = []
    for now, name, given in calls:
        counts = []
        if name == "insert":
            given = given[0], type(given[1])(given[1].chunk_id)
            there[given[0]] = given[1]
        elif name.startswith("mark"):
            counts = [(there[given[0]], int(name == "mark_non_evictable"))]
        elif name in ("on_store_miss", "on_request_finished"):
            given[-1]._state.clear()  # what the first policy remembered of the request
        method = getattr(policy, name)
        if not steps or (steps[-1][0], steps[-1][2]) != (now, method):
            steps.append((now, [], method, []))
        steps[-1][1].extend(counts)
        steps[-1][3].append(given)
    return steps


def addition(count: int = 200_000) -> float:
    """Microseconds of processor time of an addition in a Python loop."""
    total, begun = 0, time.thread_time_ns()
    for number in range(count):
        total += number
    return (time.thread_time_ns() - begun) / 1e3 / count


def times_per_block(
    policies: Sequence[str], size: int, asked: list[tuple[float, list[bytes]]], times: int
) -> list[float]:
    """Microseconds of processor time that each policy takes for a block of a request, and of an addition last: of each
    moment of the trace the least of so many runs, in turn, since other programs only make it longer. The work is the
    same in every run."""
    clock, added = Clock(), list[float]()
    recorded = {}
    for policy in policies:
        manager = manager_with(policy, size, clock)
        recording = manager._policy = Recording(manager._policy, clock)
        for number, (clock.now, keys) in enumerate(asked):
            serve(manager, number, keys)
        recorded[policy] = recording.calls
    runs: dict[str, list[list[float]]] = {policy: [] for policy in policies}
    for _ in range(times):
        for policy in policies:
            runs[policy].append(replayed(policy, size, recorded[policy], clock))
            added.append(addition())
    least = {policy: sum(map(min, zip(*took, strict=True))) for policy, took in runs.items()}
    return [*(least[policy] * 1e6 / sum(len(keys) for _, keys in asked) for policy in policies), min(added)]


def replayed(policy: str, size: int, calls: list[tuple[float, str, tuple[Any, ...]]], clock: Clock) -> list[float]:
    """Seconds of the calls alone, of a new policy, for each moment of the trace."""
    again = repeatable(calls, manager_with(policy, size, clock)._policy)
    taken: dict[float, int] = defaultdict(int)
    gc.collect()
    gc.disable()
    for clock.now, counts, method, every in again:
        for chunk, readers in counts:
            chunk.ref_cnt = readers
        begun = time.thread_time_ns()
        for given in every:
            method(*given)
        taken[clock.now] += time.thread_time_ns() - begun
    gc.enable()
    return [spent / 1e9 for spent in taken.values()]


def traces(files: list[Path]) -> Iterator[tuple[str, Trace]]:
    """Those named, or those that ship."""
    for name, path in [(file.stem, file) for file in files] if files else SAMPLES.items():
        yield name, read_trace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="traces; else the samples")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="blocks of host memory")
    parser.add_argument("--times", type=int, default=7, help="runs of which the fastest counts; 0: hits only")
    args = parser.parse_args()
    print(
        "| trace, blocks |", " | ".join(POLICIES),
        "| us per block: lru, arc, QuirePolicy; per addition |\n|---|---|---|---|---|---|",
    )  # fmt: skip
    for name, trace in traces(args.files):
        asked = asked_blocks(trace)
        for size in args.sizes:
            rates = [f"{hit_rate(policy, size, asked):.1f}" for policy in POLICIES]
            timed = ("lru", "arc", "QuirePolicy") if args.times else ()
            *times, each = [f"{one:.3f}" for one in times_per_block(timed, size, asked, args.times)] if timed else [""]
            print(f"| {name}, {size:,} | {' | '.join(rates)} | {', '.join(times)}; {each} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
