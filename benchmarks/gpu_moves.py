"""How fast pages move between a GPU and pinned host memory: python benchmarks/gpu_moves.py [--json FILE]

Each row is one page size: scattered pages through a TorchTier, by a call per page and by one launch per batch, through
the mover, and as exchanges. Rates are shares of one large copy that way in the same run; minimums of several tries.
Then what a few programs cost a model beside them: matrix products of a decoding step, alone and while pages move.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from threading import Event, Thread

import numpy as np
import torch

from quire.core.records.plan import COLUMNS, Kind, Plan
from quire.tiers import ArenaTier, Mover, PageLayout
from quire.tiers.gpu.gpu_copies import PROGRAMS
from quire.tiers.torch_tier import TorchTier

SIZES = (16 << 10, 64 << 10, 256 << 10, 512 << 10, 2 << 20, 4 << 20)
TOTAL = 512 << 20  # bytes of a batch
MOST_PAGES = 8192  # of a batch
TRIES = 5


def best(act: Callable[[], object], tries: int = TRIES) -> float:
    """Least seconds of some tries, after one that warms up."""
    act()
    times = []
    for _ in range(tries):
        torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def link(device: torch.Tensor, host: torch.Tensor) -> dict[str, float]:
    """Bytes per second of one large copy up, down, and of both at once in sum."""
    half = len(host) // 2
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> None:
        with torch.cuda.stream(up):
            device[:half].copy_(host[:half], non_blocking=True)
        with torch.cuda.stream(down):
            host[half:].copy_(device[half:], non_blocking=True)

    return {
        "up": host.nbytes / best(lambda: device.copy_(host, non_blocking=True)),
        "down": host.nbytes / best(lambda: host.copy_(device, non_blocking=True)),
        "both": 2 * half / best(both),
    }


class Rig:
    """Pages of one size in device and host memory, and the order in which they are scattered."""

    def __init__(self, device: torch.Tensor, host: torch.Tensor, size: int, programs: int = PROGRAMS) -> None:
        self.size, self.count = size, min(MOST_PAGES, len(host) // size)
        self.view = host[: len(host) // size * size].view(-1, size).numpy()
        self.tier = TorchTier("device", [device[: len(host) // size * size].view(-1, size)], programs=programs)
        self.host = ArenaTier.over("host", [self.view])
        random = np.random.default_rng(0)
        self.slots = random.permutation(len(self.view))[: self.count].tolist()
        self.rows = random.permutation(len(self.view))[: self.count].tolist()
        self.bytes, self.cut, self.number = self.count * size, (1, size), 0

    def plan(self, kind: Kind, down: bool) -> Plan:
        moves = np.zeros((self.count, COLUMNS), np.int32)
        moves[:, 0] = kind
        moves[:, 2], moves[:, 4] = (0, 1) if down else (1, 0)
        moves[:, 3], moves[:, 5] = (self.slots, self.rows) if down else (self.rows, self.slots)
        self.number += 1
        return Plan(self.number, moves)

    def rates(self) -> Iterator[tuple[str, str, float]]:
        """Name of the way, direction, bytes per second."""
        tier, view = self.tier, self.view
        pages = [view[row].reshape(1, -1) for row in self.rows]
        yield "call per page", "up", self.bytes / best(lambda: tier.write(0, self.slots, pages), 3)
        yield "call per page", "down", self.bytes / best(lambda: tier.read(0, self.slots, pages), 3)
        if tier.reaches(0, view):
            slots, rows, cut = self.slots, self.rows, self.cut
            yield "one launch", "up", self.bytes / best(lambda: tier.write_from(0, slots, view, rows, cut))
            yield "one launch", "down", self.bytes / best(lambda: tier.read_into(0, slots, view, rows, cut))
            yield "one launch", "both", 2 * self.bytes / best(lambda: tier.exchange(0, slots, view, rows))
        with Mover([tier, self.host], [PageLayout(self.size)], 16) as mover:
            yield "mover", "up", self.bytes / best(lambda: mover.run(self.plan(Kind.ONBOARD, False)))
            yield "mover", "down", self.bytes / best(lambda: mover.run(self.plan(Kind.OFFLOAD, True)))
            yield "mover", "both", 2 * self.bytes / best(lambda: mover.run(self.plan(Kind.EXCHANGE, True)), 3)


def beside(rig: Rig) -> tuple[float, float]:
    """Slow-down of a decoding step's matrix products while pages move; and the moves' own rate.

    The step is a CUDA graph, timed on the device: what Python does on the host is not in it.
    """
    weights = [torch.randn(4096, 12288, device="cuda", dtype=torch.bfloat16) for _ in range(32)]
    rows = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    rows @ weights[0]  # the first time libraries make their plans
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for weight in weights:
            rows @ weight

    def step() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    alone, stop, moved = median(step() for _ in range(50)), Event(), 0

    def move() -> None:
        nonlocal moved
        while not stop.is_set():
            rig.tier.write_from(0, rig.slots, rig.view, rig.rows, rig.cut)
            moved += rig.bytes

    thread = Thread(target=move)
    thread.start()
    start = time.perf_counter()
    busy = median(step() for _ in range(300))
    rate = moved / (time.perf_counter() - start)
    stop.set()
    thread.join()
    return busy / alone, rate


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA here: nothing to measure")
        return 0
    device = torch.zeros(TOTAL, dtype=torch.uint8, device="cuda")
    host = torch.zeros(TOTAL, dtype=torch.uint8, pin_memory=True)
    peak = link(device, host)
    print(f"{torch.cuda.get_device_name()}: " + ", ".join(f"{way} {rate / 1e9:.1f} GB/s" for way, rate in peak.items()))
    figures: list[dict[str, object]] = [{"link": peak}]
    for size in SIZES:
        rig = Rig(device, host, size)
        for name, way, rate in rig.rates():
            print(f"{size >> 10:6} KiB  {name:14} {way:5} {rate / 1e9:6.1f} GB/s  {rate / peak[way]:6.1%}", flush=True)
            figures.append({"size": size, "name": name, "way": way, "rate": rate, "share": rate / peak[way]})
    for programs in (4, 8, 16, 32):
        slower, rate = beside(Rig(device, host, 64 << 10, programs))
        print(f"{programs:3} programs: a step takes {slower:.2f} times as long, pages come at {rate / 1e9:.1f} GB/s")
        figures.append({"programs": programs, "slower": slower, "rate": rate})
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
