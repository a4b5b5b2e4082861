"""Waits: for what another thread or process brings about, with a deadline. Knows nothing of what is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds; only a test that fails waits so long
MOMENT = 0.0005  # seconds between two looks: who waited without a rest kept the processor from those it waited for


def until(true: Callable[[], object], what: str = "it", seconds: float = PATIENCE) -> None:
    """Look again and again. No test counts on how often, or when."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            raise TimeoutError(f"{what} never came")
        rest()


def rest() -> None:
    """Leave the processor to others for a moment."""
    time.sleep(MOMENT)
