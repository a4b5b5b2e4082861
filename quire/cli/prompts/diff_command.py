"""quire diff: requests before and after a change of template, tools or client: what stops being shared. For CI."""

from __future__ import annotations

import json
import sys

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser
from quire.cli.prompts.prompt_source import Source, add_source_options, named_place, open_source
from quire.core.records.errors import say
from quire.insight.prompt_changes.prompt_diff import PromptDiff, PromptReuse, diff_prompts, reuse_of
from quire.simulate.show.number_format import count_text, share_text

FIRST = ("--tokenizer", "--new-tokenizer", "--data", "--allow", "--json")
SHOWN = 5  # losses


def main(argv: list[str] | None = None) -> int:
    """Read both, compare, print. Exit status 1: more tokens are lost than allowed."""
    options = _parser().parse_args(argv)
    try:
        old = open_source(options.old, options, options.tokenizer)
        new = open_source(options.new, options, options.new_tokenizer or options.tokenizer)
        before, after = (reuse_of(source.prompts(), options.block_size) for source in (old, new))
        _check(old, new, before, after)
        found = diff_prompts(before, after, old.has_times)
        lines = [json.dumps(found.to_json())] if options.json else _lines(found, new, after)
    except (QuireError, OSError) as wrong:
        print(f"quire diff: {wrong}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 1 if found.lost / found.requests > options.allow else 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="quire diff", description=__doc__, first=FIRST)
    parser.add_argument("old", metavar="OLD", help="requests as they were sent, as for `quire findings`; or a template")
    parser.add_argument("new", metavar="NEW", help="the same requests, in the same order, as they would be sent now")
    parser.add_argument("--new-tokenizer", metavar="FOLDER", help="that of NEW, for another chat template")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens per block of the cache (16)")
    add_source_options(parser)
    return parser


def _check(old: Source, new: Source, before: list[PromptReuse], after: list[PromptReuse]) -> None:
    if not before or len(before) != len(after):
        fact = f"{old.path!r} has {len(before):,} requests and {new.path!r} {len(after):,}"
        raise InputError(say("a comparison", fact, "give the same requests in the same order, at least one"))


def _lines(found: PromptDiff, source: Source, after: list[PromptReuse]) -> list[str]:
    lines = [
        f"{count_text(found.requests)} requests, {count_text(found.changed)} of them written in another way: reuse "
        f"{share_text(found.old_rate)} -> {share_text(found.new_rate)}."
    ]
    for loss in found.losses[:SHOWN]:
        prompt = after[loss.requests[0]].prompt
        where = named_place(source, prompt.line, prompt.place, loss.token)
        named = f" ({where})" if where else ""
        named += "" if loss.application is None else f" of {loss.application}"
        each = count_text(round(loss.tokens / len(loss.requests)))
        lines.append(
            f"- sharing ends at token {loss.token:,}{named} in {count_text(len(loss.requests))} requests: {each} "
            f"tokens per request are lost. See line {prompt.line} of the new log."
        )
    if len(found.losses) > SHOWN:
        rest = sum(loss.tokens for loss in found.losses[SHOWN:])
        lines.append(f"- at {len(found.losses) - SHOWN:,} more places: {count_text(rest)} tokens in all.")
    if found.lost and found.lost_per_day is not None:
        lines.append(f"At the recorded rate {count_text(round(found.lost_per_day))} tokens a day are computed again.")
    if found.gained:
        lines.append(f"{count_text(found.gained)} tokens are reused now that were not.")
    if not found.lost:
        lines.append("No request reuses less than before.")
    return lines
