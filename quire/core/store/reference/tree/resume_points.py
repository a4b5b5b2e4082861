"""Where a request is likely to resume: where a text ends or parts, was asked for again, or has a snapshot; and at
guessed or named points of a kind that has earned its pages.

Owns which pages of a window are passed: no request that begins at such a point uses them; and which snapshots are: the
text goes on from them in one way only, to a later snapshot. Owns also which blocks are cut off: no request can resume
there, whatever was expected. Knows nothing of slots, nor of when that is looked at.

    b---b---b---b---b---b---P---b---b---P       P: resume points; with a tail of 3
            passed  #   #   #   #   #   #
"""

from collections.abc import Iterator
from typing import NamedTuple

from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.point_kinds import END, Kinds

FAR = 4096  # blocks; the search for another snapshot goes no further
FAR_BACK = 512  # and for the point before one that was resumed at


class Reads(NamedTuple):
    """What is read at a point besides every block: of each of these groups so many right before it."""

    tails: tuple[tuple[int, int], ...]  # group, blocks
    block_size: int


class Window(NamedTuple):
    """What a group with a window reads before a point, in blocks."""

    tail: int
    sink: int
    block_size: int
    states: tuple[int, ...]  # the state groups beside it: no request resumes without their snapshots
    kinds: Kinds
    reads: Reads


def is_point(window: Window, node: Node) -> bool:
    """Whether a request is likely to resume at the end of this block."""
    if window.states:
        ends = bool(node.children) and only_child(window.block_size, node) is None  # with a tail, or in several
        return ends or any(node.pages[group] is not None for group in window.states)
    return window.kinds.is_kept[node.kind] or node.asked or only_child(window.block_size, node) is None


def only_child(block_size: int, node: Node) -> Node | None:
    """The one block that the text goes on with; None where it ends or parts."""
    if len(node.children) != 1:
        return None
    (child,) = node.children.values()
    return child if child.size == block_size else None


def is_passed(window: Window, page: Page) -> bool:
    """Whether no resume point is at a page's block, or so near below it that a window reaches back to the block."""
    node = page.node
    if node is None or node.size < window.block_size or node.depth <= window.sink:
        return False
    for _ in range(window.tail):
        if is_point(window, node):
            return False
        below = only_child(window.block_size, node)
        if below is None:
            break
        node = below
    return True


def is_overtaken(kinds: Kinds, node: Node, group: int) -> bool:
    """Whether a snapshot at this block is passed: a request that continues from here finds a later one."""
    if kinds.is_kept[node.kind]:
        return False
    for _ in range(FAR):
        if len(node.children) != 1 or node.tips:  # it ends or parts here, or a row may yet part
            return False
        (node,) = node.children.values()
        if node.pages[group] is not None:
            return True
    return False


def is_cut_off(reads: Reads, node: Node) -> bool:
    """Whether no request can resume at the end of this whole block: a window or a snapshot is not all there."""
    return node.size == reads.block_size and any(not _has_last(node, group, tail) for group, tail in reads.tails)


def _has_last(node: Node, group: int, tail: int) -> bool:
    """Whether a group has the last so many blocks up to this one."""
    for _ in range(tail):
        if node.pages[group] is None:
            return False
        if node.parent is None or node.parent.parent is None:
            break
        node = node.parent
    return True


def reached_from(node: Node, tail: int, block_size: int) -> Iterator[Node]:
    """The blocks at whose ends a request reads this one, as far as one text goes on."""
    below: Node | None = node
    for _ in range(tail):
        if below is None:
            return
        yield below
        below = only_child(block_size, below)


def is_lost(window: Window, node: Node) -> bool:
    """Whether no request can resume at a block, expected or not: it is cut off. With states one may yet, behind where
    the text ends or parts."""
    states = window.states
    if states and node.children and only_child(window.block_size, node) is None:
        return any(not _has_last(node, group, tail) for group, tail in window.reads.tails if group not in states)
    return is_cut_off(window.reads, node)


def ways_to_ends(window: Window, node: Node, tail: int, most: int) -> Iterator[tuple[Node, int]]:
    """Blocks that were read where a page of this one was, the last first, and how far it is from each down to one at
    which a request can resume: so many blocks, or `most`, farther than any window reads. Ends above where one can."""
    below = list(reached_from(node, tail + most - 1, window.block_size))
    way = most
    for nth in reversed(range(len(below))):
        way = min(way + 1, most) if is_lost(window, below[nth]) else 0
        if nth < tail:
            yield below[nth], way
    for _ in range(most - 1):
        above = node.parent
        if above is None or above.parent is None or only_child(window.block_size, above) is not node:
            return
        if not is_lost(window, above):
            return
        node, way = above, min(way + 1, most)
        yield node, way


def snapshot_before(node: Node, group: int) -> Page | None:
    """The last snapshot before this block: a later one has come, or texts part behind it."""
    for _ in range(FAR):
        if node.parent is None:
            return None
        node = node.parent
        if node.parent is not None and node.pages[group] is not None:
            return node.pages[group]
    return None


def ask_again(kinds: Kinds, block_size: int, node: Node) -> None:
    """A prompt ends at this block: if the text is known to go on, it may be asked for once more."""
    if node.children and not node.asked:
        learn_parting(kinds, block_size, node)
        node.asked = True


def set_kind(kinds: Kinds, node: Node, kind: int) -> None:
    """A point of a kind is at this block, unless one is known there that says more."""
    if kind and (kind > node.kind if kind >= END else not node.kind):
        node.kind = kind
        kinds.pay(kind)


def learn_parting(kinds: Kinds, block_size: int, node: Node) -> None:
    """A request resumes at this block, or would, where one text went on in one way: which kind of point would serve?"""
    if node.parent is None or node.asked or only_child(block_size, node) is None:
        return  # it is a point anyway
    above, found = node, None
    for _ in range(FAR_BACK):
        if above.parent is None or (above is not node and (above.asked or only_child(block_size, above) is None)):
            break
        if found is None and above.kind:
            found = above
        above = above.parent
    if found is not None:
        kinds.earn(found.kind, found.depth - above.depth)
