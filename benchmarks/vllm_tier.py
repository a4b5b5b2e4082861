"""Bytes per second of QuireTier, of vLLM's own file tier, and of the disk itself, one after the other in one run.

    make vllm-env
    PYTHONPATH=. .vllm-env/bin/python benchmarks/vllm_tier.py --folder /mnt/nvme/test

Rows of vLLM's host cache are stored in jobs of 16 and loaded back, by the calls that vLLM makes. `disk` is one thread
that writes and syncs a file, then reads it past the system's memory (O_DIRECT).
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.integrations.plugs.tier_lives import spec_of

JOB = 16  # rows


def job_of(number: int, keys: list[bytes], rows: list[int], is_load: bool) -> Any:
    from vllm.v1.kv_offload.base import ReqContext
    from vllm.v1.kv_offload.tiering.base import TransferJob

    return TransferJob(number, keys, np.array(rows, np.int32), is_load, ReqContext(str(number)))


def tier_of(kind: str, folder: Path, view: memoryview) -> Any:
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "w.safetensors").write_bytes(b"weights")
    config: dict[str, Any] = {"type": "fs", "root_dir": str(folder / "fs")}
    if kind == "QuireTier":
        config = {"type": kind, "module_path": "quire.integrations.vllm.tier", "folder": str(folder / "quire"),
                  "bytes": 2 * view.nbytes, "waiting": 1.0}  # fmt: skip
    spec = spec_of(model)
    spec.kv_events_config = SimpleNamespace(enable_kv_cache_events=False)
    return SecondaryTierFactory.create_secondary_tier(config, view, spec)


def speed(tier: Any, keys: list[bytes], is_load: bool, size: int) -> float:
    """GB/s of all rows at once."""
    begun, waiting = time.monotonic(), set()
    for number, start in enumerate(range(0, len(keys), JOB)):
        rows = list(range(start, min(start + JOB, len(keys))))
        waiting.add(number)
        (tier.submit_load if is_load else tier.submit_store)(job_of(number, [keys[row] for row in rows], rows, is_load))
    while waiting:
        done = tier.get_finished_jobs()
        assert all(one.success for one in done), "a row was not moved"
        waiting -= {one.job_id for one in done}
        time.sleep(0.001)
    return len(keys) * size / (time.monotonic() - begun) / 1e9


def disk_speed(folder: Path, memory: mmap.mmap) -> tuple[float, float]:
    path, begun = folder / "raw", time.monotonic()
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(number, memory)
    os.fsync(number)
    written = len(memory) / (time.monotonic() - begun) / 1e9
    os.close(number)
    forget(path)
    number, begun = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)), time.monotonic()
    with mmap.mmap(-1, len(memory)) as into:
        os.readv(number, [into])
    os.close(number)
    path.unlink()
    return written, len(memory) / (time.monotonic() - begun) / 1e9


def forget(folder: Path) -> None:
    """The system keeps none of these files in memory."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            os.fsync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="on the disk to be measured")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--row-bytes", type=int, default=2 << 20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, memory = Path(name), mmap.mmap(-1, args.rows * args.row_bytes)
        np.frombuffer(memory, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, len(memory), np.uint8)
        view = memoryview(memory).cast("B", (args.rows, args.row_bytes))
        keys = [number.to_bytes(32, "big") + bytes(4) for number in range(args.rows)]
        print("| GB/s | store | load, from the disk | load, from the system's memory |\n|---|---|---|---|")
        print("| disk | {:.2f} | {:.2f} | |".format(*disk_speed(folder, memory)), flush=True)
        for kind in ("fs", "QuireTier", "fs", "QuireTier"):
            tier = tier_of(kind, folder, view)
            stored = speed(tier, keys, False, args.row_bytes)
            forget(folder)
            cold = speed(tier, keys, True, args.row_bytes)
            print(f"| {kind} | {stored:.2f} | {cold:.2f} | {speed(tier, keys, True, args.row_bytes):.2f} |", flush=True)
            tier.shutdown()
            keys = [key[1:32] + b"x" + bytes(4) for key in keys]


if __name__ == "__main__":
    main()
