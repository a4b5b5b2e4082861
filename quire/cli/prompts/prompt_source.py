"""prompt_source: what `quire lint` and `quire diff` read: recorded requests, or a template with example data."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace

from quire import InputError
from quire.cli.arguments import CommandParser, not_negative
from quire.cli.prompts.log_options import add_log_options, log_options
from quire.core.records.errors import say
from quire.trace.prompts.logged_prompts import LogFile
from quire.trace.prompts.message_places import message_at
from quire.trace.prompts.template_prompts import ENDINGS, TemplateFile

Source = LogFile | TemplateFile
LOGS = (".jsonl", ".json", ".gz", ".zst")
NO_LOG = {
    "time_field": "leave it out; --rate says how often requests come",
    "time_unit": "leave it out; --rate says how often requests come",
    "scope_field": "leave it out: all examples are of one scope; requests with scopes are those of a log",
    "drop_tools": "leave it out: the template decides what it prints",
}


def add_source_options(parser: CommandParser) -> None:
    """How prompts are read."""
    parser.add_argument("--data", metavar="FILE",
                        help="the prompts are a Jinja template's: example data for it, an object per line")  # fmt: skip
    parser.add_argument("--allow", type=not_negative, default=0.0, metavar="TOKENS",
                        help="tokens per request that may be lost with exit status 0 (0)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    add_log_options(parser)


def open_source(path: str, options: Namespace, tokenizer: str | None) -> Source:
    """A log, or a template if there is data for one."""
    settings = replace(log_options(options), tokenizer=tokenizer, times_needed=False)
    if options.data is not None:
        if path.endswith(LOGS):
            cure = "leave out --data for a log, or name a template"
            raise InputError(say(f"template {path!r}", "its name is that of a log", cure))
        _check_template_options(options)
        return TemplateFile(path, options.data, settings)
    if path.endswith(ENDINGS):
        raise InputError(say(f"template {path!r}", "there is no data to fill it with", "pass --data FILE"))
    return LogFile(path, settings)


def _check_template_options(options: Namespace) -> None:
    """Those that say how a log is read, and mean nothing for examples."""
    for name, cure in NO_LOG.items():
        if getattr(options, name):
            ask = f"--{name.replace('_', '-')} with --data"
            raise InputError(say(ask, "examples for a template are not a log", cure))


def show_skipped(source: Source) -> None:
    """Lines that --skip-bad left out."""
    for wrong in source.skipped:
        print(f"skipped: {wrong}", file=sys.stderr)
    if source.num_skipped > len(source.skipped):
        print(f"skipped: {source.num_skipped - len(source.skipped):,} more lines", file=sys.stderr)


def named_place(source: Source, line: int, place: int, token: int) -> str | None:
    """Where a token of a prompt is, in words."""
    if isinstance(source, TemplateFile):
        return source.place_of(line, token)
    return message_at(source, line, place, token) if source.again else None
