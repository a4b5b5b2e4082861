"""What a disk tier costs beside plain calls of the operating system, in one run, round by round in turn.

    python benchmarks/disk.py [--folder .] [--pages 256] [--rounds 7] [--manifest-pages 1000000] [--json]

Reads are of scattered pages of 1 MiB: plain `preadv` into the same memory, by one thread and by as many as the tier
has; the tier verifies every page. Warm: the system has the bytes in memory. Cold: it was told to drop them before.
Writes: plain `pwritev` and one fsync; the tier's with checksums and a fence. Last, a manifest is written and loaded.
Compare rows of one run only. On a busy machine look at "warm, per core": bytes per second of processor time, of all
threads together, which others do not change.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from quire.core.records.lasting import BlockNodes, LastingChanges, LastingPages
from quire.tiers.disk import DiskIO, DiskTier
from quire.tiers.disk.calls.files import REAL_FILES
from quire.tiers.disk.log.frames import ManifestHead
from quire.tiers.disk.log.manifest import Manifest
from quire.tiers.disk.log.read_manifest import read_manifest

PAGE = 1 << 20
FINGERPRINT = bytes(32)


class Rig:
    """A tier with every second slot in use, a plain file of the same pages, and memory for them."""

    def __init__(self, folder: Path, pages: int, threads: int) -> None:
        self.slots = np.random.default_rng(0).permutation(np.arange(0, 2 * pages, 2)).tolist()
        self.data = np.random.default_rng(1).integers(0, 256, (pages, 1, PAGE), np.uint8)
        self.out = np.zeros_like(self.data)
        self.tier = DiskTier("disk", (2 * pages,), (PAGE,), folder, io=DiskIO(num_threads=threads))
        self.fd = os.open(folder / "plain", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self.fd, 0, 2 * pages * PAGE)
        self.pool = ThreadPoolExecutor(threads)
        self.paths = [folder / "pages-0", folder / "plain"]

    def drop(self) -> None:
        """The system forgets what it has of the files in memory."""
        for path in self.paths:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def plain_one(self, nth: int) -> None:
        assert os.preadv(self.fd, [self.out[nth, 0]], self.slots[nth] * PAGE) == PAGE

    def plain(self) -> None:
        for nth in range(len(self.slots)):
            self.plain_one(nth)

    def plain_threads(self) -> None:
        list(self.pool.map(self.plain_one, range(len(self.slots))))

    def checked(self) -> None:
        self.tier.read(0, self.slots, list(self.out))

    def plain_write(self) -> None:
        for nth, slot in enumerate(self.slots):
            assert os.pwritev(self.fd, [self.data[nth, 0]], slot * PAGE) == PAGE
        os.fdatasync(self.fd)

    def checked_write(self) -> None:
        self.tier.write(0, self.slots, list(self.data))
        self.tier.sync()

    def close(self) -> None:
        self.tier.close()
        self.pool.shutdown()
        os.close(self.fd)


def rates(
    rig: Rig, rows: dict[str, Callable[[], None]], rounds: int, cold: bool = False
) -> tuple[dict[str, float], dict[str, float]]:
    """GB per second of time, and of processor time, of each row: medians. Rows take turns, so that whatever else runs
    here hits all of them."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, act in rows.items():
            if cold:
                rig.drop()
            start, worked = time.perf_counter(), time.process_time()
            act()
            seconds[name].append((time.perf_counter() - start, time.process_time() - worked))
    size = rig.data.nbytes / 1e9
    medians = {name: [statistics.median(spent) for spent in zip(*both, strict=True)] for name, both in seconds.items()}
    return {name: size / each[0] for name, each in medians.items()}, {n: size / each[1] for n, each in medians.items()}


def manifest(folder: Path, pages: int, block: int = 16) -> dict[str, float]:
    """Processor seconds to append so many pages in batches of 1,000, to load them, and to compact the log."""
    head, dice = ManifestHead(FINGERPRINT, (PAGE,)), np.random.default_rng(0)
    log = Manifest(REAL_FILES, folder, head, None)
    none, roots = np.empty(0, np.int32), tuple(bytes([nth]) * 64 for nth in range(100))
    start = time.process_time()
    for first in range(1, pages + 1, 1000):
        number = np.arange(first, min(first + 1000, pages + 1))
        parent = number - 1
        parent[0] = -1 - (first // 1000) % 100
        tokens = dice.integers(0, 100_000, len(number) * block).astype(np.int32)
        starts = np.arange(len(number) + 1) * block
        nodes = BlockNodes(number, parent, starts, tokens, np.empty((0, 3), np.uint64), np.empty(0, np.int64), roots)
        slots = LastingPages(np.zeros(len(number), np.int32), number.astype(np.int32), number)
        log.append(LastingChanges(none, none, nodes, slots), number.astype(np.uint64))
    log.fence(lambda: None)
    appended, start = time.process_time() - start, time.process_time()
    read = read_manifest(REAL_FILES, folder, FINGERPRINT)
    assert read is not None and len(read.contents(head.pool_of).sums) == pages
    loaded, start = time.process_time() - start, time.process_time()
    log.compact()
    compacted = time.process_time() - start
    size = log.size
    log.close()
    return {"append": appended, "load": loaded, "compact": compacted, "bytes per page": size / pages}


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", help="on the disk that is meant")
    parser.add_argument("--pages", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--manifest-pages", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="quire-disk-", dir=options.folder))
    try:
        rig = Rig(folder, options.pages, options.threads)
        writes, _ = rates(rig, {"plain pwritev": rig.plain_write, "tier": rig.checked_write}, options.rounds)
        reads = {"plain preadv": rig.plain, f"{options.threads} threads": rig.plain_threads, "tier": rig.checked}
        rig.checked()
        warm, warm_per_core = rates(rig, reads, options.rounds)
        result = {
            "read, warm": warm,
            "warm, per core": warm_per_core,
            "read, cold": rates(rig, reads, options.rounds, cold=True)[0],
            "write": writes,
            "manifest": manifest(folder, options.manifest_pages),
        }
        assert np.array_equal(rig.out, rig.data)
        rig.close()
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(result))
        return
    for name, rows in result.items():
        unit = "s of processor time" if name == "manifest" else "GB/s"
        plain = next(iter(rows.values()))
        for row, value in rows.items():
            share = f"  {100 * value / plain:4.0f} % of plain" if row == "tier" else ""
            print(f"{name:14} {row:16} {value:8.2f} {unit if 'bytes' not in row else ''}{share}")


if __name__ == "__main__":
    main()
