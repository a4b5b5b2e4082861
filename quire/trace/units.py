"""Values in an error, whatever they are, and the arrays of a replay. Knows nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


def shown(value: object, most: int = 60) -> str:
    """Any value in an error: short, on one line, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, too deep
        text = f"a {type(value).__name__} too large to be shown"
    return cut(text, most)


def cut(text: str, most: int) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else text[: most - 3] + "..."
