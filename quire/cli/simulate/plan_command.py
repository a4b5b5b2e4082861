"""quire plan: the cheapest workers and memory that give first tokens soon enough for a trace; says what it assumed."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser, finite, not_negative
from quire.cli.simulate.fleet_command import BLOCK_SIZE, KNOWN
from quire.cli.simulate.replay_options import add_options, settings_of
from quire.core.records.errors import say
from quire.core.records.memory import parse_bytes
from quire.simulate.capacity.capacity_plan import (
    MeasuredEngine,
    Objective,
    PredictionCheck,
    Prices,
    Search,
    Tried,
    find_plan,
    memories,
)
from quire.simulate.capacity.fleet import load_trace
from quire.simulate.capacity.plan_page import ShownPlan, assumed, assumed_rows, fleet_text, head, outcome, render, rows
from quire.simulate.capacity.routers import RouterName
from quire.simulate.play.sweep import TraceSource
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.show.page_file import check_page, write_page
from quire.simulate.show.screen import show_table
from quire.simulate.show.story import UNSHARED

SIZES = {"device": "20GB,40GB,80GB", "host": "0,100GB,200GB,400GB", "disk": "0"}
FIRST = (
    "--ttft", "--p", "--in-time", "--shape", *(f"--{name}-sizes" for name in SIZES), "--most-workers", "--limit",
    "--json", "--html",
)  # fmt: skip
RATES = ("prefill_tokens_per_second", "decode_ms", "decode_ms_per_sequence")


def main(argv: list[str] | None = None) -> int:
    """Read, search, show."""
    options = _parser().parse_args(argv)
    try:
        check_page(options.html)
        measured = None if options.measured is None else read_measured(options.measured)
        search = _search(options, measured)
        plan = find_plan(search, jobs=options.jobs or os.cpu_count() or 1, tell=partial(_tell, search.objective))
    except QuireError as error:
        print(f"quire plan: {error}", file=sys.stderr)
        return 2
    shown = ShownPlan(plan, search, measured, load_trace(search.source).lengths_only)
    wrote = options.html is None or write_page(options.html, render(Path(options.trace).name, shown), "quire plan")
    if options.json:
        found = plan.to_json() if shown.is_believed else {**plan.to_json(), "chosen": None}
        warnings = [UNSHARED] if shown.lengths_only else []
        print(json.dumps({"trace": options.trace, "warnings": warnings, "assumed": assumed(search, measured), **found}))
    else:
        _show(shown)
    if options.html is not None and wrote and not options.json:
        print(f"page: {options.html}")
    return 2 if not wrote else 0 if shown.chosen is not None else 1


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire plan", description=__doc__, first=FIRST)
    parser.add_argument("trace", metavar="TRACE", help="JSON lines (docs/replay.md), 'sample' or 'sample-agents'")
    parser.add_argument("--ttft", default="2s", metavar="TIME", help="first tokens within 2s or 500ms (default 2s)")
    parser.add_argument("--p", type=float, default=95.0, metavar="PERCENT", help="of requests (default 95)")
    what = "of all requests in time; doors refuse the rest at once (in place of --p)"
    parser.add_argument("--in-time", type=float, metavar="SHARE", help=what)
    parser.add_argument("--deadlines", type=finite, default=0.95, metavar="Q", help="bounds kept (default %(default)s)")
    parser.add_argument("--model", metavar="SHAPE", help="the same as --shape")
    for name, sizes in SIZES.items():
        help_ = f"sizes to choose from, per worker (default {sizes}; --{name} gives one)"
        parser.add_argument(f"--{name}-sizes", metavar="BYTES[,BYTES]", help=help_)
    parser.add_argument("--most-workers", type=int, default=64, metavar="N", help="(default %(default)s)")
    parser.add_argument("--router", choices=KNOWN, help="(default: exact; with --in-time deadline)")
    for field in fields(Prices):
        unit = "a worker" if field.name == "worker" else f"a GB of {field.name}"
        what = f"{unit} for an hour (default {field.default})"
        parser.add_argument(f"--{field.name}-price", type=not_negative, default=field.default, metavar="X", help=what)
    parser.add_argument("--currency", default="", metavar="NAME", help="of the prices: EUR (default: not said)")
    parser.add_argument("--measured", metavar="FILE", help="rates and checks of an engine, from benchmarks/plan.py")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: the cores)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with the plot")
    add_options(parser)
    parser.set_defaults(block_size=BLOCK_SIZE)
    return parser


def _search(options: Namespace, measured: MeasuredEngine | None) -> Search:
    if options.model is not None:
        options.shape = options.model
    sizes = [_sizes(options, name) for name in SIZES]
    options.disk = str(max(sizes[-1]))  # so that --disk-read and others are taken
    settings = settings_of(options)
    if unknown := [tier.name for tier in settings.tiers if tier.name not in SIZES]:
        fact = "a plan chooses among device, host and disk, each worker's own, and has prices for these"
        raise InputError(say(f"a plan with memory {unknown[0]!r}", fact, "leave out --shared and --tier"))
    if measured is not None:
        settings = replace(settings, pace=replace(measured.pace, links=settings.pace.links))
    prices = Prices(**{field.name: getattr(options, f"{field.name}_price") for field in fields(Prices)})
    source = TraceSource(options.trace, options.limit, options.skip_bad, options.trace_block)
    objective, router = _objective(options)
    return Search(source, memories(settings, *sizes), objective, prices, router,
                  options.most_workers, options.currency)  # fmt: skip


def _objective(options: Namespace) -> tuple[Objective, RouterName]:
    """And the router, by whether requests have deadlines."""
    seconds = seconds_of(options.ttft)
    if options.in_time is None:
        return Objective(seconds, options.p), options.router or "exact"
    return Objective(seconds, 100 * options.in_time, options.deadlines), options.router or "deadline"


def _sizes(options: Namespace, name: str) -> list[int]:
    """Of one kind of memory, to choose from."""
    many, one, blocks = (getattr(options, f"{name}{end}") for end in ("_sizes", "", "_blocks"))
    if blocks is not None:
        raise InputError(say(f"--{name}-blocks in a plan", "memory has a price by its bytes", f"give --{name}-sizes"))
    if many is not None and one is not None:
        raise InputError(say(f"--{name} and --{name}-sizes", "both say how large it is", "give one of them"))
    sizes = next(text for text in (many, one, SIZES[name]) if text is not None)
    return [parse_bytes(size, f"{name} memory") for size in sizes.split(",")]


def seconds_of(text: str) -> float:
    """Of '2s', '500ms' or '2'."""
    number, factor = (text[:-2], 0.001) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        return float(number) * factor
    except ValueError:
        raise InputError(say(f"a time of {text!r}", "it is not a time", "write 2s or 500ms")) from None


def read_measured(path: str) -> MeasuredEngine:
    """What benchmarks/plan.py has written."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        rate, turn, more = (float(table["pace"][field]) for field in RATES)
        checks = tuple(PredictionCheck(float(one["predicted"]), float(one["measured"])) for one in table["checks"])
        return MeasuredEngine(Pace(rate, turn, more), checks)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fact = f"it cannot be used ({type(error).__name__}: {error})"
        raise InputError(say(f"measurements {path!r}", fact, "make them with benchmarks/plan.py")) from None


def _tell(objective: Objective, tried: Tried) -> None:
    print(f"{fleet_text(tried)}: {outcome(tried, objective)}", file=sys.stderr, flush=True)


def _show(shown: ShownPlan) -> None:
    print("\n".join([*([UNSHARED] if shown.lengths_only else []), shown.answer()]))
    if shown.plan.tried:
        show_table(
            "Tried, cheapest first", head(shown.search.currency), rows(shown.near(), shown.plan.objective), sys.stdout
        )
    if len(shown.near()) < len(shown.plan.tried):
        print(f"{len(shown.near())} of {len(shown.plan.tried)} that were tried; --json or --html has all")
    facts = assumed_rows(shown.search, shown.measured)
    print("Assumed: " + "; ".join(f"{name} {value}" for name, value in facts))


if __name__ == "__main__":
    sys.exit(main())
