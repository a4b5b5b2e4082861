"""Overlap: a step is prepared while the one before it still runs. The inputs of that one must not change.

With the others one position had two slots, or a table was written over before the device had read it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire import Request, StateError
from quire.core.store import StoreName
from quire.engine.model.packing import Segment, pack
from tests.scenarios.conftest import admit, build, compute, finish, run, tokens, try_admit

CPU = torch.device("cpu")


def test_sglang_38140_one_position_had_two_slots_across_steps(store: StoreName) -> None:
    """A position keeps its slot over steps that are prepared ahead, also where its block is cached already."""
    cache = build(store, 16)
    run(cache, Request("twin", tokens(range(10), range(20, 26))))
    (sequence,) = admit(cache, Request("a", tokens(range(10))))
    compute(cache, sequence)
    told: dict[int, int] = {}  # position: slot
    for nth, token in enumerate(range(20, 30)):
        finish(cache, cache.grow(sequence, tokens(token)))  # the steps before are not heard of yet
        row = cache.table()[sequence.row]
        for position in range(10 + nth + 1):
            slot = int(row[position // 4])
            assert told.setdefault(position, slot) == slot
        if nth > 2:
            compute(cache, sequence, 10 + nth - 2)  # the step of three turns ago
    assert len(set(told.values())) == 5


def test_sglang_38140_a_slot_that_a_step_in_flight_writes_was_handed_out(store: StoreName) -> None:
    """Drafts are taken back, or their sequence ends, while the step that computes them runs: their slots stay busy."""
    cache = build(store, 6)
    (sequence,) = admit(cache, Request("a", tokens(range(7))))
    compute(cache, sequence)
    finish(cache, cache.grow(sequence, tokens(range(20, 24))))  # three drafts
    step = cache.launch()
    writes = set(sequence.slots()[1:].tolist())
    with pytest.raises(StateError, match="a step in flight computes it"):
        cache.trim(sequence, 3)
    cache.release(sequence)
    (other,) = admit(cache, Request("b", tokens(range(50, 58))))
    assert writes and not writes & set(other.slots().tolist())
    assert [refusal.reason for refusal in try_admit(cache, Request("c", tokens(range(60, 68)))).refused] == ["slots"]
    cache.commit(step, 8)
    (later,) = admit(cache, Request("c", tokens(range(60, 68))))
    assert writes & set(later.slots().tolist())


def test_tensorrt_llm_15546_a_table_was_written_over_before_its_copy_ran(store: StoreName) -> None:
    """All steps shared one buffer, which an asynchronous copy reads later. Here a packed step has its own tables."""
    cache = build(store, 16)
    (sequence,) = admit(cache, Request("a", tokens(range(10))))
    compute(cache, sequence)
    finish(cache, cache.grow(sequence, tokens(11)))
    packed = pack(cache, [0], [Segment(sequence.row, 10, tokens(11), 1)], CPU)
    told = packed.lanes[0].table.copy(), packed.lanes[0].slot.clone(), packed.ids.clone()
    assert not np.shares_memory(packed.lanes[0].table, cache.table())
    compute(cache, sequence)
    row = sequence.row
    cache.release(sequence)  # the next step's turn: the row is another's, who has other slots
    (other,) = admit(cache, Request("b", tokens(range(50, 58))))
    assert other.row == row and not np.array_equal(cache.table()[row, :3], told[0][0])
    assert np.array_equal(packed.lanes[0].table, told[0]) and torch.equal(packed.lanes[0].slot, told[1])
    assert torch.equal(packed.ids, told[2])
