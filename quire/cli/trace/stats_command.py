"""quire trace stats: arrivals, lengths, sharing, turns, the reuse that is possible and the memory it takes."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from quire import InputError
from quire.cli.trace.progress import progress
from quire.cli.trace.trace_remarks import remarks
from quire.core.records.errors import say
from quire.simulate.show.number_format import count_text, percent_text, share_text, time_text
from quire.simulate.show.screen import show_table
from quire.trace.read.lines import MOONCAKE_BLOCK
from quire.trace.read.trace import SAMPLES
from quire.trace.stats.trace_stats import SHARES, read_stats

Numbers = dict[str, Any]
Rows = list[tuple[str, str]]


def add_options(parser: ArgumentParser) -> None:
    """What `stats` takes."""
    parser.set_defaults(act=run)
    parser.add_argument(
        "trace", metavar="FILE", help="a trace, plain, gzip or zstd; '-': standard input; or 'sample', 'sample-agents'"
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used and go on")
    parser.add_argument(
        "--trace-block", type=int, metavar="N", help=f"tokens per hash id (default: as it says, or {MOONCAKE_BLOCK})"
    )


def run(options: Namespace) -> int:
    """Read it, and print."""
    for name in ("limit", "trace_block"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise InputError(say(f"--{name.replace('_', '-')} {number}", "nothing is left", "give at least 1"))
    with progress([] if options.trace in SAMPLES else [options.trace]) as passed:
        stats = read_stats(
            options.trace, skip_bad=options.skip_bad, unit=options.trace_block, limit=options.limit, passed=passed
        )
    for wrong in stats.errors:
        print(f"skipped: {wrong}", file=sys.stderr)
    numbers = stats.to_json()
    if options.limit is not None and numbers["whole"] is False:
        numbers["whole"] = None  # its end was not read
    found = remarks(numbers)
    if options.json:
        print(json.dumps({**numbers, "remarks": [one.to_json() for one in found]}))
        return 0
    print(headline(numbers))
    show_table("Requests", ["", ""], _requests(numbers), sys.stdout)
    if numbers["sharing_known"]:
        show_table("Sharing", ["", ""], _sharing(numbers), sys.stdout)
    if numbers["sharing_known"] and numbers["reuse"]["ceiling"] > 0:
        show_table("Of what can be reused", ["", ""], _ages(numbers["reuse"]), sys.stdout)
    print()
    for one in found:
        print(f"- {one.text}")
    if numbers["sharing_known"]:
        print("- What keeps prompts from sharing more: `quire findings`, of the log that the trace was made of.")
    return 0


def headline(numbers: Numbers) -> str:
    """The answer, in a sentence."""
    arrivals, reuse = numbers["arrivals"], numbers["reuse"]
    who = f"{count_text(arrivals['requests'])} requests in {time_text(arrivals['seconds'])}"
    if not numbers["sharing_known"]:
        return f"{who}; lengths only: how much could be reused cannot be known."
    about = "about " if reuse["sampled_one_block_in"] > 1 else ""
    return f"{who}: at most {about}{share_text(reuse['ceiling'])} of the prompt tokens need not be computed."


def _requests(numbers: Numbers) -> Rows:
    arrivals = numbers["arrivals"]
    rows = [("requests", count_text(arrivals["requests"])), ("time", time_text(arrivals["seconds"]))]
    if "per_second" in arrivals:
        rows.append(("requests per second", f"{arrivals['per_second']:.3g}"))
        peaks = ", ".join(
            f"{rate:.3g} ({name.replace('_', ' ')})" for name, rate in arrivals["most_per_second"].items()
        )
        rows.append(("  in the fullest second, 10 s, minute", peaks))
        rows.append(("burstiness (1: Poisson)", f"{arrivals['burstiness']:.3g}"))
    if arrivals.get("out_of_order"):
        rows.append(("lines behind later ones", count_text(arrivals["out_of_order"])))
    for name, label in (("input_tokens", "prompt tokens"), ("output_tokens", "output tokens")):
        rows.append((label, _spread(numbers[name], count_text)))
    if numbers["skipped_lines"]:
        rows.append(("lines skipped", count_text(numbers["skipped_lines"])))
    return rows


def _sharing(numbers: Numbers) -> Rows:
    sharing, reuse, turns = numbers["sharing"], numbers["reuse"], numbers["turns"]
    rows = [("reuse ceiling, prompt tokens", share_text(reuse["ceiling"], 2))]
    if reuse["sampled_one_block_in"] > 1:
        rows.append(("  from a sample: one block in", count_text(reuse["sampled_one_block_in"])))
    rows.append(("requests that share a beginning with an earlier one", share_text(sharing["requests_that_share"])))
    for share in SHARES:
        name = f"{share:.0%}"
        rows.append((f"  at least {name} of their prompt", share_text(sharing[f"requests_that_share_{name}"])))
    rows.append(("prompts seen before as a whole", share_text(sharing["repeated_prompts"])))
    rows.append(("shared tokens of a request", _spread(sharing["shared_tokens"], count_text)))
    first = f"{count_text(sharing['different_first_blocks'])}; the most common: "
    rows.append(("different first blocks", first + share_text(sharing["most_common_first_block"])))
    if interrupted := numbers["interrupted"]:
        fact = f"at least {share_text(interrupted['share'])} of the prompt tokens"
        rows.append(("interrupted: here before, behind other text", fact))
    if sharing["shorter_than_a_block"]:
        rows.append(("prompts shorter than a block", share_text(sharing["shorter_than_a_block"])))
    if sharing["scopes"] > 1:
        rows.append(("scopes", count_text(sharing["scopes"])))
    rows.append(("requests that continue an earlier prompt", count_text(turns["requests"])))
    if turns["requests"]:
        rows.append(("  time between turns", _spread(turns["seconds_between"], time_text)))
    return rows


def _spread(values: Numbers, say_number: Any) -> str:
    if not values["count"]:
        return "none"
    return ", ".join(f"{name} {say_number(values[name])}" for name in ("p50", "p90", "p99", "most"))


def _ages(reuse: Numbers) -> Rows:
    """Edges from the first that has some of it to the first that has all; of those with equal shares the first."""
    rows: Rows = []
    for name, what, say_number in (
        ("share_within_seconds", "last used at most {} before", time_text),
        ("share_within_tokens", "kept by an LRU cache of {} tokens", count_text),
    ):
        shares = [(float(edge), share) for edge, share in reuse[name].items() if edge != "more"]
        wanted = [(edge, share) for edge, share in shares if 0.01 <= share < 0.995]
        wanted += [(edge, share) for edge, share in shares if share >= 0.995][:1]
        lines = {percent_text(round(share, 2)): what.format(say_number(edge)) for edge, share in reversed(wanted)}
        rows += [(line, share) for share, line in reversed(lines.items())]
    return rows
