"""quire prefill: compute prompts for other processes, until Ctrl-C. Prints where it listens.

`quire chat --prefill-peer` decodes what it computes.
"""

from __future__ import annotations

import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from quire import QuireError
from quire.cli.arguments import CommandParser
from quire.cli.model_options import add_link, add_model, need_engine, note_printer, open_llm, read_secret, read_tls

if TYPE_CHECKING:
    from quire.engine import LLM
    from quire.transfer import Tls

LOOK = 0.5  # seconds between looks at whether the engine is well


def main(argv: list[str] | None = None) -> int:
    """Load, listen, and compute what is ordered."""
    options = _parser().parse_args(argv)
    tell = note_printer()
    try:
        need_engine(options.model)
        secret, tls = read_secret(options), read_tls(options)
        _check(options, secret, tls)
        llm = open_llm(options, tell)
    except (QuireError, ImportError, OSError, ValueError) as error:  # of a folder without a model that works, too
        print(f"quire prefill: {error}", file=sys.stderr)
        return 2
    with llm:
        try:
            address = llm.serve_prompts(options.listen, secret, link=options.link, tell=tell, tls=tls)
        except (QuireError, OSError) as error:
            print(f"quire prefill: {error}", file=sys.stderr)
            return 2
        print(address, flush=True)
        broken = _wait(llm)
    if broken:
        print(f"quire prefill: {broken}", file=sys.stderr)
    return int(bool(broken))


def _parser() -> ArgumentParser:
    parser = CommandParser(prog="quire prefill", description=__doc__)
    add_model(parser)
    parser.add_argument("--listen", default="127.0.0.1:5710", metavar="HOST:PORT", help="default %(default)s")
    add_link(parser)
    return parser


def _check(options: Namespace, secret: bytes, tls: Tls | None) -> None:
    """Secret, certificates, address and port: a model takes long to load."""
    from quire.engine.disagg.remote import check_listen

    check_listen(options.listen, secret, link=options.link, tls=tls)


def _wait(llm: LLM) -> str | None:
    """Until Ctrl-C or SIGTERM, or until the engine has failed: why."""
    ended = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with suppress(KeyboardInterrupt):
        while llm.loop.error is None and not ended.wait(LOOK):
            pass
    return llm.loop.error


if __name__ == "__main__":
    sys.exit(main())
