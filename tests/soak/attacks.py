"""python -m tests.soak.attacks: every script of tests/attacks once, each a process of its own with a limit.

Owns the list of scripts, their limit and the count of failures; a script ends with 1 when something did not hold. Knows
nothing of what they attack: one is whatever file there can be run as `python -m tests.attacks.NAME`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "attacks"
LIMIT = 900.0  # seconds for one script
MAIN = 'if __name__ == "__main__":'


def scripts(folder: Path = FOLDER) -> list[str]:
    """Names of those that can be run; what they share has no main."""
    files = sorted(folder.glob("*.py"))
    return [path.stem for path in files if path.stem[0] != "_" and MAIN in path.read_text(encoding="utf-8")]


def attack(name: str, package: str, limit: float) -> str:
    """Run one; why it failed, or nothing. What it prints is shown as it comes."""
    try:
        done = subprocess.run([sys.executable, "-m", f"{package}.{name}"], timeout=limit, check=False, env=os.environ)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit:g} s"
    return "" if done.returncode == 0 else f"ended with {done.returncode}"


def main(argv: Sequence[str] | None = None, folder: Path = FOLDER, package: str = "tests.attacks") -> int:
    """All of them, or those that are named; 1 when one failed, 2 when there is no such script."""
    parser = ArgumentParser(prog="python -m tests.soak.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", help="these only (default: all)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds for each (default: {LIMIT:.0f})")
    options, there = parser.parse_args(argv), scripts(folder)
    if unknown := [name for name in options.names if name not in there]:
        print(f"there is no attack {', '.join(unknown)}; there are {', '.join(there) or 'none'}")
        return 2
    failed = []
    for name in options.names or there:
        print(f"-- {name}", flush=True)
        began = monotonic()
        why = attack(name, package, options.limit)
        print(f"-- {name}: {why or 'held'}, {monotonic() - began:.0f} s", flush=True)
        failed += [f"FAILURE: {name} {why}\n  again: python -m {package}.{name}"] if why else []
    print(*failed, f"{len(options.names or there)} attacks, {len(failed)} failures", sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
