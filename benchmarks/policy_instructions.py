"""Instructions that vLLM's eviction policies and ours take for a block: the same on a busy machine too.

    make vllm-env
    PYTHONPATH=. .venv/bin/python benchmarks/policy_instructions.py [--requests 200] [--size 1000] [--trace sample]

The calls that vLLM's manager makes of each policy while it serves a trace are recorded, then repeated by themselves
under callgrind (valgrind): once as they are, once of a function that does nothing; the difference counts. vLLM's
policies are its own files; of the rest of vLLM there are the two names that these import.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_policy import STEP, Clock, Step, asked_blocks, repeatable

from quire.integrations.vllm.plugs.key_policy import KeyPolicy
from quire.trace.read.trace import SAMPLES, read_trace

HERE = Path(__file__).resolve()
CLOCK = os.getloadavg  # nothing else calls it: where callgrind starts a new count
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class Request:
    """vLLM's ReqContext, as much of it as policies ask."""

    req_id, kv_transfer_params, kv_hints = "r", None, None

    def __init__(self, keys: list[bytes]) -> None:
        self._state: dict[type, Any] = {}
        self.ends = {key: (nth + 1) * 512 for nth, key in enumerate(keys)}

    def set_state(self, val: Any) -> None:
        self._state[type(val)] = val

    def get_state(self, cls: type) -> Any:
        return self._state.get(cls)

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self.ends.get(key)


def policies(package: Path, clock: Clock) -> tuple[list[type], type]:
    """vLLM's two and ours, and its chunks."""
    for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.cpu", "vllm.v1.kv_offload.cpu.policies"):
        bare = types.ModuleType(name)
        bare.__path__ = [str(package / name.replace(".", "/"))]
        sys.modules[name] = bare
    base: Any = types.ModuleType("vllm.v1.kv_offload.base")
    base.OffloadKey, base.ReqContext = bytes, Request
    sys.modules[base.__name__] = base
    from vllm.v1.kv_offload.cpu.policies.arc import ARCCachePolicy
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus
    from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

    class QuirePolicy(KeyPolicy, CachePolicy):  # type: ignore[misc]  # vLLM is not there when types are checked
        """Ours, on the trace's time."""

        def __init__(self, size: int) -> None:
            KeyPolicy.__init__(self, size, clock)

    return [LRUCachePolicy, ARCCachePolicy, QuirePolicy], ChunkStatus


class Manager:
    """vLLM's CPUOffloadingManager, as far as its policy sees it: the calls that it makes, written down."""

    def __init__(self, policy: Any, size: int, chunk: type, clock: Clock) -> None:
        self.policy, self.free, self.chunk, self.clock = policy, size, chunk, clock
        self.calls: list[tuple[float, str, tuple[Any, ...]]] = []
        self.there: dict[bytes, Any] = {}

    def call(self, name: str, *given: Any) -> Any:
        self.calls.append((self.clock.now, name, given))
        return getattr(self.policy, name)(*given)

    def mark(self, key: bytes, readers: int) -> None:
        self.call("get", key)
        self.there[key].ref_cnt = readers
        self.call("mark_non_evictable" if readers else "mark_evictable", key)

    def serve(self, keys: list[bytes]) -> None:
        """Its hit is loaded, the rest is stored in steps, and it is over."""
        request, hit, made = Request(keys), 0, set[bytes]()
        while hit < len(keys) and self.call("get", keys[hit]) is not None:
            hit += 1
        for readers in (1, 0):
            for key in keys[:hit]:
                self.mark(key, readers)
        for start in range(hit, len(keys), STEP):
            some = keys[start : start + STEP]
            new = [key for key in some if self.call("get", key) is None]
            if new and self.store(new, some, request):
                made.update(new)
        self.call("on_request_finished", (tuple(keys),), made, set(keys[:hit]), request)

    def store(self, new: list[bytes], some: list[bytes], request: Request) -> bool:
        """Whether there was room."""
        self.call("on_store_miss", new, request)
        if len(new) > self.free:
            gone = self.call("evict", len(new) - self.free, set(some))
            if gone is None:
                return False
            self.free += len(gone)
        self.free -= len(new)
        for key in new:
            self.there[key] = self.chunk(1)
            self.call("insert", key, self.there[key])
        for key in new:
            self.mark(key, 0)
        return True


def nothing(*given: Any) -> None:
    """What a call costs by itself."""


def play(steps: list[Step], clock: Clock) -> None:
    """The calls, between two readings of the clock."""
    gc.collect()
    gc.disable()
    CLOCK()
    for clock.now, counts, method, every in steps:
        for chunk, readers in counts:
            chunk.ref_cnt = readers
        for given in every:
            method(*given)
    CLOCK()
    gc.enable()


def counting(state: str) -> None:
    """Callgrind counts from now on, or stops."""
    subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True, capture_output=True)


def answer(args: argparse.Namespace) -> None:
    """Under callgrind: each policy's calls; its name and the blocks go out."""
    clock = Clock()
    kinds, chunk = policies(args.vllm, clock)
    asked = asked_blocks(read_trace(SAMPLES[args.trace]))[: args.requests]
    plays = []
    for kind in kinds:
        manager = Manager(kind(args.size), args.size, chunk, clock)
        for clock.now, keys in asked:
            manager.serve(keys)
        steps = repeatable(manager.calls, kind(args.size))
        plays += [[(now, counts, nothing, every) for now, counts, _, every in steps], steps]
        print(kind.__name__, sum(len(keys) for _, keys in asked), flush=True)
    counting("on")
    for steps in plays:
        play(steps, clock)
    counting("off")


def counted(words: list[str]) -> Iterator[tuple[str, float]]:
    """Of each policy the instructions for a block."""
    with tempfile.TemporaryDirectory() as out:
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-before=getloadavg"]
        command = [*valgrind, f"--callgrind-out-file={out}/count", sys.executable, str(HERE), "--answer", *words]
        ran = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(ran.stderr)
        for nth, line in enumerate(ran.stdout.splitlines()):
            name, blocks = line.split()
            # every play reads the clock twice: what lies between is in the file of the second reading
            bare, whole = (
                int(TOTALS.findall(Path(out, f"count.{at}").read_text())[0]) for at in (4 * nth + 2, 4 * nth + 4)
            )
            yield name, (whole - bare) / int(blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--vllm", type=Path, default=next((HERE.parents[1] / ".vllm-env/lib").glob("*/site-packages"), None)
    )
    parser.add_argument("--trace", choices=SAMPLES, default="sample")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--size", type=int, default=1000, help="blocks of host memory")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.vllm is None:
        raise SystemExit("no vLLM: make vllm-env")
    if args.answer:
        return answer(args)
    for name, count in counted(sys.argv[1:]):
        print(f"{name:20}{count:10,.0f} instructions per block")


if __name__ == "__main__":
    main()
