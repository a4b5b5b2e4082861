"""python -m tests.soak: until stopped; `make calls ARGS="--seconds 3600"`. Needs numpy and the built extension only."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from time import monotonic, strftime
from types import FrameType

from . import pieces
from .crew import Crew
from .pieces import KINDS, Result

NAMES = {"compiled": "calls compiled", "lockstep": "calls in lockstep", "transfer": "storms", "events": "fault runs"}
RARE = ("onboard", "offload", "exchange", "copy", "sequence set back", "sequence lost", "claim set back")


def shares(text: str) -> dict[str, float]:
    """compiled=6,lockstep=2: shares of time by kind; what is not named does not run."""
    found = {}
    for item in text.split(","):
        kind, _, share = item.partition("=")
        if kind not in KINDS or not share.replace(".", "", 1).isdigit():
            raise ArgumentTypeError(f"{item!r}; give KIND=SHARE with a kind of {', '.join(KINDS)}")
        found[kind] = float(share)
    return {kind: share for kind, share in found.items() if share}


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse() -> Namespace:
    usual = ",".join(f"{kind}={share:g}" for kind, share in KINDS.items())
    parser = ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, help="stop after so long (default: never)")
    parser.add_argument("--calls", type=int, help="stop after so many calls of the cache")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes (default: all cores)")
    parser.add_argument("--shares", type=shares, default=usual, help=f"time by kind (default: {usual})")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two lines (default: 60)")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder for failing lists of calls")
    parser.add_argument("--again", metavar="KIND:SEED", help="run this one piece, and say how it ends")
    return parser.parse_args()


def available(wanted: dict[str, float]) -> dict[str, float]:
    """The kinds that can run here; the others are named."""
    lacks = {kind: pieces.missing(kind) for kind in wanted}
    for kind, why in lacks.items():
        if why is not None:
            print(f"{kind} is left out: {why}")
    return {kind: share for kind, share in wanted.items() if lacks[kind] is None}


def tell(failure: Result) -> None:
    """A failure, as soon as it is known."""
    print(f"FAILURE ({failure.kind}): {failure.failure}\n  again: {failure.again}")
    if failure.recording is not None:
        store = "both" if failure.kind == "lockstep" else failure.kind
        print(f"     or: python -m fuzzing --replay {failure.recording} --store {store} --shrink")
    sys.stdout.flush()


class Soak:
    """One soak with its limits."""

    def __init__(self, options: Namespace, kinds: dict[str, float]) -> None:
        self.options, self.kinds = options, kinds
        self.began, self.stopped = monotonic(), False
        self.crew = Crew(options.jobs, kinds, options.out, tell)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.stopped = True

    @property
    def is_over(self) -> bool:
        """A limit is met or a signal came."""
        counts, options = self.crew.totals.counts, self.options
        enough = options.calls is not None and counts["compiled"] + counts["lockstep"] >= options.calls
        late = options.seconds is not None and self.seconds >= options.seconds
        return self.stopped or enough or late or not self.crew.posts

    @property
    def seconds(self) -> float:
        """So long it has run."""
        return monotonic() - self.began

    def line(self) -> str:
        """All counts in one line."""
        counts = self.crew.totals.counts
        told = ", ".join(f"{counts[kind]:,} {NAMES[kind]}" for kind in self.kinds)
        return f"{strftime('%H:%M:%S')} {self.seconds:7,.0f} s: {told}, {len(self.crew.totals.failures)} failures"

    def run(self) -> int:
        """Until it is over; 1 when there was a failure."""
        next_line = self.options.every
        while not self.is_over:
            self.crew.listen(0.5)
            if self.seconds >= next_line:
                print(self.line(), flush=True)
                next_line += self.options.every
        self.crew.end()
        totals = self.crew.totals
        for kind in ("compiled", "lockstep"):
            if kind in totals.reached:
                print(f"{kind}: " + ", ".join(f"{totals.reached[kind][what]:,} x {what}" for what in RARE))
        for failure in totals.failures:
            tell(failure)
        print(f"in all {self.line()}", flush=True)
        return 1 if totals.failures else 0


def main() -> int:
    """Run the soak; 1 when something failed, 2 when nothing can run."""
    options = parse()
    if options.again is not None:
        kind, _, seed = options.again.partition(":")
        result = pieces.run(kind, int(seed), options.out)
        print(result.failure or f"{result.count:,} {NAMES[kind]}: no failure")
        return 1 if result.failure else 0
    kinds = available(options.shares)
    if not kinds:
        return 2
    soak = Soak(options, kinds)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, soak.stop)
    return soak.run()


if __name__ == "__main__":
    sys.exit(main())
