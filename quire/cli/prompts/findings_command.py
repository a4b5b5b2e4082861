"""quire findings: what keeps the prompts of a log from sharing more: whose, where, what to do, what it brings."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser
from quire.cli.prompts.findings_page import NONE, facts, render
from quire.cli.prompts.log_options import add_log_options, log_options
from quire.cli.trace.progress import progress
from quire.core.records.errors import say
from quire.insight.findings.find import MEMORY_TOKENS, FindOptions, LogFindings, find_findings
from quire.insight.findings.prompt_rows.prompt_log import LogReader, PromptLog
from quire.simulate.show.number_format import count_text, share_text
from quire.simulate.show.page_file import check_page, write_page
from quire.trace.prompts.logged_prompts import LogFile, tokens_of
from quire.trace.prompts.message_places import message_at
from quire.trace.read.streams import STDIN
from quire.trace.units import Int32

FIRST = ("--tokenizer", "--memory", "--block-size", "--json")


def main(argv: list[str] | None = None) -> int:
    """Read, find, print."""
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
    return 2 if options.html and not wrote else 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="quire findings", description=__doc__, first=FIRST)
    parser.add_argument("log", metavar="LOG", help="requests with their prompts, as for `quire trace make`; a file")
    parser.add_argument("--memory", type=int, default=MEMORY_TOKENS, metavar="TOKENS",
                        help=f"what all tiers of the cache hold ({MEMORY_TOKENS:,})")  # fmt: skip
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block of the cache (16)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page")
    add_log_options(parser)
    return parser


def find_in(file: LogFile, options: FindOptions) -> LogFindings:
    """Read a log once, then a few of its lines again."""
    if not file.again:
        fact = "it can be read once, and some prompts are looked at again, token by token"
        raise InputError(say("standard input" if file.path == STDIN else f"log {file.path!r}", fact, "name a file"))
    reader = LogReader()
    with progress([file.path]) as passed:
        for prompt in file.prompts(passed=passed):
            reader.add(prompt)
    if not len(reader):
        raise InputError(say(f"log {file.path!r}", "it has no requests", "see docs/trace.md for the forms"))
    log = reader.finish()
    return find_findings(
        log, options, lambda numbers: tokens_again(file, log, numbers),
        lambda number, token: message_at(file, *_key(log, number), token),
    )  # fmt: skip


def tokens_again(file: LogFile, log: PromptLog, numbers: Sequence[int]) -> dict[int, Int32]:
    """Of some requests; raises InputError if their lines are others than those that were read."""
    found = tokens_of(file, {_key(log, number): number for number in numbers})
    for number in numbers:
        if len(found.get(number, ())) != log.lengths[number]:
            fact = f"its line {_key(log, number)[0]} is another than before: it was written while it was read"
            raise InputError(say(f"log {file.path!r}", fact, "give a copy of it"))
    return found


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
