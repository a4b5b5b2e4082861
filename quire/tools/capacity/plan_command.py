"""quire plan: the cheapest workers and memory that give first tokens soon enough for a trace; says what it assumed."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from quire import InputError, QuireError
from quire.core.records.errors import say
from quire.core.records.memory import parse_bytes, say_bytes
from quire.tools.capacity.fleet_command import BLOCK_SIZE, NOTE
from quire.tools.capacity.plan import (
    MOST_OFF,
    CapacityPlan,
    Objective,
    PredictionCheck,
    Prices,
    Search,
    Tried,
    find_plan,
    memories,
)
from quire.tools.capacity.routers import ROUTERS
from quire.tools.replay.options import add_options, settings_of
from quire.tools.replay.play.sweep import TraceSource
from quire.tools.replay.setup.pace import Pace
from quire.tools.replay.setup.settings import ReplaySettings
from quire.tools.replay.show.screen import show_table

SIZES = {"device": "20GB,40GB,80GB", "host": "0,100GB,200GB,400GB", "disk": "0"}
RATES = ("prefill_tokens_per_second", "decode_ms", "decode_ms_per_sequence")
SHOWN = 12  # fleets of the table


class MeasuredEngine(NamedTuple):
    """What was measured on an engine: its rates, and how well they predict."""

    pace: Pace
    checks: tuple[PredictionCheck, ...]

    @property
    def is_good(self) -> bool:
        """Whether every load was predicted well enough."""
        return bool(self.checks) and all(check.off <= MOST_OFF for check in self.checks)


def main(argv: list[str] | None = None) -> int:
    """Read, search, show."""
    options = _parser().parse_args(argv)
    try:
        measured = None if options.measured is None else read_measured(options.measured)
        search = _search(options, measured)
        plan = find_plan(search, jobs=options.jobs or os.cpu_count() or 1, tell=_tell)
    except QuireError as wrong:
        print(f"quire plan: {wrong}", file=sys.stderr)
        return 2
    believed = measured is None or measured.is_good
    if options.json:
        shown = plan.to_json() if believed else {**plan.to_json(), "chosen": None}
        print(json.dumps({"trace": options.trace, "assumed": assumed(search, measured), **shown}))
    else:
        _show(plan, search, measured)
    return 0 if plan.chosen is not None and believed else 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="quire plan", description=__doc__)
    parser.add_argument("trace", metavar="TRACE", help="JSON lines (docs/replay.md), or 'sample'")
    parser.add_argument("--ttft", default="2s", metavar="TIME", help="first tokens within 2s or 500ms (default 2s)")
    parser.add_argument("--p", type=float, default=95.0, metavar="PERCENT", help="of requests (default 95)")
    parser.add_argument("--model", metavar="SHAPE", help="the same as --shape")
    for name, sizes in SIZES.items():
        help_ = f"sizes to choose from, per worker (default {sizes})"
        parser.add_argument(f"--{name}-sizes", default=sizes, metavar="BYTES[,BYTES]", help=help_)
    parser.add_argument("--most-workers", type=int, default=64, metavar="N", help="(default %(default)s)")
    parser.add_argument("--router", choices=ROUTERS, default="exact", help="(default %(default)s)")
    for field in fields(Prices):
        unit = "a worker" if field.name == "worker" else f"a GB of {field.name}"
        what = f"{unit} for an hour (default {field.default})"
        parser.add_argument(f"--{field.name}-price", type=float, default=field.default, metavar="X", help=what)
    parser.add_argument("--measured", metavar="FILE", help="rates and checks of an engine, from benchmarks/plan.py")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: the cores)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    add_options(parser)
    parser.set_defaults(block_size=BLOCK_SIZE)
    return parser


def _search(options: Namespace, measured: MeasuredEngine | None) -> Search:
    if options.model is not None:
        options.shape = options.model
    settings = settings_of(options)
    if measured is not None:
        settings = replace(settings, pace=measured.pace)
    prices = Prices(**{field.name: getattr(options, f"{field.name}_price") for field in fields(Prices)})
    sizes = [[parse_bytes(one) for one in getattr(options, f"{name}_sizes").split(",")] for name in SIZES]
    source = TraceSource(options.trace, options.limit, options.skip_bad, options.trace_block)
    objective = Objective(seconds_of(options.ttft), options.p)
    return Search(source, memories(settings, *sizes), objective, prices, options.router, options.most_workers)


def seconds_of(text: str) -> float:
    """Of '2s', '500ms' or '2'."""
    number, factor = (text[:-2], 0.001) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        return float(number) * factor
    except ValueError:
        raise InputError(say(f"a time of {text!r}", "it is none", "write 2s or 500ms")) from None


def read_measured(path: str) -> MeasuredEngine:
    """What benchmarks/plan.py has written."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        rate, turn, more = (float(table["pace"][field]) for field in RATES)
        checks = tuple(PredictionCheck(float(one["predicted"]), float(one["measured"])) for one in table["checks"])
        return MeasuredEngine(Pace(rate, turn, more), checks)
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        fact = f"it cannot be used ({type(wrong).__name__}: {wrong})"
        raise InputError(say(f"measurements {path!r}", fact, "make them with benchmarks/plan.py")) from None


def assumed(search: Search, measured: MeasuredEngine | None) -> dict[str, Any]:
    """Everything that the answer rests on."""
    pace = search.memories[0].pace
    return {
        "times": NOTE,
        "rates": "measured" if measured else "as given: not measured here",
        "prefill_tokens_per_second": pace.prefill_tokens_per_second,
        "decode_ms": pace.decode_ms,
        "decode_ms_per_sequence": pace.decode_ms_per_sequence,
        "prices_per_hour": {field.name: getattr(search.prices, field.name) for field in fields(Prices)},
        "router": search.router,
        "model": search.memories[0].shape,
        "traffic": "as in the trace: no growth, no failures, equal workers",
        "checks": [] if measured is None else [[one.predicted, one.measured] for one in measured.checks],
    }


def _tell(tried: Tried) -> None:
    print(f"{_named(tried)}: {tried.error or _outcome(tried)}", file=sys.stderr, flush=True)


def _named(tried: Tried) -> str:
    count = tried.fleet.workers
    return f"{count} worker{'s' * (count > 1)} with {memory_text(tried.fleet.settings)}"


def memory_text(settings: ReplaySettings) -> str:
    """Its tiers in words."""
    sizes = [f"{say_bytes(tier.num_bytes)} {tier.name}" for tier in settings.tiers if tier.num_bytes]
    return ", ".join(sizes)


def _outcome(tried: Tried) -> str:
    if tried.result is None:
        return "too late"
    return f"{tried.result.ttft_ms['objective'] / 1000:.2f} s"


def _show(plan: CapacityPlan, search: Search, measured: MeasuredEngine | None) -> None:
    objective = f"p{plan.objective.percent:g} first token within {plan.objective.seconds:g} s"
    if measured is not None and not measured.is_good:
        worst = max((check.off for check in measured.checks), default=1.0)
        print(
            f"No recommendation: on the engine that was measured the predicted first token was off by {worst:.0%}, "
            f"and more than {MOST_OFF:.0%} is too much. Measure again, with rates of your own load."
        )
    elif plan.chosen is None:
        print(f"No fleet of up to {search.most_workers} workers keeps the {objective}: allow more, or more memory.")
    else:
        result = plan.chosen.result
        assert result is not None
        print(
            f"Cheapest for a {objective}: {_named(plan.chosen)}, {plan.chosen.price:.2f} an hour. "
            f"Predicted: {_outcome(plan.chosen)}, {result.hit_rate:.1%} hit, {result.offered_load:.0%} of its "
            "prefill rate used."
        )
    rows = [
        [
            _named(one),
            f"{one.price:.2f}",
            one.error[:40] or _outcome(one),
            f"{one.result.hit_rate:.1%}" if one.result else "",
        ]
        for one in plan.tried[-SHOWN:]
    ]
    show_table("Tried, cheapest first", ["fleet", "an hour", "first token", "hit rate"], rows, sys.stdout)
    print("Assumed: " + "; ".join(f"{name} {value}" for name, value in assumed(search, measured).items()))


if __name__ == "__main__":
    sys.exit(main())
