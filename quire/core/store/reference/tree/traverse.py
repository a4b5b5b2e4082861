"""Ways through the tree: down a chain's blocks (found, or made), up from a node, through a subtree.

Owns the order in which nodes are met. Knows nothing of what is done to them.
"""

from collections.abc import Iterator

from quire.core.store.reference.keys.chain import Chain
from quire.core.store.reference.tree.node import Node
from quire.core.store.reference.tree.tree import Tree


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
