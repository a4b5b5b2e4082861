"""Clocks that return NaN, inf, None and worse: each call of the cache says so in words, and nothing has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quire import Cache, CacheConfig, InputError, Request, TierConfig, check

from .checks import Checks, run, within

CLOCKS: tuple[Any, ...] = (float("nan"), float("inf"), -float("inf"), 1e300, None, "1", b"1", [], object(), 1j)


def attack(folder: Path, checks: Checks) -> None:
    """One cache each, with a clock that goes bad."""
    config = CacheConfig((TierConfig("device", 8), TierConfig("host", 8)), block_size=4, max_length=64)
    for wrong in CLOCKS:
        times: list[Any] = [0.0]
        cache = Cache(config, clock=lambda times=times: times[-1])  # type: ignore[misc]
        request = Request("a", np.arange(12, dtype=np.int32))
        times.append(wrong)
        got = within(lambda cache=cache, request=request: cache.add_sequence_batch([request]))  # type: ignore[misc]
        checks.held(f"{wrong!r} is refused in words", isinstance(got, InputError) and "clock" in str(got), got)
        times.append(1.0)
        batch = cache.add_sequence_batch([request])
        checks.held("and the next call is served", len(batch.sequences) == 1)
        check(cache)
    got = within(lambda: Cache(config, clock=0.0))  # type: ignore[arg-type]
    checks.held("what is no clock is refused", isinstance(got, InputError), got)


if __name__ == "__main__":
    run("clocks", attack)
