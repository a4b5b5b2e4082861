"""quire lint: recorded requests, or a template with example data: what keeps a few prompts from sharing. For CI."""

from __future__ import annotations

import json
import sys

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser
from quire.cli.prompts.prompt_source import Source, add_source_options, named_place, open_source, show_skipped
from quire.core.records.errors import say
from quire.insight.prompt_changes.prompt_lint import LintFault, PromptLint, lint_prompts
from quire.simulate.show.number_format import count_text, share_text

FIRST = ("--tokenizer", "--data", "--allow", "--json")


def main(argv: list[str] | None = None) -> int:
    """Read, look, print. Exit status 1: more tokens are lost than allowed."""
    options = _parser().parse_args(argv)
    try:
        source = open_source(options.prompts, options, options.tokenizer)
        found = _lint(source)
    except (QuireError, OSError) as wrong:
        print(f"quire lint: {wrong}", file=sys.stderr)
        return 2
    show_skipped(source)
    print(json.dumps(found.to_json()) if options.json else "\n".join(_lines(found)))
    return 1 if found.per_request > options.allow else 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="quire lint", description=__doc__, first=FIRST)
    parser.add_argument("prompts", metavar="PROMPTS", help="requests as for `quire findings`, or a template (--data)")
    add_source_options(parser)
    return parser


def _lint(source: Source) -> PromptLint:
    prompts = list(source.prompts())
    if len(prompts) < 2:
        fact = "there is none" if not prompts else "there is one, and nothing to compare it with"
        raise InputError(say(f"prompts {source.path!r}", fact, "give at least two"))
    prompts.sort(key=lambda one: one.time)
    return lint_prompts(
        prompts, source.has_times,
        lambda number, token: named_place(source, prompts[number].line, prompts[number].place, token),
    )  # fmt: skip


def _lines(found: PromptLint) -> list[str]:
    head = f"{count_text(found.prompts)} prompts, {count_text(found.tokens)} tokens"
    lines = [f"{head}: {share_text(found.shared)} of them begin as an earlier prompt does."]
    if not found.faults:
        lines.append("Nothing keeps these prompts from sharing more.")
    for number, fault in enumerate(found.faults, 1):
        lines += ["", *_told(number, fault)]
    return lines


def _told(number: int, fault: LintFault) -> list[str]:
    one = fault.finding
    where = f" Where: {one.message}." if one.message is not None else ""
    day = "" if fault.per_day is None else f", {count_text(round(fault.per_day))} a day at this rate"
    change = f"{share_text(one.before)} -> {share_text(one.after)}"
    return [
        f"{number}. {one.text}{where}",
        f"   {count_text(round(fault.per_request))} tokens per request are lost{day}: reuse {change} without it.",
        f"   {one.advice} See lines {', '.join(map(str, one.examples))}.",
    ]
