"""make release: build, look inside, install in an empty environment, run the demo; then the list to sign.

It publishes nothing. dist/ has what was built; RELEASING.md says what comes after.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import quire

from . import wheel

BY_HAND = (
    "CI is green on every Python and system",
    'make fuzz ARGS="--seconds 3600" and a night of make soak found nothing',
    "python benchmarks/ab.py LAST_TAG . was read: what became slower is known and worth it",
    "make docs: the front page, the tutorial and the reference were looked at",
    "names and formats that changed are in CHANGELOG.md and tests/golden/test_golden.py",
    "the wheel was installed by somebody who had never seen it, as README.md says",
)


def main() -> int:
    """Each step with a line; the first that fails ends it."""
    with tempfile.TemporaryDirectory() as made:
        work, dist = Path(made), wheel.ROOT / "dist"
        print("== building", flush=True)
        built, sdist = wheel.build(wheel.tracked(work / "source"), dist)
        print(f"   {built.name}, {sdist.name}")
        print("== looking inside", flush=True)
        if faults := wheel.faults_of(built, sdist):
            print("\n".join(f"   {fault}" for fault in faults))
            return 1
        print("== installing into an empty environment", flush=True)
        programs = wheel.install(built, work / "env")
        for words in wheel.try_all(programs, work):
            print(f"   ran: {words}", flush=True)
    print(f"\nTo sign before {quire.__version__} goes out:")
    facts = signed(quire.__version__, wheel.ROOT)
    for fact, holds in facts.items():
        print(f"   [{'x' if holds else ' '}] {fact}")
    for fact in BY_HAND:
        print(f"   [?] {fact}")
    return 0 if all(facts.values()) else 1


def signed(version: str, root: Path) -> dict[str, bool]:
    """What a program can look at."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        "the version is not one under development": re.fullmatch(r"\d+\.\d+\.\d+", version) is not None,
        "CHANGELOG.md has a dated section for it": f"\n## {version} (20" in changes,
        "tests/golden has what it writes": (root / "tests" / "golden" / version).is_dir(),
        "everything is committed": not git("status", "--porcelain"),
        f"v{version} is a tag of this commit": f"v{version}" in git("tag", "--points-at", "HEAD").split(),
    }


if __name__ == "__main__":
    sys.exit(main())
