"""What is asked for a row: columns, a reserve and spares per group, retention per block.

Owns the records and their checks. Knows nothing of how it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.store.interface import Int16Array, Int64Array
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY, NEVER


class Ask(NamedTuple):
    """What a row shall have of one group."""

    first: int  # columns from here
    stop: int  # to here shall have pages
    peak: int  # own pages it may have at once until the prompt is finished; 0: none are reserved
    spare: int  # pages kept aside for forks


@dataclass(frozen=True, slots=True)
class Retention:
    """Priority and duration asked per block; -1, or beyond the arrays: nothing is asked."""

    priorities: Int16Array | None
    durations: Int64Array | None

    def asked(self, block: int) -> tuple[int, int] | None:
        if self.priorities is None or block >= len(self.priorities) or self.priorities[block] < 0:
            return None
        return int(self.priorities[block]), NEVER if self.durations is None else int(self.durations[block])

    def of_new(self, block: int) -> tuple[int, int]:
        """Of a page made for a block."""
        return self.asked(block) or (DEFAULT_PRIORITY, NEVER)

    def check(self, blocks: int) -> None:
        for given in (self.priorities, self.durations):
            if given is not None and len(given) < blocks:
                raise ValueError(f"retention of {len(given)} blocks given, {blocks} asked")


def check_asks(asks: Sequence[Ask], retention: Retention, num_groups: int, columns: int) -> None:
    if len(asks) != num_groups:
        raise ValueError(f"{len(asks)} asks given for {num_groups} groups")
    for ask in asks:
        if not 0 <= ask.first <= ask.stop <= columns:
            raise ValueError(f"columns [{ask.first}, {ask.stop}) asked of a row that has {columns}")
        if min(ask.peak, ask.spare) < 0:
            raise ValueError(f"{ask.peak} pages reserved and {ask.spare} to spare, none can be below 0")
    retention.check(max(ask.stop for ask in asks))
