"""What a group needs and remembers, in numbers: full attention, windows and recurrent state differ in nothing else.

Owns the arithmetic of blocks and columns. Knows nothing of pages.

               tail  sink  keep  current
    full        -1     0    -1      0      resumes from all blocks, forgets none
    window       n     s     n      0      resumes from the last n and the first s; a row forgets those between
    state        1     0     0      1      resumes from one snapshot; a row has its current state, outside its columns
"""

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.store.interface import GroupNumbers

ALL = -1
MAX_TIERS = 8


class Group(NamedTuple):
    """A group's numbers, in blocks; `extra` in tokens."""

    tail: int  # right before a boundary, needed to resume there; -1: all
    sink: int  # leading ones, needed to resume anywhere
    keep: int  # right before the committed boundary, held on by a row; -1: all
    every: int  # of a state group: between snapshots while growing; 0: none
    extra: int  # room behind a row's length
    current: int  # 1: a state group

    @property
    def is_bounded(self) -> bool:
        """Whether columns leave a row as it goes on."""
        return self.keep != ALL

    def first_needed(self, blocks: int) -> int:
        """Where the tail of a boundary begins."""
        return 0 if self.tail == ALL else max(0, blocks - self.tail)

    def needed(self, blocks: int) -> list[int]:
        """Blocks needed at a boundary, ascending."""
        first = self.first_needed(blocks)
        return [*range(min(self.sink, first)), *range(first, blocks)]

    def front(self, blocks: int) -> int:
        """First column that has not left a row which resumes at this boundary."""
        if not self.is_bounded:
            return 0
        return blocks if self.current else max(self.sink, self.first_needed(blocks))

    def columns(self, length: int, block_size: int) -> int:
        """Columns of a row of this length; a snapshot stands at the end of a full block only."""
        return length // block_size if self.current else -(-(length + self.extra) // block_size)

    def longest(self, columns: int, block_size: int) -> int:
        """The longest a row with so many columns can be."""
        return (columns + 1) * block_size - 1 if self.current else columns * block_size - self.extra

    def takes_page(self, column: int, keep: bool) -> bool:
        """Whether a column that a row grows by gets a page; `keep`: the row's blocks become findable."""
        return not self.current or (keep and self.every > 0 and (column + 1) % self.every == 0)


def check_groups(groups: Sequence[GroupNumbers]) -> None:
    """Refuse numbers that mean nothing."""
    num_tiers = {len(slots) for *_, slots in groups}
    if len(num_tiers) != 1 or not 1 <= num_tiers.copy().pop() <= MAX_TIERS:
        raise ValueError(f"groups must have the same 1 to {MAX_TIERS} tiers, not {sorted(num_tiers)}")
    for *numbers, slots in groups:
        group = Group(*numbers)
        if sum(slots) < 1 or min(slots) < 0 or not _makes_sense(group):
            raise ValueError(f"group ({group}, slots {list(slots)}) has a number out of range")


def check_homes(groups: Sequence[GroupNumbers], pools: Sequence[int] | None) -> list[int]:
    """The pool of every group, by default its own; refuse numbers that leave one out, or sizes that differ in one."""
    homes = list(range(len(groups)) if pools is None else pools)
    if len(homes) != len(groups) or sorted(set(homes)) != list(range(len(set(homes)))):
        raise ValueError(f"pools {homes} of {len(groups)} groups: number them from 0, one for each group")
    for home, (*_, slots) in zip(homes, groups, strict=True):
        if list(groups[homes.index(home)][-1]) != list(slots):
            raise ValueError(f"pool {home} has slots {list(slots)} for one group and others for another")
    return homes


def _makes_sense(group: Group) -> bool:
    if min(group.tail, group.keep) < ALL or min(group.sink, group.every, group.extra) < 0:
        return False
    if group.tail == ALL and group.is_bounded:
        return False  # forgets what it needs
    alone = (group.tail, group.sink, group.keep, group.extra) == (1, 0, 0, 0)
    return group.current == 0 or (group.current == 1 and alone)
