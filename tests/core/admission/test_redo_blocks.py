"""Blocks that are found and computed all the same: a drafter (EAGLE) needs the hidden states of the last ones."""

from __future__ import annotations

import numpy as np
import pytest

from quire import Cache, InputError, LayerGroup, Request, check
from quire.core.store import StoreName

from ..conftest import seq, serve, small


def compute(cache: Cache, request: Request) -> None:
    """A request's whole life, in as many steps as its states take."""
    batch = cache.add_sequence_batch([request])
    (sequence,) = batch.sequences
    while True:
        cache.finish(batch.plan)
        cache.commit(sequence)
        if sequence.computed == sequence.prompt_end:
            break
        batch = cache.add_sequence_batch([], continuing=[sequence])
    cache.release(sequence)


def test_a_drafter_computes_the_last_blocks_that_were_found_again(store: StoreName) -> None:
    cache = small(store, 16)
    serve(cache, Request("first", seq(0, 14)))  # three blocks, and two tokens of a fourth
    starts = {}
    for redo in range(6):
        for name, tokens in (("same", seq(0, 14)), ("longer", seq(0, 12)), ("other", np.append(seq(0, 8), seq(90, 5)))):
            request = Request(name, tokens.astype(np.int32), redo_blocks=redo)
            (probe,) = cache.probe([request])
            with cache.claim([request]) as (claim,):
                assert claim.start == probe.start and claim.num_tokens == len(tokens) - claim.start
                starts[name, redo] = claim.start
            check(cache)
    assert [starts["same", redo] for redo in range(6)] == [13, 12, 8, 4, 0, 0], "what is found in part is a block"
    assert [starts["longer", redo] for redo in range(6)] == [11, 8, 4, 0, 0, 0]
    assert [starts["other", redo] for redo in range(6)] == [8, 4, 0, 0, 0, 0]


def test_a_limit_and_blocks_to_be_computed_again_go_together(store: StoreName) -> None:
    cache = small(store, 16)
    serve(cache, Request("first", seq(0, 16)))
    found = [cache.probe([Request("r", seq(0, 16), reuse_limit=10, redo_blocks=redo)])[0].start for redo in (0, 1, 2)]
    assert found == [10, 8, 4]
    with pytest.raises(InputError, match="redo_blocks -1"):
        Request("r", seq(0, 16), redo_blocks=-1)
    assert "redo_blocks=2" in repr(Request("r", seq(0, 16), redo_blocks=2))


def test_what_is_computed_again_is_told_in_the_receipt(store: StoreName) -> None:
    cache = small(store, 16, receipts=True)
    serve(cache, Request("first", seq(0, 13)))
    with cache.claim([Request("r", np.append(seq(0, 12), seq(90, 5)).astype(np.int32), redo_blocks=2)]) as (claim,):
        misses = [(miss.cause, miss.start, miss.stop) for miss in claim.receipt.misses]
        assert misses == [("policy", 4, 12), ("new", 12, 16), ("last_token", 16, 17)]
        assert claim.receipt.hits == {(0, 0): 4}


def test_a_window_and_a_state_resume_where_both_can_before_those_blocks(store: StoreName) -> None:
    groups = (LayerGroup("window", window=5), LayerGroup("state", snapshot_every=8))
    cache = small(store, 40, groups=groups)
    compute(cache, Request("first", seq(0, 30)))
    found = [cache.probe([Request("r", seq(0, 30), redo_blocks=redo)])[0].start for redo in range(8)]
    assert found[0] == 28 and sorted(found, reverse=True) == found
    assert {*found} <= {0, 8, 16, 24, 28}, "where states were kept"
    assert all(start <= max(0, 28 - 4 * redo) for redo, start in enumerate(found))


def test_a_find_leaves_those_blocks_out_too(store: StoreName) -> None:
    cache = small(store, 16)
    serve(cache, Request("first", seq(0, 14)))
    other = np.append(seq(0, 8), seq(90, 5)).astype(np.int32)
    ends = {}
    for redo in range(4):
        for name, tokens in (("same", seq(0, 14)), ("other", other)):
            for from_ in (0, 4, 9):
                with cache.find(Request(name, tokens, redo_blocks=redo), from_=from_) as found:
                    ends[name, from_, redo] = found.end
                    assert found.blocks().tolist() == list(range(from_ // 4, found.end // 4))
    assert [ends["same", 0, redo] for redo in range(4)] == [12, 8, 4, 0]
    assert [ends["same", 4, redo] for redo in range(4)] == [12, 8, 4, 4], "never before what the caller has"
    assert [ends["same", 9, redo] for redo in range(4)] == [12, 8, 8, 8]
    assert [ends["other", 0, redo] for redo in range(4)] == [8, 4, 0, 0]


@pytest.mark.parametrize("window", [3, 4, 6])
def test_a_find_behind_a_window_ends_where_it_could_resume(store: StoreName, window: int) -> None:
    cache = small(store, 16, groups=(LayerGroup("full"), LayerGroup("near", window=window)))
    serve(cache, Request("first", seq(0, 17)))
    with cache.find(Request("again", seq(0, 17))) as found:
        whole = found.end
    with cache.find(Request("again", seq(0, 17), redo_blocks=1)) as found:
        assert 0 <= found.end < whole == 16
        assert found.blocks(0).tolist() == list(range(found.end // 4))
        assert found.blocks(1).tolist() == list(range(max(0, found.end - window + 1) // 4, found.end // 4))
    check(cache)
