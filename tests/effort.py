"""Effort: how many cases a random test plays. Owns the two numbers' choice; knows no test.

In the suite a short form of each, with seeds that see everything; `make slow`, weekly, plays the long one
(QUIRE_LONG=1, tests marked long).
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

LONG = os.environ.get("QUIRE_LONG") == "1"
Thing = TypeVar("Thing")


def cases(short: Thing, long: Thing) -> Thing:
    """The short form, or the long one where time does not matter."""
    return long if LONG else short


def slow(*values: Any) -> Any:
    """One of a test's cases that only `make slow` plays: others see the same."""
    import pytest  # scripts that choose their cases here run without it

    return pytest.param(*values, marks=pytest.mark.slow)
