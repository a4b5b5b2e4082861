"""launched_only: what a claim may count on of pages that are being computed: what launched steps compute.

    a  |......|          admitted, not launched
    b  |aaaa|..|         shares a's first pages, in the same batch: both are launched together
    c  |?                a claim between that admission and the launch finds nothing of a, and nothing of it in b

Without this a claim would find in b what no step has begun to compute, and keep it after both have been released.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np

from quire.core.state.registry import Registry

_ALL: AbstractContextManager[None] = nullcontext()


def launched_only(registry: Registry) -> AbstractContextManager[None]:
    """While it is open, rows that share what is yet to be launched are as far as launched steps compute them."""
    return _without_coming(registry) if registry.in_flight.coming else _ALL


@contextmanager
def _without_coming(registry: Registry) -> Iterator[None]:
    flight, store = registry.in_flight, registry.setup.store
    ends = {ride.row: 0 for ride in flight.coming}
    for ride in (ride for some in flight.rides.values() for ride in some):
        if ride.row in ends:
            ends[ride.row] = max(ends[ride.row], ride.end)
    rows = np.array(list(ends), np.int32)
    before = store.launched[rows]
    store.launch(rows, np.array(list(ends.values()), np.int32))
    try:
        yield
    finally:
        store.launch(rows, before)
