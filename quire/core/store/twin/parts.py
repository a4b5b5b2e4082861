"""What one store is made of, in one place, so that each idea can be a module of functions over it.

Owns nothing but the list. `now` is the last time the store was told: for pages that become idle in a call without one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.store.twin.log import Events, Moves
from quire.core.store.twin.pool import Pool, Rules
from quire.core.store.twin.reach import Reach
from quire.core.store.twin.table import Table
from quire.core.store.twin.tree import Tree

NO_ROOM = -1  # what a call answers that cannot have all its pages and has changed nothing


@dataclass(slots=True)
class Parts:
    """A store's collaborators."""

    rules: Rules
    reaches: Sequence[Reach]
    tree: Tree
    moves: Moves
    events: Events
    pools: Sequence[Pool]
    table: Table
    now: int = 0
    inherit: bool = True  # a replaced page's copies may be trusted: no plan is under way
