"""`quire plan` beside a queueing law and beside a replay of its own answer: twenty cases, one core, a few minutes.

    python benchmarks/plan_cases.py [--cases N] [--json]

The law knows arrivals and the work of each prompt, and nothing of caches, steps or routers: each request begins on the
worker that is free first, in order of arrival (Lindley's recursion for one worker, Kiefer's and Wolfowitz's for more).
No fleet of so many workers can do better, and one that wastes nothing does just so. The workers that the law says are
too few are a bound for the plan. Each plan is then typed in again, as `quire fleet`, with the rates and sizes it gives.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from argparse import ArgumentParser
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.cli.main import main as quire

RATE, STEP, PERCENT = 10_000, 256, 95  # prompt tokens a second and in a step; of the first tokens
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """A load, and an objective."""

    sizes: str  # of prompts: "fixed", "uniform", "mixed", or "documents" that are asked about again and again
    per_second: float
    within: float  # s
    requests: int = 1500


CASES = [
    *(Case("fixed", per_second, within) for per_second, within in ((2, 0.5), (4, 0.6), (6, 2.0), (8, 0.5), (16, 0.6))),
    *(
        Case("uniform", per_second, within)
        for per_second, within in ((2, 0.6), (4, 1.2), (6, 0.7), (10, 0.8), (20, 0.6))
    ),
    *(Case("mixed", per_second, within) for per_second, within in ((1, 1.5), (2, 2.5), (4, 2.0), (8, 1.5), (12, 4.0))),
    *(
        Case("documents", per_second, within)
        for per_second, within in ((3, 0.6), (5, 0.6), (7, 0.8), (9, 1.0), (11, 2.0))
    ),
]


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a case."""

    case: Case
    workers: int
    least: int  # workers, by the law
    planned: float  # s
    law: float
    replayed: float

    @property
    def off(self) -> tuple[float, float]:
        """Of the law, and of the replay."""
        return abs(self.planned / self.law - 1), abs(self.planned / self.replayed - 1)


def waits(arrivals: Floats, work: Floats, workers: int) -> Floats:
    """Seconds from each arrival until its work is done."""
    free = np.zeros(workers)
    done = np.empty(len(arrivals))
    for nth, (time, seconds) in enumerate(zip(arrivals, work, strict=True)):
        first = int(free.argmin())
        free[first] = max(free[first], time) + seconds
        done[nth] = free[first] - time
    return done


def lines_of(case: Case, seed: int) -> tuple[list[dict[str, object]], Floats]:
    """A trace, and the tokens that are new in each prompt."""
    dice = np.random.default_rng(seed)
    arrivals = np.cumsum(dice.exponential(1 / case.per_second, case.requests))
    draw = {
        "fixed": lambda: 1500, "uniform": lambda: int(dice.integers(200, 2800)),
        "mixed": lambda: int(dice.choice([400, 8000], p=[0.8, 0.2])), "documents": lambda: int(dice.integers(100, 600)),
    }[case.sizes]  # fmt: skip
    lines, new, seen = [], [], set[int]()
    for nth, time in enumerate(arrivals):
        own = draw()
        parts: list[list[object]] = [[f"own {nth}", own]]
        if case.sizes == "documents":
            document = int(dice.integers(40))
            parts.insert(0, [f"document {document}", 1920])
            own += 0 if document in seen else 1920
            seen.add(document)
        lines.append({"time_ms": float(time * 1000), "prompt": parts, "output_tokens": 1})
        new.append(own)
    return lines, np.array(new) / RATE


def told(*words: str) -> dict[str, object]:
    """What a command prints as JSON."""
    text = io.StringIO()
    with redirect_stdout(text):
        code = quire([*words, "--json"])
    if code:
        raise SystemExit(f"quire {' '.join(words)}: exit status {code}")
    return dict(json.loads(text.getvalue()))


def play(case: Case, seed: int) -> Found:
    """Plan, compute, replay."""
    lines, work = lines_of(case, seed)
    arrivals = np.array([line["time_ms"] for line in lines]) / 1000
    rates = (
        "--prefill-rate",
        str(RATE),
        "--decode-ms",
        "0.01",
        "--decode-ms-per-sequence",
        "0",
        "--token-budget",
        str(STEP),
    )
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        sizes = (
            "--device-sizes",
            "40GB,80GB",
            "--host-sizes",
            "0",
            "--ttft",
            f"{case.within}s",
            "--p",
            str(PERCENT),
            "--jobs",
            "1",
        )
        plan = told("plan", str(trace), *rates, *sizes)
        chosen = plan["chosen"]
        again = told(
            "fleet", str(trace), *rates, "--workers", str(chosen["workers"]), "--router", "exact", "--device",
            str(chosen["memory"]["device"]), "--host", "0", "--block-size", "64", "--jobs", "1",
        )  # fmt: skip
    workers = chosen["workers"]
    law = {count: float(np.percentile(waits(arrivals, work, count), PERCENT)) for count in range(1, workers + 1)}
    least = min(count for count, seconds in law.items() if seconds <= case.within or count == workers)
    replayed = again["fleets"][0]["ttft_ms"][f"p{PERCENT}"] / 1000
    return Found(case, workers, least, chosen["result"]["ttft_ms"]["objective"] / 1000, law[workers], replayed)


def main() -> int:
    """Every case, a row each."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=len(CASES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    every = np.linspace(0, len(CASES) - 1, options.cases).round().astype(int).tolist()
    rows = []
    for nth in every:
        found = play(CASES[nth], nth)
        rows.append(found)
        if not options.json:
            case, (law, replay) = found.case, found.off
            print(
                f"| {case.sizes} | {case.per_second:g} | {case.within:g} s | {found.workers} | {found.least} | "
                f"{found.planned:.3f} s | {found.law:.3f} s, {law:.1%} | {found.replayed:.3f} s, {replay:.1%} |",
                flush=True,
            )  # fmt: skip
    if options.json:
        print(json.dumps([{**asdict(one), "off": one.off} for one in rows]))
    return int(any(max(one.off) > 0.1 or one.workers < one.least for one in rows))


if __name__ == "__main__":
    sys.exit(main())
