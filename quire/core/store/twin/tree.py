"""The tree of committed blocks: roots, nodes, children in order, pruning, partial candidates.

Owns who is whose child and which nodes exist. Reads the pages on a node, never changes them; knows nothing of rows
beyond the number of tips on a node.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from quire.core.store.twin.chain import WIDTH, common_tokens, decode
from quire.core.store.twin.hashing import event_hash, halves
from quire.core.store.twin.page import Page

MAX_EXAMINED = 64


class Node:
    """A block under its parent; a root is a node without one."""

    __slots__ = ("alive", "children", "depth", "hash", "identity", "number", "order", "pages", "parent", "root", "tips")

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
        self.hash = 0
        self.alive = True

    @property
    def size(self) -> int:
        return len(self.identity) // WIDTH

    @property
    def is_held(self) -> bool:
        return any(page is not None and page.holders > 0 for page in self.pages)

    def has_all_pages(self) -> bool:
        return all(page is not None for page in self.pages)

    def children_in_order(self) -> Iterator["Node"]:
        return (self.children[identity] for identity in self.order)

    def covers(self, tail: bytes, group: int) -> bool:
        """Whether a child that begins with `tail` has a page of `group`."""
        for place in range(bisect_left(self.order, tail), len(self.order)):
            identity = self.order[place]
            if not identity.startswith(tail):
                return False
            if self.children[identity].pages[group] is not None:
                return True
        return False


class Tree:
    """All roots and the nodes under them."""

    __slots__ = ("_hashed", "_next", "_num_groups", "_seed", "_touched", "identity_bytes", "num_nodes", "roots")

    def __init__(self, num_groups: int, hashed: bool, seed: bytes) -> None:
        self._num_groups = num_groups
        self._hashed = hashed
        self._seed = halves(seed)  # of event hashes
        self._next = 0
        self._touched: dict[Node, None] = {}  # roots that lost a child or a tip, in the order of the first loss
        self.roots: dict[int, Node] = {}  # in the order of creation
        self.num_nodes = 0  # without the roots
        self.identity_bytes = 0

    def _make(self, identity: bytes, parent: Node | None) -> Node:
        node = Node(self._next, identity, parent, self._num_groups)
        self._next += 1
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

    def add_tip(self, node: Node) -> None:
        node.tips += 1

    def drop_tip(self, node: Node) -> None:
        node.tips -= 1
        if node.parent is None and node.alive:
            self._touched.setdefault(node)
        self.prune(node)


def ancestor(node: Node, depth: int) -> Node:
    """The node at `depth` on the way from the root to `node`."""
    while node.depth > depth:
        assert node.parent is not None
        node = node.parent
    return node


def path(tip: Node, first: int) -> list[Node]:
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


def partial_candidate(parent: Node, query: bytes, policy: int) -> tuple[Node | None, int]:
    """The best child that shares leading tokens with `query`, and how many; policy 1: only idle leaves."""
    best: Node | None = None
    matched = 0
    for child, common in _outward(parent, query):
        if best is not None and common < matched:
            break
        if _qualifies(child, policy) and (best is None or _rank(child) < _rank(best)):
            best, matched = child, common
    return best, matched


def _outward(parent: Node, query: bytes) -> Iterator[tuple[Node, int]]:
    """Children from the query's place outward, longest common prefix first, at most MAX_EXAMINED."""
    order = parent.order
    right = bisect_right(order, query)
    left = right - 1
    for _ in range(MAX_EXAMINED):
        on_left = common_tokens(order[left], query) if left >= 0 else 0
        on_right = common_tokens(order[right], query) if right < len(order) else 0
        if on_left == on_right == 0:
            return
        if on_left >= on_right:
            yield parent.children[order[left]], on_left
            left -= 1
        else:
            yield parent.children[order[right]], on_right
            right += 1


def _qualifies(child: Node, policy: int) -> bool:
    return child.has_all_pages() and (policy == 2 or (not child.children and not child.is_held))


def _rank(child: Node) -> tuple[bool, int, int]:
    """Lower is better: can be taken over in place, then hotter, then the lower page id."""
    page = child.pages[0]
    assert page is not None
    in_place = not child.children and not child.is_held and page.hottest == 0
    return (not in_place, page.hottest, page.number)
