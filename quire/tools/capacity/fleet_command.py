"""quire fleet: a trace over several workers behind a router; what a router that knows what is cached is worth."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from quire import InputError, QuireError
from quire.core.records.errors import say
from quire.tools.capacity.fleet import Fleet, FleetResult, play_fleets
from quire.tools.capacity.routers import ROUTERS
from quire.tools.replay.options import add_options, settings_of
from quire.tools.replay.play.sweep import TraceSource
from quire.tools.replay.show.screen import show_table

BLOCK_SIZE = 64  # every worker has tables of its own: small blocks would take much memory
NOTE = "times are modelled from stated rates (--prefill-rate and others), not measured"


def main(argv: list[str] | None = None) -> int:
    """Read, run, show."""
    options = _parser().parse_args(argv)
    try:
        settings, numbers = settings_of(options), _numbers(options.workers)
        source = TraceSource(options.trace, options.limit, options.skip_bad, options.trace_block)
        fleets = [Fleet(count, router, settings) for count in numbers for router in options.router or ROUTERS]
        answers = play_fleets(source, fleets, jobs=options.jobs, tell=_tell)
    except QuireError as wrong:
        print(f"quire fleet: {wrong}", file=sys.stderr)
        return 2
    _show(answers, fleets, options)
    return 2 if all(isinstance(answer, str) for answer in answers) else 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="quire fleet", description=__doc__)
    parser.add_argument("trace", metavar="TRACE", help="JSON lines (docs/replay.md), or 'sample'")
    parser.add_argument("--workers", default="2,4,8", metavar="N[,N]", help="how many, 1 to 1024 (default %(default)s)")
    parser.add_argument("--router", action="append", choices=ROUTERS, help="may be given several times (default: all)")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: the cores)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    add_options(parser)
    parser.set_defaults(block_size=BLOCK_SIZE)
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(say(f"--workers {text!r}", "they are no whole numbers", "write 8 or 2,4,8")) from None


def _tell(answer: FleetResult | str) -> None:
    """One line per finished fleet, for whoever waits."""
    if isinstance(answer, FleetResult):
        print(f"{answer.workers} workers, {answer.router}: {answer.hit_rate:.1%} hit", file=sys.stderr, flush=True)


def _show(answers: Sequence[FleetResult | str], fleets: Sequence[Fleet], options: Namespace) -> None:
    results = [answer for answer in answers if isinstance(answer, FleetResult)]
    for fleet, answer in zip(fleets, answers, strict=True):
        if isinstance(answer, str):
            print(f"quire fleet: {fleet.workers} workers, {fleet.router}: {answer}", file=sys.stderr)
    if options.json:
        settings = fleets[0].settings.to_json()
        print(json.dumps({"trace": options.trace, "note": NOTE, "worker": settings,
                          "fleets": [result.to_json() for result in results]}))  # fmt: skip
        return
    for line in (*answer_lines(results), ""):
        print(line)
    head = ["workers", "router", "hit rate", "first token p50", "p95", "load", "busiest"]
    rows = [
        [
            str(one.workers), one.router, f"{one.hit_rate:.1%}", f"{one.ttft_ms['p50']:.0f} ms",
            f"{one.ttft_ms['p95']:.0f} ms", f"{one.offered_load:.0%}", f"{one.imbalance:.2f}",
        ]
        for one in results
    ]  # fmt: skip
    show_table("Fleets", head, rows, sys.stdout, words=2)
    print(f"{NOTE}; load: prompt tokens to compute, of what the workers can; busiest: its share, of the mean")


def answer_lines(results: Sequence[FleetResult]) -> list[str]:
    """What knowing what is cached is worth, for each number of workers."""
    lines = []
    for count in dict.fromkeys(one.workers for one in results):
        known = {one.router: one for one in results if one.workers == count}
        exact, blind = known.get("exact"), known.get("least_loaded") or known.get("round_robin")
        if exact is None or blind is None:
            continue
        points = (exact.hit_rate - blind.hit_rate) * 100
        late, soon = (one.ttft_ms["p95"] / 1000 for one in (blind, exact))
        lines.append(
            f"{count} workers: a router that knows what is cached hits {points:+.1f} points more than {blind.router}, "
            f"and its p95 first token is {soon:.2f} s instead of {late:.2f} s."
        )
        if max(one.offered_load for one in known.values()) > 1:
            lines.append(
                f"  More comes than {count} workers can compute ({blind.offered_load:.0%} of it with {blind.router}): "
                "waiting times grow with the trace. Add workers, or slow it down (--speed)."
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
