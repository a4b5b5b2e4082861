"""ReadProgress: how much of the input was read, on one line of standard error; silent off the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quire.trace.read.streams import STDIN

SHOW_EVERY = 0.5  # seconds


@contextmanager
def progress(inputs: Sequence[str]) -> Iterator[ReadProgress | None]:
    """What `open_lines` calls with what was read, or None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    sizes = [Path(path).stat().st_size for path in inputs if path != STDIN and Path(path).is_file()]
    shown = ReadProgress(sum(sizes) if len(sizes) == len(inputs) else 0)
    try:
        yield shown
    finally:
        shown.clear()


class ReadProgress:
    """Bytes read, now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._read, self._next = total, 0, 0.0

    def __call__(self, more: int) -> None:
        self._read += more
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + SHOW_EVERY
        share = f" ({self._read / self._total:.0%})" if self._total else ""
        print(f"\r{self._read / 1e6:,.0f} MB read{share} ", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Nothing is left of it."""
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
