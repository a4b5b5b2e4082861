"""log_options: how findings, lint and diff read a log: as `quire trace make` does."""

from __future__ import annotations

from argparse import Namespace

from quire import InputError
from quire.cli.arguments import CommandParser
from quire.cli.trace.make_command import rate_of
from quire.core.records.errors import say
from quire.trace.prompts.arrival_times import UNITS, check_rate
from quire.trace.prompts.logged_prompts import LogOptions
from quire.trace.read.lines import LONGEST
from quire.trace.units import shown


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
    check_rate(options.rate)
    if getattr(options, "block_size", 1) > LONGEST:
        ask = f"--block-size {shown(options.block_size, 40)}"
        raise InputError(say(ask, "no prompt is as long as a block", f"give at most {LONGEST}"))
    return LogOptions(
        options.tokenizer, options.time_field, options.time_unit, options.rate, tuple(options.scope_field),
        options.name_field, options.skip_bad, options.limit, options.drop_tools,
    )  # fmt: skip
