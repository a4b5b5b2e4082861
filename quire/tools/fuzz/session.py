"""Session: world after world until the operations or the time are used up, or a mismatch is found. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from quire.tools.fuzz.driver import Driver
from quire.tools.fuzz.subject import StoreName
from quire.tools.fuzz.trial import Mismatch

WORLD_OPERATIONS = 400


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, None is never; and which worlds to try."""

    operations: int | None = None
    seconds: float | None = None
    mix: str = "any"  # of layer groups: full, mixed, any


@dataclass(slots=True)
class Report:
    """What a session came to."""

    seed: int
    stores: tuple[StoreName, ...]
    operations: int = 0
    worlds: int = 0
    seconds: float = 0.0
    mismatches: int = 0
    reached: Counter[str] = field(default_factory=Counter)  # how often the rarer things happened
    failure: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        rate = round(self.operations / self.seconds) if self.seconds else 0
        facts: dict[str, Any] = {
            "operations": self.operations,
            "mismatches": self.mismatches,
            "seed": self.seed,
            "stores": list(self.stores),
            "worlds": self.worlds,
            "seconds": round(self.seconds, 3),
            "operations_per_second": rate,
            "reached": dict(sorted(self.reached.items())),
        }
        return facts | ({"failure": self.failure} if self.failure else {})


def run_session(
    seed: int,
    stores: Sequence[StoreName],
    limits: Limits,
    first_world: int = 0,
    tell: Callable[[Report], None] | None = None,
) -> Report:
    """Fuzz until a limit is met; the same seed gives the same worlds and calls."""
    report = Report(seed, tuple(stores))
    began = monotonic()
    while not _done(report, limits):
        world = first_world + report.worlds
        left = WORLD_OPERATIONS if limits.operations is None else limits.operations - report.operations
        _run_world(report, f"{seed}/{world}", min(left, WORLD_OPERATIONS), limits.mix)
        report.worlds += 1
        report.seconds = monotonic() - began
        if report.failure is not None:
            report.failure["world_number"] = world
        if tell is not None:
            tell(report)
    return report


def _done(report: Report, limits: Limits) -> bool:
    enough = limits.operations is not None and report.operations >= limits.operations
    late = limits.seconds is not None and report.seconds >= limits.seconds
    return enough or late or report.mismatches > 0


def _run_world(report: Report, name: str, operations: int, mix: str) -> None:
    driver = Driver(name, report.stores, mix=mix)
    try:
        driver.run(operations)
    except Mismatch:
        report.mismatches += 1
        report.failure = pinned_down(name, report.stores, operations, mix)
    report.operations += driver.trial.operations
    report.reached += driver.trial.reached


def pinned_down(name: str, stores: Sequence[StoreName], operations: int, mix: str) -> dict[str, Any]:
    """Run a world again with every comparison after every call: the failure, and the calls that led to it."""
    driver = Driver(name, stores, check_every=1, compare_every=1, mix=mix)
    said = "it did not happen again with comparisons after every call"
    try:
        driver.run(operations)
    except Mismatch as mismatch:
        said = str(mismatch)
    return {
        "world": repr(driver.world),
        "operation": driver.trial.operations,
        "what": said,
        "trace": driver.trial.calls(),
    }
