"""quire fleet: a trace over several workers behind a router; what cache-aware routing gains."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser, finite
from quire.cli.simulate.replay_options import FIRST, add_options, settings_of
from quire.core.records.errors import say
from quire.simulate.capacity.deadline_worker import FleetDeadlines
from quire.simulate.capacity.fleet import Fleet, FleetResult, load_trace, play_fleets
from quire.simulate.capacity.fleet_page import (
    DEADLINE_HEAD,
    HEAD,
    LEGEND,
    NOTE,
    answer_lines,
    apart_lines,
    deadline_rows,
    render,
    rows,
    warning_lines,
)
from quire.simulate.capacity.routers import ROUTERS
from quire.simulate.play.sweep import TraceSource
from quire.simulate.show.page_file import check_page, write_page
from quire.simulate.show.screen import show_table
from quire.simulate.show.story import UNSHARED

KNOWN = (*ROUTERS, "deadline")
BLOCK_SIZE = 64  # every worker has tables of its own: small blocks would take much memory


def main(argv: list[str] | None = None) -> int:
    """Read, run, show."""
    options = _parser().parse_args(argv)
    try:
        check_page(options.html)
        settings, numbers = settings_of(options), _numbers(options.workers)
        source = TraceSource(options.trace, options.limit, options.skip_bad, options.trace_block)
        wanted = _deadlines(options)
        routers = options.router or (ROUTERS if wanted is None else (*ROUTERS, "deadline"))
        fleets = [Fleet(count, router, settings, wanted) for count in numbers for router in routers]
        answers = play_fleets(source, fleets, jobs=options.jobs, tell=_tell)
    except QuireError as error:
        print(f"quire fleet: {error}", file=sys.stderr)
        return 2
    results = [answer for answer in answers if isinstance(answer, FleetResult)]
    warnings = [*([UNSHARED] if load_trace(source).lengths_only else []), *apart_lines(settings)]
    _show(answers, fleets, options, warnings)
    wrote = not (options.html and results) or write_page(
        options.html, render(Path(options.trace).name, results, settings, warnings), "quire fleet"
    )
    if options.html and results and wrote and not options.json:
        print(f"page: {options.html}")
    return 0 if results and wrote else 2


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire fleet", description=__doc__, first=("--workers", "--router", *FIRST))
    parser.add_argument("trace", metavar="TRACE", help="JSON lines (docs/replay.md), 'sample' or 'sample-agents'")
    parser.add_argument("--workers", default="2,4,8", metavar="N[,N]", help="how many, 1 to 1024 (default %(default)s)")
    parser.add_argument("--router", action="append", choices=KNOWN, help="may be given several times (default: all)")
    parser.add_argument("--ttft-ms", metavar="N[,N]", help="when first tokens are wanted, of requests in turn")
    parser.add_argument("--deadlines", type=finite, default=0.95, metavar="Q", help="bounds kept (default %(default)s)")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: the cores)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with the plot")
    add_options(parser)
    parser.set_defaults(block_size=BLOCK_SIZE)
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(say(f"--workers {text!r}", "they are not whole numbers", "write 8 or 2,4,8")) from None


def _deadlines(options: Namespace) -> FleetDeadlines | None:
    if options.ttft_ms is None:
        return None
    try:
        return FleetDeadlines(tuple(float(part) / 1000 for part in options.ttft_ms.split(",")), options.deadlines)
    except ValueError:
        raise InputError(say(f"--ttft-ms {options.ttft_ms!r}", "they are not numbers", "write 500,5000")) from None


def _tell(answer: FleetResult | str) -> None:
    """One line per finished fleet, as progress."""
    if isinstance(answer, FleetResult):
        print(f"{answer.workers} workers, {answer.router}: {answer.hit_rate:.1%} hit", file=sys.stderr, flush=True)


def _show(
    answers: Sequence[FleetResult | str], fleets: Sequence[Fleet], options: Namespace, warnings: list[str]
) -> None:
    results = [answer for answer in answers if isinstance(answer, FleetResult)]
    for fleet, answer in zip(fleets, answers, strict=True):
        if isinstance(answer, str):
            print(f"quire fleet: {fleet.workers} workers, {fleet.router}: {answer}", file=sys.stderr)
    if options.json:
        settings = fleets[0].settings.to_json()
        print(json.dumps({"trace": options.trace, "note": NOTE, "warnings": warnings, "worker": settings,
                          "fleets": [result.to_json() for result in results]}))  # fmt: skip
        return
    for line in (*warnings, *answer_lines(results), *warning_lines(results), ""):
        print(line)
    show_table("Fleets", HEAD, rows(results), sys.stdout, words=2)
    if in_time := deadline_rows(results):
        show_table("First tokens in time", DEADLINE_HEAD, in_time, sys.stdout, words=2)
    print(f"{NOTE}; {LEGEND}")


if __name__ == "__main__":
    sys.exit(main())
