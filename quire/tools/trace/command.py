"""quire trace: make a trace from logs of real requests, and look at what a trace says."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from quire import QuireError
from quire.tools.trace import make_command


def main(argv: list[str] | None = None) -> int:
    """Run one of them."""
    parser = ArgumentParser(prog="quire trace", description=__doc__)
    acts = parser.add_subparsers(required=True, metavar="ACT")
    make_command.add_options(
        acts.add_parser("make", help="a trace from logged requests", description=make_command.__doc__)
    )
    options = parser.parse_args(argv)
    try:
        code: int = options.act(options)
    except BrokenPipeError:
        raise
    except (QuireError, OSError) as wrong:
        print(f"quire trace: {wrong}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
