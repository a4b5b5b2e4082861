"""Bodies of up to 4 MiB that cost as much as they can: none makes /health wait for more than 100 ms beside it.

The waits are measured by `benchmarks/bodies.py`. What other jobs of the machine cost is left out as far as it shows
without a body; a body that seems to break the bound is sent again, since a busy machine only adds to a wait.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from .target import ROOT, Verdict

BOUND = 100.0  # ms
TRIES = 3


def measured(*words: str) -> dict[str, dict[str, Any]]:
    """By body; `alone` is the wait without one."""
    command = [sys.executable, "benchmarks/bodies.py", "--json", *words]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {row["body"]: row for row in json.loads(out.splitlines()[-1])}


def longest(rows: dict[str, dict[str, Any]], name: str) -> float:
    """The usual wait beside a body, less what there is without one."""
    return float(rows[name]["usual_ms"] - rows["alone"]["usual_ms"])


def main() -> int:
    """Each body some times; those that seem too long again."""
    verdict = Verdict("large bodies")
    rows = measured()
    for name in rows.keys() - {"alone"}:
        waits = [longest(rows, name)]
        while min(waits) > BOUND and len(waits) < TRIES:
            waits.append(longest(measured("--only", name), name))
        verdict.check(f"{name}: /health waits {min(waits):.0f} ms", min(waits) <= BOUND, waits)
    verdict.check("there were at least a dozen bodies", len(rows) > 12, len(rows))
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
