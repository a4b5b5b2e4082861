"""quire tiers: measure the kinds of memory that pages can lie in, here and now."""

from __future__ import annotations

import sys

from quire.cli.arguments import CommandParser
from quire.cli.main import run_act
from quire.cli.tiers import measure_command


def main(argv: list[str] | None = None) -> int:
    """Run one of them."""
    parser = CommandParser(prog="quire tiers", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="ACT")
    help_ = "read, write and scattered pages of memory, a disk and shared stores; what is worth using"
    measure_command.add_options(acts.add_parser("bench", help=help_, description=measure_command.__doc__))
    return run_act("tiers", parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
