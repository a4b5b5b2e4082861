"""Ranks: which ranks of two instances meet, and how what each of them saw becomes one decision. Knows no bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.records.errors import InputError, say


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of one instance: pipeline stages, data-parallel groups, tensor ranks in each, context ranks.

    A flat rank counts stages, then groups, then tensor ranks, then context ranks, the last one fastest.
    """

    tensor: int = 1
    stages: tuple[int, ...] = (1,)  # layers of every stage
    groups: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        if min(self.tensor, self.groups, self.context, *self.stages, 1) < 1 or not self.stages:
            raise InputError(say(f"ranks {self}", "every number is at least 1", "leave out what there is not"))

    @property
    def num_ranks(self) -> int:
        """All of them."""
        return len(self.stages) * self.groups * self.tensor * self.context

    def rank(self, seat: Seat) -> int:
        """The flat rank of a seat."""
        wide = self.groups * self.tensor
        return (seat.stage * wide + seat.group * self.tensor + seat.tensor) * self.context + seat.context

    def seat(self, rank: int) -> Seat:
        """The seat of a flat rank."""
        if not 0 <= rank < self.num_ranks:
            raise InputError(say(f"rank {rank}", f"there are {self.num_ranks}", "number them from 0"))
        rest, context = divmod(rank, self.context)
        rest, tensor = divmod(rest, self.tensor)
        stage, group = divmod(rest, self.groups)
        return Seat(stage, group, tensor, context)


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank's place in its grid."""

    stage: int = 0
    group: int = 0
    tensor: int = 0
    context: int = 0


class RankPlace(NamedTuple):
    """Which rank of which instance a peer is: the instance's ranks, the data-parallel group, the flat rank."""

    grid: Grid
    group: int
    rank: int

    def is_another_rank_of(self, other: RankPlace) -> bool:
        """Both belong to one group of one instance, and they are not the same rank."""
        return (self.grid, self.group) == (other.grid, other.group) and self.rank != other.rank


class Writers(NamedTuple):
    """Peers that a rank must ask, and how many of them will answer."""

    peers: tuple[str, ...]
    expected: int


def meets(mine: Grid, seat: Seat, theirs: Grid, group: int | None = None) -> tuple[int, ...]:
    """Flat ranks of the other instance that share pages with `seat`; of all its groups when none is given."""
    groups = range(theirs.groups) if group is None else (group,)
    return tuple(
        theirs.rank(Seat(stage, which, tensor, context))
        for which in groups
        for stage in _stages(mine.stages, seat.stage, theirs.stages)
        for tensor in _fold(mine.tensor, seat.tensor, theirs.tensor)
        for context in _fold(mine.context, seat.context, theirs.context)
    )


def _stages(mine: tuple[int, ...], stage: int, theirs: tuple[int, ...]) -> list[int]:
    """Stages whose layers overlap ours."""
    first = sum(mine[:stage])
    last = first + mine[stage]
    edges = [sum(theirs[:nth]) for nth in range(len(theirs) + 1)]
    return [nth for nth in range(len(theirs)) if edges[nth] < last and first < edges[nth + 1]]


def _fold(mine: int, rank: int, theirs: int) -> range:
    """Ranks of `theirs` that cover the same part as `rank` of `mine`."""
    if max(mine, theirs) % min(mine, theirs):
        raise InputError(say(f"{mine} ranks against {theirs}", "neither divides the other", "use sizes that divide"))
    if mine <= theirs:
        ratio = theirs // mine
        return range(rank * ratio, (rank + 1) * ratio)
    only = rank // (mine // theirs)
    return range(only, only + 1)


ONE_RANK = Grid()
ONLY_RANK = RankPlace(ONE_RANK, 0, 0)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a prompt is computed: the peers of an instance by flat rank, and which group of its ranks serves it."""

    peers: tuple[str, ...]
    grid: Grid = ONE_RANK
    group: int | None = 0  # None: not known; all groups are asked, one answers

    def __post_init__(self) -> None:
        if len(set(self.peers)) != self.grid.num_ranks or len(self.peers) != self.grid.num_ranks:
            fact = f"{len(self.peers)} peers, {len(set(self.peers))} different, for {self.grid.num_ranks} ranks"
            raise InputError(say("a source", fact, "name one peer per rank"))
        if self.group is not None and not 0 <= self.group < self.grid.groups:
            fact = f"it has {self.grid.groups} groups of ranks"
            raise InputError(say(f"group {self.group!r} of a source", fact, "number them from 0; None: not known"))

    def denies(self, peer: str, grid: Grid, rank: int) -> str | None:
        """What is wrong when that peer says it is this rank of that grid; None when that is what we think."""
        mine = self.peers.index(peer)
        if (grid, rank) == (self.grid, mine):
            return None
        return f"{peer} is rank {rank} of {grid}, and was asked as rank {mine} of {self.grid}"

    def writers(self, mine: Grid, seat: Seat) -> Writers:
        """Peers that a rank must ask, and how many of them answer."""
        ranks = meets(mine, seat, self.grid, self.group)
        expected = len(meets(mine, seat, self.grid, self.group or 0))
        return Writers(tuple(self.peers[rank] for rank in ranks), expected)


# -- one decision for all ranks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rank saw: session names. Quiet: no peer touches its pages any more."""

    completed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    cancelled: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        ends = f"{len(self.completed)} completed, {len(self.failed)} failed, {len(self.cancelled)} cancelled"
        return f"Vote({ends}, {len(self.quiet)} quiet)"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What holds for all ranks; `retired` ones may be closed everywhere."""

    completed: frozenset[str]
    failed: frozenset[str]
    cancelled: frozenset[str]
    retired: frozenset[str]


def agree(votes: Sequence[Vote]) -> Agreement:
    """One rank is enough to fail or cancel; all are needed to complete, and to be quiet. A timeout does not vote."""
    if not votes:
        return Agreement(*[frozenset[str]()] * 4)
    cancelled = frozenset[str]().union(*(vote.cancelled for vote in votes))
    failed = frozenset[str]().union(*(vote.failed for vote in votes)) - cancelled
    completed = frozenset.intersection(*(vote.completed for vote in votes)) - cancelled - failed
    quiet = frozenset.intersection(*(vote.quiet for vote in votes))
    return Agreement(completed, failed, cancelled, completed | ((cancelled | failed) & quiet))
