"""Quiet: transformers without its progress bars and notes. Errors still come through, as exceptions."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from threading import RLock

_ONE_AT_A_TIME = RLock()  # what is silenced belongs to the whole process: two at once would put back each other's


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While a model is made, loaded or converted."""
    from transformers.utils import logging

    with _ONE_AT_A_TIME:
        level = logging.get_verbosity()
        logging.set_verbosity_error()
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # some bars heed no switch
                yield
        finally:
            logging.set_verbosity(level)
