"""What a full-attention group reads, and spans."""

from __future__ import annotations

import pytest

from quire import InputError, LayerGroup, Span


def test_a_full_group_reads_every_block() -> None:
    group = LayerGroup("full")
    assert group.live_blocks(9, 4) == (Span(0, 3),) == group.needs_at(9, 4)
    assert group.live_blocks(0, 4) == (Span(0, 0),)
    assert group.stored_at(Span(4, 9), 4) == Span(1, 3)
    assert not group.stored_at(Span(4, 4), 4)


@pytest.mark.parametrize("values", [{"page_bytes": -1}, {"planes": -1}, {"page_bytes": 10, "planes": 3}])
def test_impossible_groups_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(InputError, match="layer group"):
        LayerGroup("g", **values)


def test_an_empty_span_is_legal_and_false() -> None:
    assert not Span(3, 3)
    assert len(Span(1, 3)) == 2 and 1 in Span(1, 3) and 3 not in Span(1, 3)
    with pytest.raises(InputError, match="swap or raise"):
        Span(3, 2)
