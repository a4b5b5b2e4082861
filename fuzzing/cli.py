"""python -m fuzzing: random calls on a real cache with real bytes, compared with an oracle that answers by definition.

driver (what to call) --> player (as an engine does) --> trial --> oracle     what must happen, from the definitions
replay (a list of calls) -^                                   \\--> subject    the cache, its bytes, its events
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from tempfile import gettempdir

from fuzzing.lists.calls import load
from fuzzing.lists.incidents import IncidentShrinker, failure_of, incident_test
from fuzzing.lists.replay import outcome
from fuzzing.lists.shrink import Shrinker, as_test
from fuzzing.session import Limits, Report, run_session
from fuzzing.subject import StoreName, available_stores
from fuzzing.world.worlds import LONG, MIXES
from quire.incidents.files.incident_file import load as read_incident
from quire.incidents.incidents import SUFFIX
from quire.incidents.play.player import IncidentPlayer

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the fuzzer; 1 when a cache and the oracle differ."""
    options = _parse(argv)
    stores = _stores(options.store)
    if stores is None:
        cure = "install a C compiler or use --store twin"
        print(f"python -m fuzzing: the compiled store does not import; {cure}", file=sys.stderr)
        return 2
    failed = _run(options, stores) if options.replay is None else _replay(options.replay, stores)
    if failed is not None and options.shrink:
        _shrink(failed, stores)
    return 0 if failed is None else 1


def _run(options: Namespace, stores: tuple[StoreName, ...]) -> Path | None:
    """Random calls; the file of those that failed."""
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    seconds = 10.0 if options.seconds is None and options.operations is None else options.seconds
    tell = _progress if sys.stderr.isatty() else None
    report = run_session(seed, stores, Limits(options.operations, seconds, options.groups), options.world, tell)
    if tell is not None:
        print(file=sys.stderr)
    recording = report.recording if report.failure is not None or options.record is not None else None
    if recording is not None:
        folder = options.record or Path(gettempdir())
        path = folder / f"quire-fuzz-{seed}-{options.world + report.worlds - 1}.json"
        recording.save(path)
        if report.failure is not None:
            report.failure["recording"] = str(path)
    print(json.dumps(report.facts(), indent=2) if options.json else _summary(report, options.groups))
    return None if report.failure is None else Path(report.failure["recording"])


def _replay(path: Path, stores: tuple[StoreName, ...]) -> Path | None:
    """The calls of a file; the file itself when they fail."""
    if path.name.endswith(SUFFIX):
        return _replay_incident(path, stores)
    recording = load(path)
    failure = outcome(recording, stores).failure
    said = "no mismatch" if failure is None else failure
    print(f"{len(recording.calls)} calls of {path} on {' and '.join(stores)}: {said}")
    return None if failure is None else path


def _replay_incident(path: Path, stores: tuple[StoreName, ...]) -> Path | None:
    """Calls that a real cache has seen: exactly, if they are all there, and for what goes wrong with them."""
    incident = read_incident(path)
    for store in stores if incident.start is None else ():
        IncidentPlayer(incident, store=store).run()
    failure = failure_of(incident.config, incident.calls, stores[-1])
    print(f"{len(incident.calls)} calls of {path} on {' and '.join(stores)}: {failure or 'nothing goes wrong'}")
    return None if failure is None else path


def _shrink_incident(path: Path, stores: tuple[StoreName, ...]) -> None:
    incident, name = read_incident(path), path.name.split(".")[0]
    shrinker = IncidentShrinker(incident, stores[-1], _shrinking if sys.stderr.isatty() else None)
    short = shrinker.shortest(incident)
    target = path.with_name(f"{name}-short{SUFFIX}")
    short.save(target)
    print(f"\n# {len(short.calls)} calls are left after {shrinker.tries:,} tries: {target}")
    print(incident_test(short, re.sub(r"\W", "_", name)))


def _shrink(path: Path, stores: tuple[StoreName, ...]) -> None:
    """The shortest list that still fails, as a test and as a file."""
    if path.name.endswith(SUFFIX):
        _shrink_incident(path, stores)
        return
    try:
        shrinker = Shrinker(load(path), stores, _shrinking if sys.stderr.isatty() else None)
    except ValueError as error:  # a failure that only rare comparisons show
        print(f"python -m fuzzing: {error}", file=sys.stderr)
        return
    short, name = shrinker.run(), path.name.split(".")[0]
    target = path.with_name(f"{name}-short.json")
    short.save(target)
    print(f"\n# {len(short.calls)} calls are left after {shrinker.tries:,} tries: {target}")
    print(as_test(short, name.replace("-", "_")))


def _shrinking(tries: int, calls: int) -> None:
    print(f"\rshrinking: {calls} calls left after {tries:,} tries ", end="", file=sys.stderr, flush=True)


def _parse(argv: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m fuzzing", description="Random calls on a cache, compared with an oracle.")
    parser.add_argument("--seconds", type=float, help="stop after so long (default 10, unless --operations is given)")
    parser.add_argument("--operations", type=int, help="stop after so many calls")
    parser.add_argument("--seed", type=int, help="the same seed makes the same calls (default: a new one)")
    parser.add_argument("--world", type=int, default=0, help="number of the first world, to go straight to a failure")
    parser.add_argument(
        "--store", choices=("auto", "twin", "compiled", "both"), default="auto", help="both: in lockstep"
    )
    parser.add_argument("--groups", choices=(*MIXES, LONG), default="any", help="kinds of worlds (default: any)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--record", type=Path, metavar="DIR", help="where the calls of the last world go as a file")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play a file of calls instead of random ones")
    parser.add_argument("--shrink", action="store_true", help="make a failing list as short as it goes: a ready test")
    return parser.parse_args(argv)


def _stores(wanted: str) -> tuple[StoreName, ...] | None:
    there = available_stores()
    if wanted == "both":
        return there if len(there) == 2 else None
    if wanted == "auto":
        return there[-1:]
    return tuple(store for store in there if store == wanted) or None


def _progress(report: Report) -> None:
    rate = report.operations / max(report.seconds, 1e-9)
    text = f"\r{report.operations:,} operations in {report.worlds:,} worlds, {rate:,.0f} a second"
    print(text, end="", file=sys.stderr, flush=True)


def _summary(report: Report, mix: str) -> str:
    facts = report.facts()
    lines = [
        f"{report.operations:,} operations in {report.worlds:,} worlds on {' and '.join(report.stores)}, "
        f"{facts['operations_per_second']:,} a second, seed {report.seed}: {report.mismatches} mismatches"
    ]
    if report.failure is not None:
        number = report.failure["world_number"]
        lines += ["", *report.failure["trace"], "", report.failure["what"], report.failure["world"]]
        again = f"python -m fuzzing --seed {report.seed} --world {number} --operations {report.failure['operation']}"
        store = "both" if len(report.stores) > 1 else report.stores[0]
        lines.append(f"again: {again} --groups {mix} --store {store}")
        lines.append(f"short: python -m fuzzing --replay {report.failure['recording']} --store {store} --shrink")
    return "\n".join(lines)
