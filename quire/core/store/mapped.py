"""What the numbers of a map mean: states of slots, columns of the arrays that both stores fill. Data only."""

from enum import IntEnum


class SlotState(IntEnum):
    """What a slot of a pool is used for; in the words of Usage, `held` is OPEN, HELD and COMING together."""

    EMPTY = 0
    OPEN = 1  # a page that is being filled, or one that belongs to one sequence alone
    HELD = 2  # a page of the tree that is in use
    CLAIMED = 3  # cached, and kept for a request that comes next; idle in the words of Usage
    IDLE = 4  # cached, and not in use
    SHADOW = 5  # a second copy of a page that also lies in a faster tier
    COMING = 6  # a background plan fills it


class SlotColumn(IntEnum):
    """Columns of `Store.map_slots`."""

    STATE = 0
    NODE = 1  # the store's own number of the page's block, -1: none
    HOLDERS = 2
    USES = 3  # -1: they are not counted


class NodeColumn(IntEnum):
    """Columns of `Store.map_nodes`."""

    NODE = 0
    PARENT = 1  # -1: it is a root
    TOKENS = 2
    TIPS = 3  # sequences whose last whole block it is
    HOLDERS = 4  # most of its pages' holders
    USES = 5  # and of their uses; -1: they are not counted
