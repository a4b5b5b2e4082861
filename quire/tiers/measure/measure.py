"""Measure a place, and say what it is worth: bytes per second, and whether fetching beats computing. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from quire.core.records.errors import InputError, say
from quire.tiers.base import Bytes
from quire.tiers.measure.places import Place

ROUNDS = 3  # the best of them counts: others run here as well
BATCHES = (1, 4, 16, 64)  # pages per call
GOOD = 0.9  # of the best rate: larger batches are not worth their memory


@dataclass(frozen=True, slots=True)
class MeasureLoad:
    """What is measured with."""

    page_bytes: int
    pages: int
    bytes_per_token: float
    tokens_per_second: float  # that the model computes


@dataclass(frozen=True, slots=True)
class Measured:
    """What one place does. Rates are bytes per second."""

    kind: str
    name: str
    write: float
    read: float
    scattered: float  # reads of single blocks in random order, in batches of `batch` pages
    lookup: float  # seconds for all pages in one call
    first: float  # seconds until a single page is there
    batch: int  # pages per call from which on it is nearly as fast as it gets
    room: int | None  # bytes to give to it; None: not known here
    room_tokens: int | None
    tokens_per_second: float  # that scattered reads bring
    beats_computing: bool
    from_tokens: int | None  # missing tokens from which on fetching is faster; None: never

    def to_json(self) -> dict[str, Any]:
        """As it is."""
        return asdict(self)


def steps_of(places: int) -> int:
    """How often `on_progress` is called for so many places."""
    return places * (ROUNDS * (2 + len(BATCHES)) + 1)


def measure(place: Place, load: MeasureLoad, on_progress: Callable[[int], None] = lambda _: None) -> Measured:
    """Write, read, read scattered, look up; and what follows from it."""
    dice = np.random.default_rng(0)
    pages = list(dice.integers(0, 256, (load.pages, load.page_bytes), np.uint8))
    into = [np.zeros(load.page_bytes, np.uint8) for _ in pages]
    order, mixed = list(range(load.pages)), dice.permutation(load.pages).tolist()
    largest = min(BATCHES[-1], load.pages)
    total = load.page_bytes * load.pages
    write = _rate(lambda: _all(place.write, order, pages, largest), total, on_progress)
    read = _rate(lambda: _all(place.read, order, into, largest), total, on_progress)
    rates = {
        batch: _rate(lambda size=batch: _all(place.read, mixed, into, size), total, on_progress)  # type: ignore[misc]
        for batch in BATCHES
    }
    if any(not np.array_equal(into[at], pages[number]) for at, number in enumerate(mixed)):
        raise InputError(say(place.name, "it gave other bytes than were written", "do not use it"))
    started = time.perf_counter()
    place.look_up(order)
    lookup = time.perf_counter() - started
    first = min(_time(lambda: place.read(mixed[:1], into[:1])) for _ in range(5))
    on_progress(1)
    best = max(rates.values())
    batch = next(size for size, rate in rates.items() if rate >= GOOD * best)
    return _judge(place, load, (write, read, best), (lookup, first), batch)


def _all(
    act: Callable[[Sequence[int], Sequence[Bytes]], None], numbers: list[int], pages: list[Bytes], batch: int
) -> None:
    for at in range(0, len(numbers), batch):
        act(numbers[at : at + batch], pages[at : at + batch])


def _rate(act: Callable[[], None], total: int, on_progress: Callable[[int], None]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        best = min(best, _time(act))
        on_progress(1)
    return total / best


def _time(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return max(time.perf_counter() - started, 1e-9)


def _judge(
    place: Place, load: MeasureLoad, rates: tuple[float, float, float], times: tuple[float, float], batch: int
) -> Measured:
    write, read, scattered = rates
    lookup, first = times
    brings = scattered / load.bytes_per_token
    gain = 1 / load.tokens_per_second - 1 / brings  # seconds saved per token
    from_tokens = int((lookup + first) / gain) + 1 if gain > 0 else None
    room = place.room()
    tokens = None if room is None else int(room / load.bytes_per_token)
    return Measured(
        place.kind,
        place.name,
        write,
        read,
        scattered,
        lookup,
        first,
        batch,
        room,
        tokens,
        brings,
        gain > 0,
        from_tokens,
    )
