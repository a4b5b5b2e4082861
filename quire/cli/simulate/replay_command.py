"""quire replay: a recorded workload through the cache on a virtual clock; hits, promises, moves and modelled times."""

from __future__ import annotations

import gc
import json
import sys
import warnings
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from quire import ConfigWarning, InputError, QuireError
from quire.cli.arguments import CommandParser
from quire.cli.simulate.replay_options import FIRST, add_options, settings_of, trace_of
from quire.core.records.errors import say
from quire.simulate.play.trace_player import play
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show import screen
from quire.simulate.show.page_file import check_page, write_page
from quire.trace.read.trace import Trace
from quire.trace.units import shown


def main(argv: list[str] | None = None) -> int:
    """Read, replay, show."""
    options = _parser().parse_args(argv)
    try:
        settings = replace(settings_of(options), receipts=not options.no_causes)
        check_page(options.html)
        trace = trace_of(options, options.trace)
        if options.explain is not None:
            options.explain = find_request(trace, options.explain)
        gc.freeze()  # the trace stays: collections need not look at it
        results = {name: _played(trace, way, options) for name, way in _ways(settings, options.compare).items()}
    except QuireError as wrong:
        print(f"quire replay: {wrong}", file=sys.stderr)
        return 2
    finally:
        gc.unfreeze()
    for bad in trace.skipped[:10]:
        print(f"skipped: {bad}", file=sys.stderr)
    return _show(results, options)


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire replay", description=__doc__, first=("--explain", "--compare", *FIRST))
    parser.add_argument(
        "trace",
        metavar="TRACE",
        help="JSON lines, plain, gzip or zstd (docs/replay.md), 'sample' or 'sample-agents'; '-': standard input",
    )
    parser.add_argument("--compare", action="store_true", help="run both ways of admission, side by side")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")
    parser.add_argument("--explain", metavar="ID", help="print why one request missed: its id, or its line")
    parser.add_argument("--no-causes", action="store_true", help="leave out why tokens were missed: a fifth faster")
    add_options(parser)
    return parser


def find_request(trace: Trace, name: str) -> int:
    """The number of the request with that id, or in that line of the file."""
    for request in trace:
        if request.id == name:
            return request.number
    for request in trace:
        if str(request.line) == name:
            return request.number
    fact = f"no request of {trace.name} has that id, and none stands in that line"
    raise InputError(say(f"--explain {shown(name)}", fact, "give an id, or the number of a line with a request"))


def _ways(settings: ReplaySettings, both: bool) -> dict[str, ReplaySettings]:
    if not both:
        return {"result": settings}
    return {"two_phase": replace(settings, two_phase=True), "one_at_a_time": replace(settings, two_phase=False)}


def _played(trace: Trace, settings: ReplaySettings, options: Namespace) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        with nullcontext(None) if options.json else screen.progress(settings.admission, len(trace)) as tell:
            result = play(trace, settings, tell, explain=options.explain).to_json()
    for reason in caught:
        print(f"quire replay: note: {reason.message}", file=sys.stderr)
    return result


def comparison(two_phase: dict[str, Any], one_at_a_time: dict[str, Any]) -> dict[str, Any]:
    """Both results and what the second phase gains."""
    gained = two_phase["tokens_saved"] - one_at_a_time["tokens_saved"]
    return {"two_phase": two_phase, "one_at_a_time": one_at_a_time, "reuse_gained_tokens": gained}


def _show(results: dict[str, dict[str, Any]], options: Namespace) -> int:
    """Print and write; the exit status."""
    first, second = (*results.values(), None)[:2]
    assert first is not None
    wrote = False
    if options.html:
        from quire.simulate.show import page  # a second of imports that few need

        wrote = write_page(options.html, page.render(first, second), "quire replay")
    if options.json:
        print(json.dumps(first if second is None else comparison(first, second)))
    elif second is None:
        screen.show(first)
    else:
        screen.show_comparison(first, second)
    if wrote and not options.json:
        print(f"page: {options.html}")
    return 2 if options.html and not wrote else 0
