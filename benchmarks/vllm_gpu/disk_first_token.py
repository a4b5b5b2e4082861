"""First tokens of prompts whose KV lies on disk only: Quire's connector, vLLM's tiers (its own, and QuireTier), none.

    python3 -m benchmarks.vllm_gpu.drive disk                                        # after env.sh
    KIT_CPU=1 PYTHON -m benchmarks.vllm_gpu.drive disk --model tiny --lengths 256,1024 --host-gb 0.2 --disk-gb 0.1

A round: each way's writer (a process; those of all ways beside each other) stores the prompts and ends; what the system
keeps of the files in memory is given up; each way's reader, another process, is asked for every prompt once, the ways
in turn, one at a time. So nothing but the disk has the pages. "new" has no connector: it computes. Rounds are begun
while --seconds allow. One line of JSON for each first token, then medians and minimums; `resident` is the share of the
files that was still in memory (mincore), `disk` what the disk itself reads past it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from benchmarks.vllm_gpu.engines import (
    SHAPES,
    Tokens,
    ask,
    asked,
    core,
    dtype,
    engine,
    leave,
    make_model,
    on_cpu,
    prompt,
    settle,
    tell,
    transfer_config,
)
from benchmarks.vllm_gpu.perf import make_room, numbers

WAYS = ("quire", "tier", "fs", "new")  # the connector, QuireTier, vLLM's own file tier, none
MARK = "@@"  # before a line for the other process; what vLLM prints is not for it
WARM, RAW, PIECE = 1024, 2 << 30, 8 << 20
NAMESPACE = "disk-first-token"  # dummy weights have no files that say which they are


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="8b")
    parser.add_argument("--backend")
    parser.add_argument("--mode", choices=["eager", "graph"], default="graph")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--lengths", type=numbers, default=[8192, 32768])
    parser.add_argument("--each", type=numbers, default=[2, 1], help="prompts of each length in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=330, help="no round is begun that would end after them")
    parser.add_argument("--host-gb", type=float, default=8.0, help="host memory of one way: all prompts of a round")
    parser.add_argument("--disk-gb", type=float, default=10.0, help="disk of one way, of those that are bounded")
    parser.add_argument("--wait", type=float, default=60.0, help="seconds that a request may wait for its pages")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured (default: in $KIT)")
    parser.add_argument("--part", choices=["write", "read"], help=argparse.SUPPRESS)
    parser.add_argument("--round", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def texts(args: Any) -> list[Tokens]:
    """A short one to warm up with, then those of a round."""
    dice, vocab = random.Random(1000 + args.round), SHAPES[args.model]["vocab_size"]
    lengths = [length for length, count in zip(args.lengths, args.each, strict=True) for _ in range(count)]
    return [prompt(dice, length, vocab) for length in [min(WARM, min(lengths)), *lengths]]


def config_of(way: str, args: Any) -> dict[str, Any] | None:
    """kv_transfer_config with one disk."""
    at, size, host = str(args.folder / way), int(args.disk_gb * 1e9), int(args.host_gb * 1e9)
    if way == "new":
        return None
    if way == "quire":
        return transfer_config(
            "quire", host, {"disk": at, "disk_bytes": size, "wait": args.wait, "namespace": NAMESPACE}
        )
    own = {"type": "QuireTier", "module_path": "quire.integrations.vllm.tier", "folder": at, "bytes": size,
           "namespace": NAMESPACE, "deadline": args.wait, "waiting": 1.0}  # fmt: skip
    tiers = [own if way == "tier" else {"type": "fs", "root_dir": at}]
    spec = {"spec_name": "TieringOffloadingSpec"}
    if on_cpu():
        spec = {"spec_name": "HostTieringSpec", "spec_module_path": "benchmarks.vllm_gpu.host_tiers"}
    return transfer_config("offload", host, spec | {"secondary_tiers": tiers})


def make_engine(way: str, args: Any) -> Any:
    """Several are on one GPU at once: each has a fixed part of its memory."""
    longest, is_tiny = max(args.lengths), args.model == "tiny"
    size = None if on_cpu() else int(1.5 * longest * token_bytes(args))
    return engine(
        make_model(args.model, dummy=not is_tiny), mode=args.mode, attention_backend=args.backend,
        connector=config_of(way, args), load_format=None if is_tiny else "dummy", gpu_memory_utilization=0.2,
        kv_cache_memory_bytes=size, max_model_len=longest + 64, max_num_seqs=8, max_num_batched_tokens=8192,
    )  # fmt: skip


def token_bytes(args: Any) -> int:
    """Bytes of KV of one token."""
    shape = SHAPES[args.model]
    heads, layers = shape["num_key_value_heads"], shape["num_hidden_layers"]
    return 2 * int(layers * heads * shape["head_dim"]) * (4 if dtype() == "float32" else 2)


def first_token(llm: Any, text: Tokens) -> dict[str, Any]:
    begin = time.perf_counter()
    (out,) = llm.generate(asked([text]), ask(1), use_tqdm=False)
    took = time.perf_counter() - begin
    settle(llm)
    return {"ms": round(1e3 * took, 1), "cached": out.num_cached_tokens, "token": out.outputs[0].token_ids[0]}


def reply(**told: Any) -> None:
    """To the process that started this one."""
    print(MARK + json.dumps(told), flush=True)


def write(way: str, args: Any) -> None:
    """Stores the prompts, waits until they are on disk, and ends in order."""
    begin, llm = time.time(), make_engine(way, args)
    reply(started=round(time.time() - begin, 1))
    pages = 0
    for text in texts(args):
        first_token(llm, text)
        pages += len(text) // core(llm).vllm_config.cache_config.block_size
    wait_for_disk(llm, pages)
    core(llm).shutdown()  # as vLLM ends: the tiers make durable what they have
    reply(written=pages, seconds=round(time.time() - begin, 1))
    leave()


def wait_for_disk(llm: Any, pages: int, seconds: float = 90.0) -> None:
    """Until the disk has that many pages, or does not come to them in time: the readers will tell."""
    connector, end = core(llm).scheduler.connector, time.time() + seconds
    side = getattr(connector, "scheduler_side", None)
    if side is not None:
        while side.outer.counts().disk_written < pages and time.time() < end:
            llm.llm_engine.step()
            time.sleep(0.02)
        side.outer.keeper.fence(30.0)
        return
    while connector.has_pending_push_work() and time.time() < end:
        llm.llm_engine.step()
        time.sleep(0.02)
    for tier in connector.connector_scheduler.manager.secondary_tiers:
        tier.drain_jobs()


def read(way: str, args: Any) -> None:
    """Says when it is ready, then measures the prompt of each number that comes."""
    begin, llm, all_texts = time.time(), make_engine(way, args), texts(args)
    first_token(llm, prompt(random.Random(5), 2 * WARM if not on_cpu() else 64, SHAPES[args.model]["vocab_size"]))
    reply(started=round(time.time() - begin, 1), warm=first_token(llm, all_texts[0]))
    for line in sys.stdin:
        reply(**first_token(llm, all_texts[int(line)]))
    core(llm).shutdown()  # or vLLM's host cache stays in /dev/shm
    leave()


class Ended(Exception):
    """A process has ended before it answered."""


class Process:
    """A writer or a reader of one way."""

    def __init__(self, way: str, part: str, words: Sequence[str], number: int) -> None:
        at = Path(os.environ["KIT"]) / "logs" / f"disk-{number}-{way}-{part}.log"
        command = [sys.executable, "-m", "benchmarks.vllm_gpu.disk_first_token", *words]
        command += ["--ways", way, "--part", part, "--round", str(number)]
        self.way, self.log = way, at
        with open(at, "w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def answer(self) -> dict[str, Any]:
        """Its next line; with the end of its log when it has ended."""
        for line in pipe(self.process.stdout):
            if line.startswith(MARK):
                told: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return told
        raise Ended(f"{self.way} has ended:\n{self.log.read_text(errors='replace')[-2000:]}")

    def end(self) -> None:
        with suppress(OSError):
            pipe(self.process.stdin).close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answers(processes: Sequence[Process], count: int = 1) -> Iterator[tuple[Process, dict[str, Any]]]:
    """Of those that answer; what ended the others is told."""
    for one in processes:
        try:
            told: dict[str, Any] = {}
            for _ in range(count):
                told |= one.answer()
        except Ended as why:
            tell(disk="failed", way=one.way, why=str(why))
        else:
            yield one, told


def pipe(one: IO[str] | None) -> IO[str]:
    if one is None:
        raise SystemExit("a process without pipes")
    return one


def give_up_memory(folder: Path) -> float:
    """The system keeps none of these files in memory; the share of their bytes that it kept all the same."""
    kept = there = 0
    for path in [one for one in folder.rglob("*") if one.is_file() and one.stat().st_size]:
        number = os.open(path, os.O_RDONLY)
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        kept, there = kept + resident(number), there + -(-path.stat().st_size // mmap.PAGESIZE)
        os.close(number)
    return round(kept / max(there, 1), 4)


def resident(number: int) -> int:
    """How many pages of an open file are in memory."""
    size = os.fstat(number).st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, number, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        return len(pages)  # unknown: said as if all were
    told = libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(one & 1 for one in pages) if told == 0 else len(pages)


def disk_speed(folder: Path, threads: int) -> float:
    """GB/s of one large file, read by that many threads past the system's memory."""
    path, size = folder / "raw", RAW if not on_cpu() else RAW >> 5
    with open(path, "wb") as file:
        for _ in range(size // PIECE):
            file.write(os.urandom(PIECE))
    give_up_memory(folder)
    direct = getattr(os, "O_DIRECT", 0)
    try:
        number = os.open(path, os.O_RDONLY | direct)
    except OSError:  # a file system that has no such reads
        number = os.open(path, os.O_RDONLY)
    buffers = [mmap.mmap(-1, PIECE) for _ in range(threads)]

    def part(nth: int) -> None:
        for at in range(nth * PIECE, size, threads * PIECE):
            os.preadv(number, [buffers[nth]], at)

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))
    took = time.perf_counter() - begin
    os.close(number)
    path.unlink()
    return round(size / took / 1e9, 2)


def free_host(since: float) -> None:
    """Host caches that vLLM has left in /dev/shm: their processes have ended."""
    for path in Path("/dev/shm").glob("vllm_offload_*.mmap"):
        if path.stat().st_mtime >= since:
            path.unlink()


def run_round(ways: Sequence[str], args: Any, words: Sequence[str], number: int) -> list[dict[str, Any]]:
    """Writers, then readers, asked in turn; each round begins with another way."""
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    args.round, begin = number, time.time()
    writers = [Process(way, "write", words, number) for way in ways if way != "new"]
    for one, said in answers(writers, 2):
        tell(disk="written", round=number, way=one.way, **said)
    for one in writers:
        one.end()
    free_host(begin)
    speeds = {f"threads_{count}": disk_speed(args.folder, count) for count in (1, 16)}
    tell(disk="itself", round=number, gb_per_s=speeds)
    left = {one.way: give_up_memory(args.folder / one.way) for one in writers}
    readers = []
    for one, said in answers([Process(way, "read", words, number) for way in ways]):
        tell(disk="ready", round=number, way=one.way, resident=left.get(one.way, 0.0), **said)
        readers.append(one)
    found, turn = [], number % max(1, len(readers))
    for nth, text in list(enumerate(texts(args)))[1:]:
        for asked_one in readers[turn:] + readers[:turn]:
            with suppress(OSError):  # one that has ended
                print(nth, file=pipe(asked_one.process.stdin), flush=True)
            for one, said in answers([asked_one]):
                told = {"disk": len(text), "round": number, "way": one.way, **said}
                told["gb_per_s"] = round(told["cached"] * token_bytes(args) / told["ms"] / 1e6, 2)
                tell(**told)
                found.append(told)
    for one in readers:
        one.end()
    free_host(begin)
    shutil.rmtree(args.folder)
    return found


def tell_all(found: Iterable[dict[str, Any]]) -> None:
    """Of each length and way: the median, the least, whether all came from the disk, and whether tokens are as new."""
    rows: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for one in found:
        rows.setdefault((one["disk"], one["way"]), []).append(one)
    for (length, way), some in rows.items():
        new = {nth: one["token"] for nth, one in enumerate(rows.get((length, "new"), []))}
        times = [one["ms"] for one in some]
        tell(
            disk="all", length=length, way=way, n=len(times), median_ms=round(statistics.median(times), 1),
            least_ms=min(times), cached=min(one["cached"] for one in some),
            same_token=sum(new.get(nth) == one["token"] for nth, one in enumerate(some)),
        )  # fmt: skip


def main() -> None:
    args = options().parse_args()
    args.folder = (args.folder or Path(os.environ["KIT"]) / "disk-first").resolve()
    ways = args.ways.split(",")
    if args.part:
        (write if args.part == "write" else read)(ways[0], args)
        return
    begin, longest = time.time(), 0.0
    make_model(args.model, dummy=args.model != "tiny")  # before: several processes must not write one folder
    make_room(args.host_gb * 1e9 * 3)
    found: list[dict[str, Any]] = []
    for number in range(args.rounds):
        started = time.time()
        if number and started - begin + 1.1 * longest > args.seconds:
            tell(disk="no more rounds", made=number, seconds=round(started - begin))
            break
        found += run_round(ways, args, [*sys.argv[1:], "--folder", str(args.folder)], number)
        longest = max(longest, time.time() - started)
    tell_all(found)
    tell(disk="done", seconds=round(time.time() - begin))


if __name__ == "__main__":
    main()
