"""What is counted, in pages and bytes, by tier."""

from __future__ import annotations

import pytest

from quire import LayerGroup, Request, Sequence, check
from quire.core.store import StoreName

from ..conftest import seq, serve, small


def test_counts_in_bytes(store: StoreName) -> None:
    cache = small(store, 8, groups=(LayerGroup("full", page_bytes=100),))
    serve(cache, Request("a", seq(0, 8)))
    batch = cache.add_sequence_batch([Request("b", seq(0, 12))])
    sequence: Sequence = batch.sequences[0]
    counts = sequence.counts()
    assert (counts.reused_bytes, counts.missed_bytes, counts.allocated_bytes) == (200, 100, 100)
    assert (counts.copied_bytes, counts.onboarded_bytes, counts.offloaded_bytes, counts.dropped_bytes) == (0, 0, 0, 0)
    assert counts.hit_rate == pytest.approx(2 / 3) and "Sequence('b'" in repr(sequence)


def test_reuse_is_counted_by_tier_full_and_partial(store: StoreName) -> None:
    """Two whole blocks come from the host, the tail's tokens are copied from a page of the device."""
    cache = small(store, 4, 4)
    serve(cache, Request("a", seq(0, 12)))
    serve(cache, Request("c", seq(100, 8)))  # pushes the deepest blocks down
    (sequence,) = cache.add_sequence_batch([Request("r", seq(0, 12))]).sequences
    counts = sequence.counts()
    assert (counts.reused_full, counts.reused_partial) == (2, 1)
    assert sum(counts.reused_from) == 3 and sum(counts.partial_from) == 1
    assert counts.partial_from == (0, 1), "the last block was evicted first, so its part comes from the host"
    check(cache)
