"""Session: world after world until the operations or the time are used up, or a mismatch is found. Prints nothing."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from fuzzing.compare import Mismatch
from fuzzing.driver import Driver
from fuzzing.lists.calls import Recording
from fuzzing.subject import StoreName
from fuzzing.world import build
from fuzzing.world.worlds import LONG

WORLD_OPERATIONS = 400
YOUNG = 50_000  # objects a world may make before garbage is looked for: nearly all of them go by themselves


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
    failed: Recording | None = None  # the calls of the world that failed
    last: Driver | None = None  # the last world

    @property
    def recording(self) -> Recording | None:
        """The calls of the world that failed, or of the last one."""
        return self.last.recording() if self.failed is None and self.last is not None else self.failed

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
    with seldom_collecting():
        while not _done(report, limits):
            world = first_world + report.worlds
            left = WORLD_OPERATIONS if limits.operations is None else limits.operations - report.operations
            report.last = _run_world(report, f"{seed}/{world}", min(left, WORLD_OPERATIONS), limits.mix)
            report.worlds += 1
            report.seconds = monotonic() - began
            if report.failure is not None:
                report.failure["world_number"] = world
            if tell is not None:
                tell(report)
    return report


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Look for garbage less often: a world is full of objects that live long, and looking takes a tenth of its time."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _done(report: Report, limits: Limits) -> bool:
    enough = limits.operations is not None and report.operations >= limits.operations
    late = limits.seconds is not None and report.seconds >= limits.seconds
    return enough or late or report.mismatches > 0


def _run_world(report: Report, name: str, operations: int, mix: str) -> Driver:
    build.ORIGINS.clear()  # those of the world before: a soak would fill up with them
    driver = Driver(name, report.stores, mix=mix)
    try:
        driver.run(operations)
    except Exception as error:
        report.mismatches += 1
        report.failure, report.failed = pinned_down(name, report.stores, operations, mix, said(error))
    report.operations += driver.trial.operations
    report.reached += driver.trial.reached
    return driver


def said(error: Exception) -> str:
    """What a failure says; one that is not a mismatch is an error of the library or of the fuzzer."""
    return str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"


def pinned_down(
    name: str, stores: Sequence[StoreName], operations: int, mix: str, first: str
) -> tuple[dict[str, Any], Recording | None]:
    """Run a world again with every comparison after every call: the failure, and the calls that led to it."""
    driver, what = Driver(name, stores, check_every=1 if mix != LONG else 40, compare_every=1, mix=mix), ""
    try:
        driver.run(operations)
    except Exception as error:
        what = said(error)
    failure = {
        "world": repr(driver.world),
        "operation": driver.trial.operations,
        "what": what or f"{first} (it did not happen again with comparisons after every call)",
        "trace": driver.trial.calls(),
    }
    return failure, driver.recording(what) if what else None
