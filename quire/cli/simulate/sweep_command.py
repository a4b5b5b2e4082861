"""quire sweep: one trace replayed with every combination of sizes and policies. Every option of `quire replay` is here;
those named below take several values, with commas between them."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

from quire import QuireError
from quire.cli.arguments import CommandParser
from quire.cli.simulate.replay_options import FIRST, add_options, settings_of, trace_of
from quire.simulate.play.sweep import TraceSource, sweep
from quire.simulate.setup.replay_settings import ReplaySettings
from quire.simulate.show import curves, screen
from quire.simulate.show.number_format import share_text
from quire.simulate.show.page_file import check_page, write_page
from quire.simulate.show.sweep_answer import combination_words

AXES = (
    "--device", "--host", "--eviction", "--eviction-cost", "--admission", "--block-size", "--batch", "--token-budget",
    "--shape", "--offload-min-priority", "--hints", "--speed", "--seed", "--disk", "--disk-read", "--disk-write",
    "--shared",
)  # fmt: skip
USUAL = ["--host", "0,100GB,200GB,400GB", "--eviction", "lru,adaptive"]
SAID = ("--device", "--host", "--device-blocks", "--host-blocks", "--disk", "--shared", "--eviction")
WAYS = ("two-phase", "one-at-a-time")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid and print it."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if len(spread(words)) == 1 and not any(word.partition("=")[0] in SAID for word in words):
        words += USUAL  # no option says what shall vary
    combinations = [parser.parse_args(each) for each in spread(words)]
    options = combinations[0]
    if options.workers is not None and options.workers < 1:
        parser.error("--workers must be at least 1")
    try:
        check_page(options.html)
        source = TraceSource(options.trace, options.limit, options.skip_bad, options.trace_block)
        trace_of(options, options.trace)
        return _run(options, source, _each_once([_settings(each) for each in combinations]))
    except QuireError as error:
        print(f"quire sweep: {error}", file=sys.stderr)
        return 2


def spread(words: Sequence[str]) -> list[list[str]]:
    """One command line per combination of the axes' values."""
    choices: list[list[str]] = []
    axis = False
    for word in words:
        name, equals, value = word.partition("=")
        if axis:
            choices.append(word.split(","))
        elif equals and name in AXES:
            choices.append([f"{name}={part}" for part in value.split(",")])
        else:
            choices.append([word])
        axis = not axis and word in AXES
    return [list(each) for each in product(*choices)]


def _parser() -> ArgumentParser:
    parser = CommandParser(
        prog="quire sweep",
        first=("--workers", *FIRST),
        allow_abbrev=False,
        description="Replay one trace with every combination of sizes and policies, beside the offline optimum.",
        epilog=f"Several values, with commas between them: {', '.join(AXES)}. Without any: "
        f"{' '.join(USUAL)}. Example: "
        "quire sweep sample --device 8GB,16GB,32GB --host 0,64GB --eviction lru,adaptive",
    )
    parser.add_argument(
        "trace", metavar="TRACE", help="JSON lines, plain, gzip or zstd (docs/replay.md), 'sample' or 'sample-agents'"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: the number of cores)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with the curves")
    parser.add_argument("--admission", choices=WAYS, help="two phases or the baseline (or --two-phase, --one-phase)")
    add_options(parser)
    return parser


def _settings(options: Namespace) -> ReplaySettings:
    settings = settings_of(options)
    return settings if options.admission is None else replace(settings, two_phase=options.admission == WAYS[0])


def _each_once(asked: list[ReplaySettings]) -> list[ReplaySettings]:
    """With the order that "auto" means for each, by its name; what is the same then runs once, and that is said."""
    grid = list(dict.fromkeys(replace(one, eviction=one.order) for one in asked))
    if same := len(asked) - len(grid):
        which = sorted({f"{one.order!r} for {one.shape}" for one in asked if one.eviction == "auto" != one.order})
        why = f" ('auto' is {', '.join(which)})" if which else ""
        print(
            f"quire sweep: {same} of {len(asked)} combinations are others again{why}: each runs once", file=sys.stderr
        )
    return grid


class CombinationLines:
    """A line for every combination that is done, for a log."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total

    def __call__(self, settings: ReplaySettings, answer: dict[str, Any] | str) -> None:
        """One is done."""
        self._done += 1
        what = answer if isinstance(answer, str) else f"hit rate {share_text(answer['hit_rate_of_trace'])}"
        words = combination_words(settings, ("eviction", "block_size"))
        print(f"quire sweep: {self._done} of {self._total}: {words}: {what}", file=sys.stderr, flush=True)


def _run(options: Namespace, source: TraceSource, settings: list[ReplaySettings]) -> int:
    lines = CombinationLines(len(settings)) if not sys.stderr.isatty() else None
    with nullcontext(None) if options.json else screen.progress("sweeping", len(settings)) as tell:
        found = sweep(source, settings, workers=options.workers, tell=tell, on_result=lines)
    wrote = bool(options.html) and write_page(options.html, curves.render(found), "quire sweep")
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        curves.show(found, sys.stdout)
    if wrote and not options.json:
        print(f"page: {options.html}")
    failed = all(point.error for point in found.points) or (options.html and not wrote)
    return 2 if failed else 0
