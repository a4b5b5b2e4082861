"""Pieces: a second or so of one kind of work, with a seed that repeats it. Knows no processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzzing.session import WORLD_OPERATIONS, Limits, run_session
from fuzzing.subject import StoreName, available_stores
from fuzzing.world.worlds import LONG, MIXES

SCHEDULES = 100  # transfer storms in a piece
SELDOM = 30  # one of so many worlds is long: it takes as long as five
RUNS = 10  # event faults in a piece
KINDS = {"compiled": 60.0, "lockstep": 20.0, "transfer": 13.0, "events": 7.0}  # and the share of time each gets
HOMES = {"transfer": "tests.transfer.storm", "events": "tests.events.faults"}
NEEDS = {"transfer": ("msgspec",), "events": ("msgspec", "zmq", "pytest")}  # what their packages import


@dataclass
class Result:
    """What a piece came to."""

    kind: str
    count: int = 0  # calls, schedules or runs
    reached: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    again: str = ""  # the command that repeats the failure
    recording: Path | None = None


def command(kind: str, seed: int) -> str:
    """What repeats a piece."""
    return f"python -m tests.soak --again {kind}:{seed}"


def missing(kind: str) -> str | None:
    """Why a kind cannot run here, if it cannot."""
    if kind in ("compiled", "lockstep"):
        return None if "compiled" in available_stores() else "the compiled store is not built here"
    try:
        for name in NEEDS[kind]:
            import_module(name)
    except ImportError as error:
        return str(error)
    return None


def run(kind: str, seed: int, folder: Path) -> Result:
    """One piece; whatever goes wrong in it is its failure."""
    try:
        return RUN[kind](kind, seed, folder)
    except Exception as error:
        return Result(kind, failure=f"{type(error).__name__}: {error}", again=command(kind, seed))


def _fuzz(kind: str, seed: int, folder: Path) -> Result:
    stores: tuple[StoreName, ...] = ("twin", "compiled") if kind == "lockstep" else ("compiled",)
    mix = LONG if seed % SELDOM == 0 else MIXES[seed % len(MIXES)]
    report = run_session(seed, stores, Limits(WORLD_OPERATIONS, mix=mix))
    result = Result(kind, report.operations, report.reached)
    if report.failure is not None:
        result.failure = report.failure["what"]
        store = "both" if kind == "lockstep" else "compiled"
        number, operations = report.failure["world_number"], report.failure["operation"]
        result.again = (
            f"python -m fuzzing --seed {seed} --world {number} --operations {operations} --groups {mix} --store {store}"
        )
        if report.recording is not None:
            result.recording = folder / f"{kind}-{seed}-{number}.json"
            report.recording.save(result.recording)
    return result


def _storms(kind: str, seed: int, folder: Path) -> Result:
    storm: Any = import_module(HOMES["transfer"])
    result = Result(kind)
    for number in range(seed, seed + SCHEDULES):
        for backwards in (False, True) if number % 10 == 0 else (False,):
            try:
                outcomes = storm.Storm(number, backwards=backwards).run()
            except Exception as error:
                way = ", backwards" if backwards else ""
                failed = f"storm {number}{way}: {type(error).__name__}: {error}"
                return Result(kind, result.count, failure=failed, again=command(kind, number))
            result.count += 1
            result.reached.update(said.split("'")[1] if "'" in said else "died" for said in outcomes.values())
    return result


def _faults(kind: str, seed: int, folder: Path) -> Result:
    faults: Any = import_module(HOMES["events"])
    result = Result(kind)
    for number in range(seed, seed + RUNS):
        try:
            result.reached += faults.run_once(number)
        except Exception as error:
            failed = f"fault run {number}: {type(error).__name__}: {error}"
            return Result(kind, result.count, failure=failed, again=command(kind, number))
        result.count += 1
    return result


RUN: dict[str, Callable[[str, int, Path], Result]] = {
    "compiled": _fuzz, "lockstep": _fuzz, "transfer": _storms, "events": _faults,
}  # fmt: skip
