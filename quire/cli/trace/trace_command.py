"""quire trace: make a trace from logs of real requests; statistics of a trace."""

from __future__ import annotations

import sys

from quire.cli.arguments import CommandParser
from quire.cli.main import run_act
from quire.cli.trace import make_command, stats_command


def main(argv: list[str] | None = None) -> int:
    """Run one of them."""
    parser = CommandParser(prog="quire trace", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="ACT")
    for name, act, help_ in (
        ("make", make_command, "a trace from logged requests, from lengths or from other traces"),
        ("stats", stats_command, "arrivals, lengths and sharing of a trace, and what would raise it"),
    ):
        act.add_options(acts.add_parser(name, help=help_, description=act.__doc__))
    return run_act("trace", parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
