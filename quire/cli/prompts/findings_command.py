"""quire findings: what keeps the prompts of a log from sharing more: whose, where, what to do, what it brings."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser
from quire.cli.prompts.findings_page import NONE, facts, render
from quire.cli.trace.make_command import rate_of
from quire.cli.trace.progress import progress
from quire.core.records.errors import say
from quire.insight.findings.find import MEMORY_TOKENS, FindOptions, LogFindings, find_findings
from quire.insight.findings.prompt_log import LogReader, PromptLog
from quire.simulate.show.number_format import count_text, share_text
from quire.simulate.show.page_file import check_page, write_page
from quire.trace.prompts.arrival_times import UNITS
from quire.trace.prompts.logged_prompts import LogFile, LogOptions, tokens_of
from quire.trace.prompts.message_places import message_at
from quire.trace.units import Int32

FIRST = ("--tokenizer", "--memory", "--block-size", "--json")


def main(argv: list[str] | None = None) -> int:
    """Read, find, print. Exit status 1: there are findings, with --fail."""
    options = _parser().parse_args(argv)
    try:
        check_page(options.html)
        file = LogFile(options.log, log_options(options))
        found = find_in(file, FindOptions(options.memory, options.block_size))
    except (QuireError, OSError) as wrong:
        print(f"quire findings: {wrong}", file=sys.stderr)
        return 2
    for bad in file.skipped:
        print(f"skipped: {bad}", file=sys.stderr)
    wrote = bool(options.html) and write_page(options.html, render(Path(file.path).name, found), "quire findings")
    if options.json:
        print(json.dumps(report(found)))
    else:
        show(found)
    if wrote and not options.json:
        print(f"\npage: {options.html}")
    if options.html and not wrote:
        return 2
    return 1 if options.fail and found.findings else 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="quire findings", description=__doc__, first=FIRST)
    parser.add_argument("log", metavar="LOG", help="requests with their prompts, as for `quire trace make`; a file")
    parser.add_argument("--memory", type=int, default=MEMORY_TOKENS, metavar="TOKENS",
                        help=f"what all tiers of the cache hold ({MEMORY_TOKENS:,})")  # fmt: skip
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block of the cache (16)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page")
    parser.add_argument("--fail", action="store_true", help="exit with status 1 if there is a finding")
    add_log_options(parser)
    return parser


def add_log_options(parser: CommandParser) -> None:
    """How a log is read, as `quire trace make` reads it."""
    parser.add_argument("--tokenizer", metavar="FOLDER", help="that of the model, for logs of text")
    parser.add_argument("--name-field", metavar="NAME", help="the application or tenant (default: app, tenant, ...)")
    parser.add_argument("--scope-field", action="append", default=[], metavar="NAME",
                        help="requests share only where it is equal, besides model and cache_salt")  # fmt: skip
    parser.add_argument("--time-field", metavar="NAME", help="of arrivals, such as created_at or meta.received")
    parser.add_argument("--time-unit", choices=UNITS, help="of times that are no times since the epoch")
    parser.add_argument("--rate", type=rate_of, metavar="N[/s|/min|/h]", help="for logs without times")
    parser.add_argument("--drop-tools", action="store_true", help="leave out tools that the template does not print")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    parser.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used and go on")


def log_options(options: Namespace) -> LogOptions:
    """The same from the command line."""
    for name in ("limit", "memory", "block_size"):
        number = getattr(options, name, None)
        if number is not None and number < 1:
            raise InputError(say(f"--{name.replace('_', '-')} {number}", "nothing is left", "give at least 1"))
    return LogOptions(
        options.tokenizer, options.time_field, options.time_unit, options.rate, tuple(options.scope_field),
        options.name_field, options.skip_bad, options.limit, options.drop_tools,
    )  # fmt: skip


def find_in(file: LogFile, options: FindOptions) -> LogFindings:
    """Read a log once, then a few of its lines again."""
    if not file.again:
        fact = "it can be read once, and some prompts are looked at again, token by token"
        raise InputError(say("standard input", fact, "name a file"))
    reader = LogReader()
    with progress([file.path]) as passed:
        for prompt in file.prompts(passed=passed):
            reader.add(prompt)
    if not len(reader):
        raise InputError(say(f"log {file.path!r}", "it has no requests", "see docs/trace.md for the forms"))
    log = reader.finish()

    def fetch(numbers: Any) -> dict[int, Int32]:
        return tokens_of(file, {_key(log, number): number for number in numbers})

    return find_findings(log, options, fetch, lambda number, token: message_at(file, *_key(log, number), token))


def _key(log: PromptLog, number: int) -> tuple[int, int]:
    line, place = log.lines[number].tolist()
    return line, place


def report(found: LogFindings) -> dict[str, Any]:
    """For machines."""
    return {
        "requests": found.requests, "prompt_tokens": found.prompt_tokens, "reuse_ceiling": round(found.ceiling, 4),
        "findings": [one.to_json() for one in found.findings],
    }  # fmt: skip


def show(found: LogFindings) -> None:
    """For people."""
    head = f"{count_text(found.requests)} requests, {count_text(found.prompt_tokens)} prompt tokens"
    print(f"{head}: a cache that forgets nothing would reuse {share_text(found.ceiling)} of them.")
    if not found.findings:
        print(NONE)
    for number, one in enumerate(found.findings, 1):
        print(f"\n{number}. {one.text}")
        for name, words in facts(one):
            print(f"   {name}: {words}")
