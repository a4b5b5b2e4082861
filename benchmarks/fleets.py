"""Fleets of 2 to 256 workers: simulated ones of Quire beside Dynamo's mocker (ai-dynamo-runtime), one trace and memory.

    python benchmarks/fleets.py mooncake_conversation_trace.jsonl --limit 2000 --workers 2,8,32,128,256

Every worker has --blocks blocks of 512 tokens and no host. Reused prompt tokens are compared, and processor time; times
to first tokens are not: each simulator has rates of its own. Without Dynamo its columns are empty.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from quire.simulate.capacity.fleet import Fleet, played
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.trace.read.trace import read_trace

BLOCK = 512
THEIRS = {"round_robin": "round_robin", "exact": "kv_router"}


def main() -> int:
    """Run both, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--workers", default="2,8,32,128,256")
    parser.add_argument("--blocks", type=int, default=4096)
    options = parser.parse_args()
    mocker = dynamo()
    print("| workers | router | Quire: reused | s | Dynamo: reused | s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        cut = Path(folder) / "cut.jsonl"
        with open(options.trace, encoding="utf-8") as lines:
            cut.write_text("".join(line for line, _ in zip(lines, range(options.limit), strict=False)))
        for count in map(int, options.workers.split(",")):
            for ours, theirs in THEIRS.items():
                row = [str(count), ours, *quire(cut, count, ours, options.blocks)]
                row += mocker(cut, count, theirs, options.blocks) if mocker else ["", ""]
                print(f"| {' | '.join(row)} |", flush=True)
    return 0


def quire(path: Path, count: int, router: Any, blocks: int) -> list[str]:
    """Ours."""
    tiers = (Memory("device", blocks=(blocks,)),)
    settings = ReplaySettings(tiers=tiers, block_size=BLOCK, max_sequences=512, eviction="lru")  # as theirs
    began = time.process_time()
    found = played(read_trace(str(path)), Fleet(count, router, settings))
    return [f"{found.hit_rate:.4f}", f"{time.process_time() - began:.1f}"]


def dynamo() -> Callable[[Path, int, str, int], list[str]] | None:
    """Theirs, if it is installed."""
    os.environ.setdefault("DYN_LOG", "error")
    try:
        from dynamo._core import run_mocker_trace_replay
    except ImportError as missing:
        print(f"Dynamo is not here: {missing}", file=sys.stderr)
        return None

    def run(path: Path, count: int, router: str, blocks: int) -> list[str]:
        engine = {"num_gpu_blocks": blocks, "block_size": BLOCK, "max_num_seqs": 512}
        began = time.process_time()
        try:
            found = run_mocker_trace_replay([str(path)], extra_engine_args={"engine": engine}, num_workers=count,
                                            router_mode=router, trace_block_size=BLOCK)  # fmt: skip
        except Exception as wrong:
            return [f"{type(wrong).__name__}: {wrong}"[:60], ""]
        summary = found if isinstance(found, dict) else found.summary() if callable(found.summary) else found.summary
        return [f"{summary['first_admission_prefix_cache_reused_ratio']:.4f}", f"{time.process_time() - began:.1f}"]

    return run


if __name__ == "__main__":
    sys.exit(main())
