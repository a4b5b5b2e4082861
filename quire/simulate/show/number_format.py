"""Numbers as people read them: counts, shares, bytes, times. Knows nothing of where they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.records.memory import say_bytes

Json = Mapping[str, Any]  # one ReplayResult, or a part of it, as JSON has it


def count_text(number: float) -> str:
    """12031 -> 12,031."""
    return f"{number:,.0f}" if float(number).is_integer() or abs(number) >= 100 else f"{number:,.3g}"


def share_text(share: float, digits: int = 1) -> str:
    """0.3664 -> 36.6 %."""
    return f"{100 * share:.{digits}f} %"


def percent_text(share: float) -> str:
    """0.3 -> 30 %, 0.075 -> 7.5 %, as an axis needs it."""
    return share_text(share, 0 if abs(share * 100 - round(share * 100)) < 1e-6 else 1)


def shares_text(shares: Sequence[float], whole: float, digits: int = 1) -> list[str]:
    """Parts of a whole, each rounded so that what is printed adds up to what `share_text` prints of the whole."""
    units = [share * 10 ** (digits + 2) for share in shares]
    counts = [math.floor(unit + 1e-6) for unit in units]
    more = round(float(share_text(whole, digits)[:-2]) * 10**digits) - sum(counts)
    if not 0 <= more <= len(counts):  # they are not the parts of that whole
        return [share_text(share, digits) for share in shares]
    for at in sorted(range(len(counts)), key=lambda at: counts[at] - units[at])[:more]:
        counts[at] += 1
    return [share_text(count / 10 ** (digits + 2), digits) for count in counts]


def bytes_text(number: float) -> str:
    """64000000000 -> 64 GB; powers of ten."""
    return say_bytes(number).replace(".0 ", " ")


def time_text(seconds: float) -> str:
    """75 -> 1.25 min, as an axis needs it."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def value_text(value: object) -> str:
    """Any setting as one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int | float):
        return count_text(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(value_text(part) for part in value)
    return str(value)


_TIMES = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from `low` to at least `high`, at most about `most` of them; the last one is the axis's end."""
    if not high > low:
        high = low + 1.0
    rough = (high - low) / max(1, most - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(unit * factor for factor in factors if unit * factor >= rough * (1 - 1e-9))
    return _steps(low, high, max(1.0, step) if whole else step)


def time_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """The same in seconds, on whole seconds, minutes, hours or days where the span allows."""
    rough = (high - low) / max(1, most - 1)
    if rough <= 1 or rough > _TIMES[-1]:
        return ticks(low, high, most)
    return _steps(low, high, next(step for step in _TIMES if step >= rough * (1 - 1e-9)))


def _steps(low: float, high: float, step: float) -> list[float]:
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]
