"""Where somebody may be expected to resume: where a text ends or parts, was asked for again, or has a snapshot.

Owns which pages of a window are passed: of use to nobody who begins at such a point; and which snapshots are: the text
goes on from them in one way only, to a later snapshot. Knows nothing of slots, nor of when that is looked at.

    b---b---b---b---b---b---P---b---b---P       P: resume points; with a tail of 3
            passed  #   #   #   #   #   #
"""

from typing import NamedTuple

from quire.core.store.twin.tree.node import Node, Page

FAR = 4096  # blocks; nobody looks further for another snapshot


class Window(NamedTuple):
    """What a group with a window reads before a point, in blocks."""

    tail: int
    sink: int
    block_size: int
    states: tuple[int, ...]  # the state groups beside it: nobody resumes without their snapshots


def is_point(window: Window, node: Node) -> bool:
    """Whether somebody may be expected to resume at the end of this block."""
    if window.states:
        ends = bool(node.children) and only_child(window, node) is None  # with a tail, or in several
        return ends or any(node.pages[group] is not None for group in window.states)
    return node.asked or not node.children or only_child(window, node) is None


def only_child(window: Window, node: Node) -> Node | None:
    """The one block that the text goes on with; None where it ends or parts."""
    if len(node.children) != 1:
        return None
    (child,) = node.children.values()
    return child if child.size == window.block_size else None


def is_passed(window: Window | None, page: Page) -> bool:
    """Whether no resume point is at a page's block, or so near below it that a window reaches back to the block."""
    node = page.node
    if window is None or node is None or node.size < window.block_size or node.depth <= window.sink:
        return False
    for _ in range(window.tail):
        if is_point(window, node):
            return False
        below = only_child(window, node)
        if below is None:
            break
        node = below
    return True


def is_overtaken(node: Node, group: int) -> bool:
    """Whether a snapshot at this block is passed: who goes on from here finds a later one."""
    for _ in range(FAR):
        if len(node.children) != 1 or node.tips:  # it ends or parts here, or a row may yet part
            return False
        (node,) = node.children.values()
        if node.pages[group] is not None:
            return True
    return False


def snapshot_before(node: Node, group: int) -> Page | None:
    """The last snapshot before this block: a later one has come, or texts part behind it."""
    for _ in range(FAR):
        if node.parent is None:
            return None
        node = node.parent
        if node.parent is not None and node.pages[group] is not None:
            return node.pages[group]
    return None


def ask_again(node: Node) -> None:
    """A prompt ends at this block: if the text is known to go on, it may be asked for once more."""
    node.asked = node.asked or bool(node.children)
