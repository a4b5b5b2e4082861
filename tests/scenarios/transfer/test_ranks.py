"""Which ranks meet, which bytes they share, how they decide together. Rows `rank`."""

from __future__ import annotations

import pytest

from quire import InputError
from quire.transfer.geometry.ranks import Grid, Seat, Vote, agree, meets
from quire.transfer.geometry.shards import PageShape, Section, Shard, misfit, overlap

Ids = tuple[int, ...]


def test_ranks_that_share_pages_meet() -> None:
    """rank-01: tensor 2 against 4; 4 against 2 in the second group; stages 12 + 12 against 8 + 8 + 8; a flat rank."""
    two, four = Grid(tensor=2), Grid(tensor=4)
    assert [meets(two, Seat(tensor=r), four, 0) for r in range(2)] == [(0, 1), (2, 3)]
    assert [meets(four, Seat(tensor=r), Grid(tensor=2, groups=2), 1) for r in range(4)] == [(2,), (2,), (3,), (3,)]
    halves, thirds = Grid(stages=(12, 12)), Grid(stages=(8, 8, 8))
    assert [meets(halves, Seat(stage=s), thirds, 0) for s in range(2)] == [(0, 1), (1, 2)]
    grid = Grid(tensor=4, stages=(1, 1), context=2)
    assert (grid.rank(Seat(stage=1, tensor=3, context=1)), grid.seat(15)) == (15, Seat(1, 0, 3, 1))


def test_an_unknown_group_means_all_of_them() -> None:
    """rank-02: 4 groups of one rank each: all 4 are asked, 1 is expected to answer. 2 against 3 is refused."""
    many = Grid(groups=4)
    assert (meets(Grid(), Seat(), many), len(meets(Grid(), Seat(), many, 0))) == ((0, 1, 2, 3), 1)
    with pytest.raises(InputError, match="neither divides"):
        meets(Grid(tensor=2), Seat(), Grid(tensor=3), 0)


def test_heads_split_and_then_replicate() -> None:
    """rank-03: 4 heads on 2, 4 and 8 ranks, a latent on 4; rank 3 of 8 has head 1, not 3. 4 heads on 3 ranks: no."""
    assert [Shard.of_heads(n, n - 1, 4) for n in (2, 4, 8)] == [Shard(2, 1), Shard(4, 3), Shard(4, 3, 2, 1)]
    assert Shard.of_heads(8, 3, 4) == Shard(4, 1, 2, 1)
    assert Shard.of_heads(4, 2, 1) == Shard(1, 0, 4, 2)
    with pytest.raises(InputError, match="4 heads on 3 ranks"):
        Shard.of_heads(3, 0, 4)


def conv(ranks: int, rank: int, *sizes: int) -> PageShape:
    shard = Shard(ranks, rank)
    return PageShape((0,), tuple(Section(name, size, shard) for name, size in zip("xbc", sizes, strict=True)))


def test_sections_of_a_state_are_cut_one_by_one() -> None:
    """rank-04: 2 ranks with [12288, 3072, 3072] to the last of 4 with [6144, 1536, 1536]."""
    target = conv(4, 3, 6_144, 1_536, 1_536)
    fragments = overlap(conv(2, 1, 12_288, 3_072, 3_072), target)
    assert fragments == ((6_144, 0, 6_144), (13_824, 6_144, 1_536), (16_896, 7_680, 1_536))
    assert overlap(conv(2, 0, 12_288, 3_072, 3_072), target) == ()


def kv(
    ranks: int, rank: int, heads: int, *, layers: tuple[int, ...] = (0,), head_bytes: int = 8, rows: int = 1
) -> PageShape:
    shard = Shard.of_heads(ranks, rank, heads)
    size = heads // shard.count * head_bytes * rows
    return PageShape(layers, (Section("k", size, shard, rows), Section("v", size, shard, rows)))


def test_replicated_heads_are_sent_once() -> None:
    """rank-05: 4 heads, 8 ranks to 2: of two replicas one is elected, by turns; 2 to 8: every replica is served."""
    fine = [overlap(kv(8, rank, 4), kv(2, 0, 4)) for rank in range(8)]
    assert [bool(part) for part in fine] == [True, False, True, False, *[False] * 4]
    assert fine[2] == ((0, 8, 8), (8, 24, 8))
    assert [bool(overlap(kv(8, rank, 4), kv(2, 0, 4), turn=1)) for rank in range(4)] == [False, True, False, True]
    assert [overlap(kv(2, 0, 4), kv(8, rank, 4)) for rank in (2, 3)] == [((8, 0, 8), (24, 8, 8))] * 2
    assert overlap(kv(4, 1, 1), kv(2, 0, 1), turn=0) == ()
    assert overlap(kv(4, 0, 1), kv(2, 0, 1)) == ((0, 0, 16),)


def test_only_common_layers_move_and_neighbours_join() -> None:
    """rank-06: stages [0, 12) and [8, 16): layers 8 to 11, as one fragment; equal shapes: the whole page."""
    assert overlap(kv(1, 0, 2, layers=tuple(range(12))), kv(1, 0, 2, layers=tuple(range(8, 16)))) == ((256, 0, 128),)
    assert overlap(kv(2, 1, 4), kv(2, 1, 4)) == ((0, 0, 32),)
    assert overlap(kv(1, 0, 2), kv(1, 0, 2, layers=(7,))) == ()


def test_token_major_pages_are_cut_row_by_row() -> None:
    """rank-07: 3 tokens, 2 heads on one rank to one head on two: one fragment per token and buffer."""
    fragments = overlap(kv(1, 0, 2, rows=3), kv(2, 1, 2, rows=3))
    assert fragments == ((8, 0, 8), (24, 8, 8), (40, 16, 8), (56, 24, 8), (72, 32, 8), (88, 40, 8))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (PageShape((0,), (Section("k", 16),)), "sections"),
        (PageShape((0,), (Section("k", 16, Shard(3)), Section("v", 16, Shard(3)))), "shards do not divide"),
        (PageShape((0,), (Section("k", 24), Section("v", 24))), "bytes over all shards"),
        (PageShape((0,), (Section("k", 32, rows=2), Section("v", 32, rows=2))), "1 and 2 rows"),
    ],
)
def test_layouts_that_cannot_map_are_refused_with_a_reason(target: PageShape, reason: str) -> None:
    """rank-08: other sections, shards that do not divide, other totals, other rows."""
    source = PageShape((0,), (Section("k", 16, Shard(2)), Section("v", 16, Shard(2))))
    assert reason in (misfit(source, target) or "")
    with pytest.raises(InputError, match=reason):
        overlap(source, target)


def vote(completed: Ids = (), failed: Ids = (), cancelled: Ids = (), quiet: Ids = ()) -> Vote:
    return Vote(*(frozenset(map(str, names)) for names in (completed, failed, cancelled, quiet)))


def test_ranks_decide_together() -> None:
    """rank-09: one rank cancels 8, one fails 9, all complete 7; 8 is not quiet everywhere: it is kept."""
    votes = [vote((7, 8), quiet=(7, 8, 9)), vote((7,), (9,), (8,), (7, 8, 9)), vote((7, 8, 9), quiet=(7, 9))]
    decided = agree(votes)
    assert [set(ids) for ids in (decided.completed, decided.failed, decided.cancelled)] == [{"7"}, {"9"}, {"8"}]
    assert decided.retired == {"7", "9"}
    assert agree([]).retired == frozenset()
