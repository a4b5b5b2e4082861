"""What bills cost: of a step that decodes, of a prompt that is new, of one that is cached, in bytes of a page.

    python benchmarks/bills.py [--rounds 15]
    python benchmarks/bills.py --instructions      what valgrind counts, the same on a busy machine; of a smaller cache

Two caches, full, do the same calls in turns, one of them billed; 100 tenants. Processor time, the least and medians,
microseconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, LayerGroup, Request, TierConfig
from quire.insight.bills import Bills

BLOCK, PROMPT, ROWS, SLOTS = 16, 8192, 256, 20_000
FEW_SLOTS, SAMPLES = 3_000, 4
MARK = os.getloadavg  # nothing else calls it
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class Work:
    """One cache, full of prompts, with sequences that decode."""

    def __init__(self, bills: Bills | None, slots: int) -> None:
        tiers = [TierConfig("device", slots)]
        config = CacheConfig(tiers, BLOCK, [LayerGroup(page_bytes=1 << 15)], max_sequences=ROWS + 4, max_length=16_384)
        self.cache = Cache(config, watchers=[] if bills is None else [bills])
        self.number = 0
        while self.cache.num_free() and self.number < 3 * slots * BLOCK // PROMPT:
            self.prompt(new=True)
        self.rows = [self.admit(np.arange(40, dtype=np.int32) + 7 * nth) for nth in range(ROWS)]
        self.cache.commit(self.rows)
        self.tokens = np.zeros(ROWS, np.int32)

    def admit(self, tokens: Any) -> Any:
        self.number += 1
        (one,) = self.cache.add_sequence_batch([Request(self.number, tokens, tenant=f"t{self.number % 100}")]).sequences
        return one

    def prompt(self, new: bool) -> float:
        """Claim, admit, commit and release one prompt."""
        tokens = np.random.default_rng(self.number if new else 0).integers(0, 1 << 30, PROMPT, dtype=np.int32)
        began = time.thread_time_ns()
        one = self.admit(tokens)
        self.cache.commit(one)
        self.cache.release(one)
        return (time.thread_time_ns() - began) / 1000

    def step(self) -> float:
        """One token for every row."""
        began = time.thread_time_ns()
        self.cache.grow(self.rows, self.tokens)
        self.cache.commit(self.rows)
        return (time.thread_time_ns() - began) / 1000


KINDS: dict[str, Callable[[Work], float]] = {
    f"a step that decodes {ROWS} rows": lambda work: sum(work.step() for _ in range(BLOCK)) / BLOCK,
    f"a new prompt of {PROMPT} tokens": lambda work: work.prompt(new=True),
    "the same, cached": lambda work: work.prompt(new=False),
}


def main() -> None:
    """A line for each kind of work."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--answer", action="store_true", help=SUPPRESS)  # we are under callgrind
    options = parser.parse_args()
    if options.answer:
        return answer()
    if options.instructions:
        return counted()
    bills = Bills()
    both = [Work(None, SLOTS), Work(bills, SLOTS)]
    both[0].prompt(new=False), both[1].prompt(new=False)
    for name, run in KINDS.items():
        times = list(zip(*([run(work) for work in both] for _ in range(options.rounds)), strict=True))
        for what, found in ((", the least", [min(one) for one in times]), (", median", [median(one) for one in times])):
            show(name + what, found[0], found[1], "us")
    held = bills._book.pools[0]
    own = sum(array.nbytes for array in (held._party, held._stamp, held._tiers))
    began = time.thread_time_ns()
    bills.bill()
    print(
        f"{own / SLOTS:.0f} bytes a page, and 4.25 in the store; a bill {(time.thread_time_ns() - began) / 1000:.0f} us"
    )


def show(name: str, plain: float, billed: float, unit: str) -> None:
    """A row."""
    print(f"{name:46} {plain:9,.0f} {unit}, billed {billed:9,.0f} {unit} ({billed / plain - 1:+.1%})", flush=True)


def counted() -> None:
    """Start ourselves under callgrind, which ends a count whenever the mark is called."""
    with tempfile.TemporaryDirectory() as out:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-before=getloadavg"]
        command += [f"--callgrind-out-file={out}/count", sys.executable, __file__, "--answer"]
        ran = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(ran.stderr)
        dumps = sorted(Path(out).glob("count.*"), key=lambda path: int(path.suffix[1:]))
        numbers = [int(found[0]) for path in dumps if (found := TOTALS.findall(path.read_text()))]
        for place, name in enumerate(KINDS):
            plain, billed = (numbers[4 * place + nth] / SAMPLES / (BLOCK if not place else 1) / 1000 for nth in (1, 3))
            show(name, plain, billed, "thousand")


def answer() -> None:
    """Samples of each kind between two calls of the mark, plain and then billed."""
    works = [Work(None, FEW_SLOTS), Work(Bills(), FEW_SLOTS)]
    for run in KINDS.values():
        for work in works:
            run(work), run(work)
            control = ["callgrind_control", "-i", "on", str(os.getpid())]
            subprocess.run(control, check=True, capture_output=True)
            MARK()
            for _ in range(SAMPLES):
                run(work)
            MARK()
            subprocess.run([*control[:2], "off", control[3]], check=True, capture_output=True)


if __name__ == "__main__":
    main()
