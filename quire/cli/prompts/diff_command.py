"""quire diff: requests before and after a change of template, tools or client: what stops being shared. For CI."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from quire import InputError, QuireError
from quire.cli.arguments import CommandParser
from quire.cli.prompts.prompt_source import Source, add_source_options, named_place, open_source, show_skipped
from quire.core.records.errors import say
from quire.insight.prompt_changes.prompt_diff import MOST_REASONS, PromptDiff, PromptReuse, diff_prompts, reuse_of
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
        found = _named(diff_prompts(before, after, options.block_size, old.has_times), (old, new), (before, after))
    except (QuireError, OSError) as wrong:
        print(f"quire diff: {wrong}", file=sys.stderr)
        return 2
    for source in (old, new):
        show_skipped(source)
    print(
        json.dumps(found.to_json())
        if options.json
        else "\n".join(_lines(found, "the new log" if options.data is None else options.data))
    )
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
    skipped = [[wrong.line for wrong in source.skipped] for source in (old, new)]
    if skipped[0] != skipped[1] or old.num_skipped != new.num_skipped:
        fact = "other lines of OLD than of NEW cannot be used, so requests stand beside others"
        raise InputError(say("a comparison with --skip-bad", fact, "remove those lines from both"))


def _named(
    found: PromptDiff, sources: tuple[Source, Source], prompts: tuple[list[PromptReuse], list[PromptReuse]]
) -> PromptDiff:
    """With the messages of the examples that are reported."""
    losses = []
    for loss in found.losses[:MOST_REASONS]:
        one = loss.example
        first = loss.requests[0]
        old, new = (
            named_place(source, reuses[first].prompt.line, reuses[first].prompt.place, token)
            for source, reuses, token in zip(sources, prompts, (one.old_token, one.token), strict=True)
        )
        losses.append(replace(loss, example=replace(one, message=new, old_message=old)))
    return replace(found, losses=(*losses, *found.losses[MOST_REASONS:]))


def _lines(found: PromptDiff, log: str) -> list[str]:
    lines = [
        f"{count_text(found.requests)} requests, {count_text(found.changed)} of them written in another way: reuse "
        f"{share_text(found.old_rate)} -> {share_text(found.new_rate)}."
    ]
    for loss in found.losses[:SHOWN]:
        one = loss.example
        where, before = (f" ({place})" if place else "" for place in (one.message, one.old_message))
        up_to = f" to {loss.last_token:,}" if loss.last_token > loss.token else ""
        whose = "" if loss.application is None else f" of {loss.application}"
        each = count_text(round(loss.tokens / len(loss.requests)))
        lines.append(
            f"- sharing ends at token {loss.token:,}{up_to}{where} in {count_text(len(loss.requests))} requests"
            f"{whose}: {each} tokens per request are lost. See line {one.line} of {log}: it shared up to token "
            f"{one.old_token:,}{before}."
        )
    if len(found.losses) > SHOWN:
        rest = sum(loss.tokens for loss in found.losses[SHOWN:])
        lines.append(f"- at {len(found.losses) - SHOWN:,} more places: {count_text(rest)} tokens in all.")
    if found.lost and found.lost_per_day is not None:
        lines.append(f"At this rate {count_text(round(found.lost_per_day))} tokens a day are computed again.")
    if found.gained:
        lines.append(f"{count_text(found.gained)} tokens are reused now that were not.")
    if not found.lost:
        lines.append("No request reuses less than before.")
    return lines
