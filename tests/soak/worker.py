"""Worker: one process that runs piece after piece and tells of each. It ends when it is told to, or nobody listens."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from random import SystemRandom
from time import monotonic

from . import pieces


def work(line: Connection, shares: Mapping[str, float], folder: Path) -> None:
    """Before each piece its kind and seed are told, after it the result; the kind furthest behind its share is next."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the crew ends it, or its end does
    spent = dict.fromkeys(shares, 0.0)
    fresh = SystemRandom()
    try:
        while not line.poll():
            kind = min(shares, key=lambda kind: (spent[kind] / shares[kind], -shares[kind]))
            seed = fresh.randrange(1 << 40)
            line.send((kind, seed))
            began = monotonic()
            line.send(pieces.run(kind, seed, folder))
            spent[kind] += monotonic() - began
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the crew is gone
