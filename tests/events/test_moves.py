"""Moves on the wire: a run of them is told parents first, however sequences take turns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import pytest

from quire import Cache, EventBatch, Request
from quire.core.records.events import merged
from quire.events.wire.encode import EventEncoder
from quire.events.wire.names import Names

from .lives import build

SEQUENCES, STEPS = 9, 6


def decoding(cache: Cache, rounds: int) -> list[EventBatch]:
    """Sequences that fill a block each in every step; those of a round move the blocks of the rounds before."""
    dice, batches = np.random.default_rng(0), [cache.take_events(whole=True)]
    for turn in range(rounds):
        requests = [Request((turn, n), dice.integers(0, 128_000, 4).astype(np.int32)) for n in range(SEQUENCES)]
        batch = cache.add_sequence_batch(requests)
        cache.finish(batch.plan)
        cache.commit(batch.sequences)
        for _ in range(STEPS):
            cache.grow(batch.sequences, dice.integers(0, 128_000, (SEQUENCES, 4)).astype(np.int32), num_tokens=4)
            cache.commit(batch.sequences)
            batches.append(cache.take_events())
        for sequence in batch.sequences:
            cache.release(sequence)
    return batches


def stores_in_a_row(events: list[dict[str, Any]], medium: str) -> list[list[dict[str, Any]]]:
    rows = groupby(events, lambda event: "token_ids" in event and event["medium"] == medium)
    return [list(row) for there, row in rows if there]


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
def test_no_block_is_told_before_its_parent(joined: bool) -> None:
    cache = build(SEQUENCES * (STEPS + 3), SEQUENCES * STEPS * 4, max_sequences=16)
    encoder, batches = EventEncoder(Names.from_config(cache.config), "map"), decoding(cache, 4)
    below = 0
    for batch in [merged(batches)] if joined else batches:
        events = [msgspec.msgpack.decode(msgspec.msgpack.encode(event)) for event in encoder.events(batch)
                  if isinstance(event, dict)]  # fmt: skip
        for row in stores_in_a_row(events, "CPU"):
            places = {name: nth for nth, store in enumerate(row) for name in store["block_hashes"]}
            parents = [places.get(store["parent_block_hash"], -1) for store in row]
            assert all(parent < nth for nth, parent in enumerate(parents))
            below += sum(len(store["block_hashes"]) - 1 for store in row)
    assert below > 20  # parents and children did move together
