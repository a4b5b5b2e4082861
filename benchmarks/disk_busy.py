"""A disk tier beside a thread that computes in Python without a pause, as an engine's scheduler does.

    python benchmarks/disk_busy.py [--folder /dev/shm] [--page-bytes 2097152] [--pages 128] [--disk 0.6] [--rounds 5]

The disk is a folder in memory whose every read first sleeps as long as a disk of `--disk` GB/s for each thread would
take, and has nothing ready: so what is measured is how often a reader has to wait for the interpreter. Medians, GB/s;
`calls` is how often a page made its thread wait for the disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np

from quire.tiers.base import Bytes
from quire.tiers.disk import DiskIO, DiskTier
from quire.tiers.disk.calls.files import File, RealFile, RealFiles


class SleepingFile(RealFile):
    """Nothing of it is in memory, and reads take their time."""

    __slots__ = ()
    bytes_per_second = 0.0
    calls = 0

    def read(self, offset: int, into: Bytes) -> int:
        SleepingFile.calls += 1
        time.sleep(1e-4 + len(into) / self.bytes_per_second)
        return super().read(offset, into)

    def read_ready(self, offset: int, into: Bytes) -> int:
        return 0


class SleepingFiles(RealFiles):
    def open(self, path: Path, create: bool = False) -> File:
        file = super().open(path, create)
        assert isinstance(file, RealFile)
        return SleepingFile(file._fd)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Gives the interpreter away only when it must."""
    stop = Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(100))

    thread = Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def rate(act: Callable[[], None], size: int, rounds: int) -> float:
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        took.append(time.perf_counter() - begun)
    return size / 1e9 / statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--page-bytes", type=int, default=2 << 20)
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--disk", type=float, default=0.6, help="GB/s of each thread")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    SleepingFile.bytes_per_second = 1e9 * options.disk
    count, size = options.pages, options.page_bytes
    data = np.random.default_rng(0).integers(0, 256, (count, 1, size), np.uint8)
    out, apart = np.zeros_like(data), list(range(0, count, 2))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        io = DiskIO(num_threads=options.threads, deadline=600.0)
        tier = DiskTier("disk", (count,), (size,), Path(name), io=io, files=SleepingFiles())
        rows: dict[str, tuple[int, Callable[[], None]]] = {
            "write": (count, lambda: tier.write(0, range(count), list(data))),
            "read, neighbours": (count, lambda: tier.read(0, range(count), list(out))),
            "read, apart": (len(apart), lambda: tier.read(0, apart, [out[slot] for slot in apart])),
        }
        print("| GB/s | alone | beside a busy thread | calls |\n|---|---|---|---|")
        for row, (pages, act) in rows.items():
            alone = rate(act, pages * size, options.rounds)
            SleepingFile.calls = 0
            with busy_thread():
                beside = rate(act, pages * size, options.rounds)
            print(
                f"| {row} | {alone:.2f} | {beside:.2f} | {SleepingFile.calls / pages / options.rounds:.1f} |",
                flush=True,
            )
        assert np.array_equal(out, data)
        tier.close()


if __name__ == "__main__":
    main()
