"""Quiet: transformers without its progress bars and notes. Errors still come through, as exceptions."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While a model is made, loaded or converted."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # some bars heed no switch
            yield
    finally:
        logging.set_verbosity(level)
