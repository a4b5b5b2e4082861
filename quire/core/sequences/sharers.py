"""Sharers of pending blocks: rows and open claims that rest on what a step in flight computes for another row.

Owns what the end of such a step, or the loss of its row, means for them. Knows nothing of what their callers hear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from quire.core.records.errors import StateError, say, shown
from quire.core.records.request import Int32
from quire.core.state.claim import Promise, let_go
from quire.core.state.registry import LaunchedStep, Registry


def with_landing(registry: Registry, step: LaunchedStep, rows: Int32, numbers: Int32) -> tuple[Int32, Int32]:
    """Rows of a step that has run, how far it has come with them; and behind these the rows that share of that."""
    rides = registry.in_flight.landing(step)
    come = dict(zip(rows.tolist(), numbers.tolist(), strict=True))
    ends = dict(zip(step.rows.tolist(), step.ends.tolist(), strict=True))
    wanted = [(ride.owner, ride.end) for ride in rides]
    wanted += [(owner, min(claim.hit.start, ends.get(owner, 0))) for owner, claim in _claims_by_owner(registry)]
    size = registry.setup.block_size
    for owner, end in wanted:
        if come.get(owner, end) < end // size * size:
            ask = (
                f"commit of {come[owner]} tokens of sequence {shown(registry.sequence_in(owner))} in step {step.number}"
            )
            fact = f"others share what it was to compute up to {end}"
            raise StateError(say(ask, fact, "commit all of its prompt's part, or fail the step"))
    if not rides:
        return rows, numbers
    landed = [(ride.row, max(ride.end, come.get(ride.row, 0))) for ride in rides]  # a step may compute it, too
    alone = ~np.isin(rows, [row for row, _ in landed])
    both = np.array(landed, np.int32)
    return np.append(rows[alone], both[:, 0]), np.append(numbers[alone], both[:, 1])


def let_go_of_failed(registry: Registry, edges: Mapping[int, int]) -> list[Promise]:
    """Claims that share what steps do not compute any more, whose holds are given back. `edges`: how far they do, by
    row."""
    lost = [claim for owner, claim in _claims_by_owner(registry) if claim.hit.start > edges.get(owner, claim.hit.start)]
    for claim in lost:
        let_go(claim)
    return lost


def sharers_of(registry: Registry, rows: Iterable[int]) -> tuple[set[int], list[Promise]]:
    """Rows and claims that share what is being computed for these rows, whatever of it."""
    owners = set(rows)
    riders = registry.in_flight.riders(owners)
    return riders, [claim for owner, claim in _claims_by_owner(registry) if owner in owners | riders]


def _claims_by_owner(registry: Registry) -> list[tuple[int, Promise]]:
    """Open claims that end with blocks which steps in flight compute, each with the row that these are of."""
    store = registry.setup.store
    claims = [claim for claims in registry.open_claims.values() for claim in claims]
    return [(owner, claim) for claim in claims if (owner := store.owner(claim.hit)) >= 0]
