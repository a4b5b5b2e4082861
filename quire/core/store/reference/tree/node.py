"""The two records that know each other: a node (a block under its parent, or a root) and the pages on it, by group.

Owns their fields and the questions about one of them. Knows nothing of orders nor of who is whose child: the pool and
the tree keep the records in step with those.
"""

from collections.abc import Iterator

from quire.core.store.reference.keys.chain import WIDTH

DEFAULT_PRIORITY = 35
NEVER = -1  # of durations and expiries


class Page:
    """The KV of one block for one group: who holds it, where its copies are, how long it should stay."""

    __slots__ = (
        "claims", "copying", "duration", "expiry", "group", "holders", "node", "number", "priority", "reuse", "slots",
        "stamp", "stays", "turn", "unwanted", "used", "uses", "watched",
    )  # fmt: skip

    def __init__(self, number: int, num_tiers: int) -> None:
        self.number = number
        self.group = 0  # whose page it is: groups may share a pool
        self.stamp = 0
        self.node: Node | None = None
        self.holders = 0
        self.claims = 0
        self.stays = 0  # who needs its colder copies to stay where they are: finds, background copies, prefetches
        self.copying = False  # a background copy of it is being made
        self.slots = [-1] * num_tiers
        self.priority = DEFAULT_PRIORITY
        self.duration = NEVER
        self.expiry = NEVER
        self.turn = 0  # when the expiry was noted
        self.unwanted = False  # a hint said that it never comes back; of an order without classes
        self.uses = 0  # admissions that used its block; this and what follows is kept for the adaptive order only
        self.reuse = 0  # its class
        self.used = 0  # when an admission last used it
        self.watched = False  # the order is judged by it

    @property
    def hottest(self) -> int:
        """Tier of the hottest copy, -1 without copies."""
        for tier, slot in enumerate(self.slots):
            if slot >= 0:
                return tier
        return -1

    @property
    def is_idle(self) -> bool:
        return self.node is not None and self.holders == 0

    @property
    def is_open(self) -> bool:
        return self.node is None and self.holders > 0

    @property
    def is_free(self) -> bool:
        return self.node is None and self.holders == 0 and self.claims == 0


class Node:
    """A block under its parent; a root is a node without one."""

    __slots__ = (
        "alive", "asked", "children", "depth", "hash", "identity", "key", "kids", "kind", "lasting", "number", "order",
        "pages", "parent", "root", "tips",
    )  # fmt: skip

    def __init__(self, number: int, identity: bytes, parent: "Node | None", num_groups: int) -> None:
        self.number = number
        self.identity = identity
        self.parent = parent
        self.root: Node = self if parent is None else parent.root
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []  # the children's identities, sorted
        self.pages: list[Page | None] = [None] * num_groups
        self.tips = 0
        self.asked = False  # a prompt ended there while the text was known to go on
        self.kind = 0  # of resume point that was guessed or named there
        self.hash = 0
        self.key = 0  # private, of the chain up to here; kept where what is gone is remembered
        self.kids: list[
            list[int]
        ] = []  # by group and tier: children whose hottest copy is there; of the adaptive order
        self.lasting = 0  # its number for those who keep blocks beyond the process; 0: none yet
        self.alive = True

    @property
    def size(self) -> int:
        return len(self.identity) // WIDTH

    @property
    def is_held(self) -> bool:
        """Whether a page of it is held, or must stay where it is."""
        return any(page is not None and (page.holders > 0 or page.stays > 0) for page in self.pages)

    def children_in_order(self) -> Iterator["Node"]:
        return (self.children[identity] for identity in self.order)
