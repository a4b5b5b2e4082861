"""The tree of committed blocks: roots, nodes, children in order, pruning; and the ways through it: down a chain's
blocks (found, or made), up from a node, through a subtree.

Owns who is whose child, which nodes exist, and in which order they are met. Reads the pages on a node, never changes
them; knows nothing of rows beyond the number of tips on a node.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from quire.core.store.reference.keys.chain import Chain, decode, next_key
from quire.core.store.reference.keys.hash import event_hash, read_seed
from quire.core.store.reference.tree.node import Node


class Tree:
    """All roots and the nodes under them."""

    __slots__ = (
        "_hashed", "_keyed", "_next", "_num_groups", "_seed", "_tiers_counted", "_touched", "identity_bytes",
        "num_nodes", "numbered", "roots",
    )  # fmt: skip

    def __init__(self, num_groups: int, hashed: bool, seed: bytes, tiers_counted: int = 0, keyed: bool = False) -> None:
        self._num_groups = num_groups
        self._tiers_counted = tiers_counted  # of a node's children; 0 where no order asks for them
        self._hashed = hashed
        self._keyed = keyed  # nodes know their keys: what is gone is remembered by them
        self._seed = read_seed(seed)  # of event hashes
        self._next = 0
        self._touched: dict[Node, None] = {}  # roots that lost a child or a tip, in the order of the first loss
        self.roots: dict[int, Node] = {}  # in the order of creation
        self.num_nodes = 0  # without the roots
        self.numbered = 0  # the last number that a block got
        self.identity_bytes = 0

    def _make(self, identity: bytes, parent: Node | None) -> Node:
        node = Node(self._next, identity, parent, self._num_groups)
        self._next += 1
        if self._keyed:
            node.key = 0 if parent is None else next_key(parent.key, identity)
        if self._tiers_counted:
            node.kids = [[0] * self._tiers_counted for _ in range(self._num_groups)]
        return node

    def new_root(self, number: int) -> Node:
        root = self._make(b"", None)
        root.hash = number
        self.roots[root.number] = root
        return root

    def root(self, number: int) -> Node:
        if number not in self.roots:
            raise LookupError(f"node {number} is not a root")
        return self.roots[number]

    def free_root(self, number: int) -> None:
        root = self.root(number)
        if root.children or root.tips:
            raise ValueError(f"root {number} has {len(root.children)} children and {root.tips} tips")
        self._forget_root(root)

    def _forget_root(self, root: Node) -> None:
        root.alive = False
        del self.roots[root.number]
        self._touched.pop(root, None)

    def forget_roots(self) -> None:
        for root in list(self.roots.values()):
            self._forget_root(root)

    def dead_roots(self) -> list[int]:
        """Roots without child and tip that lost one since the last call."""
        dead = [root.number for root in self._touched if not root.children and not root.tips]
        self._touched.clear()
        return dead

    def child(self, parent: Node, identity: bytes) -> Node:
        """The child with these tokens, made if missing."""
        found = parent.children.get(identity)
        if found is not None:
            return found
        node = self._make(identity, parent)
        if self._hashed:
            node.hash = event_hash(self._seed, parent.hash, *decode(identity))
        parent.children[identity] = node
        insort(parent.order, identity)
        self.num_nodes += 1
        self.identity_bytes += len(identity)
        return node

    def prune(self, node: Node) -> None:
        """Remove a node that nothing needs, then look at its parent."""
        while node.alive and node.parent is not None:
            if node.children or node.tips or any(page is not None for page in node.pages):
                return
            parent = node.parent
            node.alive = False
            del parent.children[node.identity]
            del parent.order[bisect_left(parent.order, node.identity)]
            self.num_nodes -= 1
            self.identity_bytes -= len(node.identity)
            if parent.parent is None:
                self._touched.setdefault(parent)
            node = parent

    def drop_tip(self, node: Node) -> None:
        node.tips -= 1
        if node.parent is None and node.alive:
            self._touched.setdefault(node)
        self.prune(node)


def extend_path(tree: Tree, chain: Chain, node: Node, first: int, last: int) -> Node:
    """The node of block `last` - 1, the blocks from `first` on found or made below `node`."""
    for block in range(first, last):
        node = tree.child(node, chain.block(block))
    return node


def ancestor(node: Node, depth: int) -> Node:
    """The node at `depth` on the way from the root to `node`."""
    while node.depth > depth:
        assert node.parent is not None
        node = node.parent
    return node


def climb(tip: Node, first: int) -> list[Node]:
    """The nodes of blocks `first` up to the tip's, in order."""
    found: list[Node] = []
    node = tip
    while node.depth > first:
        found.append(node)
        assert node.parent is not None
        node = node.parent
    found.reverse()
    return found


def subtree(top: Node) -> list[Node]:
    """`top` and everything below it, children before parents, siblings in order."""
    found: list[Node] = []
    stack = [top]
    while stack:  # parents before children, siblings reversed; the reverse of that is the post-order
        node = stack.pop()
        found.append(node)
        stack.extend(node.children_in_order())
    found.reverse()
    return found


def below(root: Node) -> Iterator[Node]:
    """Everything below a root, parents before children, siblings in order."""
    stack = list(root.children_in_order())[::-1]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(list(node.children_in_order())[::-1])
