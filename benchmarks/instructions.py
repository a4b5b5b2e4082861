"""Instructions of the rows of ab.py on two states of Quire: the same on a busy machine, where times are not.

    python benchmarks/instructions.py OLD NEW [--rows cold_8k_us,decode_1024_us] [--samples 8]

OLD and NEW as for ab.py. Each row runs under callgrind (valgrind), which counts from one reading of the clock to the
next; caches are smaller than those of ab.py, since everything else runs there too. Of a row the fewest of its samples,
of decoding their mean: rows cross a block edge in some steps only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cachebench import workload as load

HERE = Path(__file__).resolve()
CLOCK = os.getloadavg  # nothing else calls it: where callgrind starts a new count
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", metavar="OLD NEW")
    parser.add_argument("--rows", default="")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)  # we are under callgrind
    options = parser.parse_args()
    if options.answer:
        return answer(options.rows, options.samples)
    if len(options.trees) != 2:
        parser.error("it takes two trees")
    from ab import tree  # which binds the clock

    with contextlib.ExitStack() as open_trees:
        old, new = (
            counted(open_trees.enter_context(tree(name)), options.rows, options.samples) for name in options.trees
        )
    print(f"{'instructions':30}{'old':>12}{'new':>12}{'new/old':>9}")
    for row, count in old.items():
        print(f"{row:30}{count:12,.0f}{new[row]:12,.0f}{new[row] / count:9.3f}")


def counted(folder: Path, rows: str, samples: int) -> dict[str, float]:
    """Per row, what one sample takes in this tree."""
    with tempfile.TemporaryDirectory() as out:
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-before=getloadavg"]
        command = [*valgrind, f"--callgrind-out-file={out}/count", sys.executable, str(HERE), "--answer"]
        more = {"PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
        ran = subprocess.run(
            [*command, f"--rows={rows}", f"--samples={samples}"], env=os.environ | more, capture_output=True, text=True
        )
        if ran.returncode:
            raise SystemExit(ran.stderr)
        found, first = dict[str, float](), 1
        for row, count, readings in (line.split() for line in ran.stdout.splitlines()):
            each = int(readings) // int(count)  # the last two of a sample are those of what it measures
            places = range(first + each - 1, first + int(readings), each)
            numbers = [int(TOTALS.findall(Path(out, f"count.{place}").read_text())[0]) for place in places]
            found[row] = sum(numbers) / len(numbers) if "decode" in row else min(numbers)
            first += int(readings)
    return found


def answer(rows: str, samples: int) -> None:
    """Run each row; its name, its samples and how often these have read the clock go out."""
    readings = 0

    def read() -> int:
        nonlocal readings
        readings += 1
        CLOCK()
        return 0

    time.perf_counter_ns = read
    load.SLOTS, load.SYSTEMS, load.WARM, load.DEVICE, load.HOST = 45_000, 4, 40_500, 2_000, 4_000
    from cachebench.samples import ROWS, Samples  # binds the clock

    made = Samples()
    for name in rows.split(",") if rows else ROWS:
        sample, _ = made.row(name)
        for _ in range(2):
            sample()
        count, readings = 2 * samples if "decode" in name else samples, 0
        counting("on")
        for _ in range(count):
            sample()
        counting("off")
        print(name, count, readings, flush=True)


def counting(state: str) -> None:
    """Callgrind counts from now on, or stops."""
    subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True, capture_output=True)


if __name__ == "__main__":
    main()
