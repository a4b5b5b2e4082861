"""Two states of Quire in one run, row by row and turn about: minima, their ratio, and how far single rounds spread.

    python benchmarks/ab.py OLD NEW [--rounds 20] [--rows cold_8k_us,decode_1024_us] [--receipts] [--json]
                                    [--eviction adaptive] [--old-eviction lru]

OLD and NEW are folders of checkouts whose compiled module is built, or names of commits: these are checked out into a
temporary folder and built there. The rows are those of this checkout for both, so both do the same work. "." and "."
shows what the machine's noise alone looks like. --eviction is the order of NEW, --old-eviction that of OLD; without
them each has its default.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cachebench.peers import Peer
from cachebench.samples import LOOKS, ROWS, Samples, fewest_us
from cachebench.workload import EVICTION, RECEIPTS

HERE = Path(__file__).resolve()
Chosen = tuple[dict[str, str], dict[str, str]]  # in the environment of OLD and NEW


def main(argv: list[str] | None = None) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", metavar="OLD NEW")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", default=",".join(ROWS), help="some of: " + ", ".join(ROWS))
    parser.add_argument("--eviction", help="order of NEW; without it the default")
    parser.add_argument("--old-eviction", help="order of OLD; without it the default")
    parser.add_argument("--receipts", action="store_true", help="NEW makes receipts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)  # we are one of the two
    options = parser.parse_args(argv)
    if options.answer:
        return answer()
    rows = options.rows.split(",")
    if len(options.trees) != 2 or options.rounds < 1 or not set(rows) <= {*ROWS, *LOOKS}:
        parser.error("it takes two trees, at least one round, and rows that exist")
    with contextlib.ExitStack() as open_trees:
        trees = [open_trees.enter_context(tree(name)) for name in options.trees]
        old, new = ({EVICTION: order} if order else {} for order in (options.old_eviction, options.eviction))
        found = compare(trees, rows, options.rounds, (old, new | ({RECEIPTS: "1"} if options.receipts else {})))
    print(json.dumps(found, indent=2) if options.json else render(options.trees, found))
    return 0


@contextlib.contextmanager
def tree(name: str) -> Iterator[Path]:
    """The folder itself, or a commit checked out and built."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="quire-ab-") as folder:
        there = Path(folder, "tree")
        git = ["git", "-C", str(HERE.parent)]
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(there), name], check=True)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(
                build, cwd=there, check=True, env=os.environ | {"QUIRE_PURE": "0"}, stdout=subprocess.DEVNULL
            )
            yield there
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(there)], check=True)


def compare(trees: list[Path], rows: list[str], rounds: int, chosen: Chosen) -> dict[str, dict[str, float]]:
    """Per row: the minimum of each tree, their ratio, and the middle 80 % of the rounds' own ratios."""
    command = [sys.executable, str(HERE), "--answer"]
    said = [{"PYTHONPATH": str(folder)} | more for folder, more in zip(trees, chosen, strict=True)]
    sides = [Peer(command, os.environ | more) for more in said]
    taken: dict[str, tuple[list[float], list[float]]] = {row: ([], []) for row in rows}
    for number in range(rounds + 1):  # the first one warms up: caches are made in it
        for row in rows:
            for side in (0, 1) if number % 2 else (1, 0):
                told = sides[side].round(row)
                if row not in told:
                    raise SystemExit(f"{trees[side]} did not answer {row}: what it said is above")
                if number:
                    taken[row][side].append(told[row])
    for one in sides:
        one.close()
    return {row: _figures(*both) for row, both in taken.items()}


def _figures(old: list[float], new: list[float]) -> dict[str, float]:
    ratios = sorted(b / a for a, b in zip(old, new, strict=True))
    edge = len(ratios) // 10
    return {
        "old_us": min(old),
        "new_us": min(new),
        "ratio": min(new) / min(old),
        "median": statistics.median(ratios),
        "low": ratios[edge],
        "high": ratios[-1 - edge],
    }


def render(names: list[str], found: dict[str, dict[str, float]]) -> str:
    """A table for people."""
    lines = [
        f"old: {names[0]}   new: {names[1]}",
        f"{'microseconds, minimum':30}{'old':>10}{'new':>10}{'new/old':>9}   rounds: median (80 % between)",
    ]
    for row, at in found.items():
        spread = f"{at['median']:.3f} ({at['low']:.3f} .. {at['high']:.3f})"
        lines.append(f"{row:30}{at['old_us']:10.2f}{at['new_us']:10.2f}{at['ratio']:9.3f}   {spread}")
    return "\n".join(lines)


def answer() -> int:
    """One of the two: a row's name comes in, the fewest microseconds of a round go out."""
    samples = Samples()
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps({name: fewest_us(*samples.row(name))}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
