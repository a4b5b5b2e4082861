"""Blocks that are cut off, by definition: nobody can resume at their ends, for another group lacks what it reads there.

Groups that need all blocks have no use for the last of them, windows none for what only such points need. Knows nothing
of slots.
"""

from __future__ import annotations

from typing import Any

from fuzzing.oracle import reach
from fuzzing.oracle.cells import EVICTED
from fuzzing.oracle.page import Page
from fuzzing.oracle.tree import Tree
from fuzzing.world.plain import Path


def tail(pools: Any) -> int:
    """Blocks that a group reads right before where somebody resumes, of those that do not need all; else 0."""
    kind = pools.world.kinds[pools.number]
    return 1 if kind.kind == "state" else max(0, reach.keeps(kind, pools.world.block_size))


def is_cut_off(tree: Tree, path: Path, size: int) -> bool:
    """Whether nobody can resume at the end of a path of whole blocks."""
    lacking = (not tree.has_last(path, group, tail(pools)) for group, pools in tree.groups.items())
    return len(path[-1]) == size and any(lacking)


def detach_evicted(pools: Any, page: Page) -> None:
    """An evicted page stands for nothing now. If it was not passed, nobody resumes where it would be read any more, as
    far as one text goes on."""
    path = page.path
    assert path is not None
    pools.detach(page, EVICTED)
    tree, size = pools.tree, pools.world.block_size
    if pools.cells is None or page.passed or len(path[-1]) < size or not tail(pools):
        return
    read = _one_way(tree, path, tail(pools), size)
    for block in read:
        for group, other in tree.groups.items():
            if other.leaves_only:
                _cut_off(other, tree.page(block, group))
    if path not in tree.exists():
        return  # the text ends earlier now
    windows = [
        (group, other) for group, other in tree.groups.items() if other.world.kinds[other.number].kind == "window"
    ]
    most = max((tail(other) for _, other in windows), default=0)
    above = _one_way_up(tree, path, most - 1, size)
    lost = [_is_lost(tree, block, size) for block in above]
    above = above[: lost.index(False)] if False in lost else above
    for block in [*reversed(read), *above]:
        for group, other in windows:
            if other is not pools:
                _pass_over(other, tree.page(block, group), block)


def _one_way(tree: Tree, path: Path, blocks: int, size: int) -> list[Path]:
    """A path and those below it, at most so many, while the text goes on in one way with whole blocks."""
    found = [path]
    while len(found) < blocks:
        below = tree.next_blocks(found[-1])
        if len(below) != 1 or len(below[0][-1]) < size:
            break
        found.append(below[0])
    return found


def _one_way_up(tree: Tree, path: Path, blocks: int, size: int) -> list[Path]:
    """Paths above, at most so many, from which the text goes on in one way up to here."""
    above = [path[:end] for end in range(len(path) - 1, max(1, len(path) - 1 - blocks), -1)]
    alone = [len(_one_way(tree, other, 2, size)) == 2 for other in above]
    return above[: alone.index(False)] if False in alone else above


def _is_lost(tree: Tree, path: Path, size: int) -> bool:
    """Whether nobody can resume at the end of a path, nor, with states, behind where the text ends or parts."""
    states = [group for group, pools in tree.groups.items() if pools.world.kinds[pools.number].kind == "state"]
    below = tree.next_blocks(path)
    parts = bool(states) and (len(below) > 1 or any(len(other[-1]) < size for other in below))
    asked = [group for group in tree.groups if not (parts and group in states)]
    return any(not tree.has_last(path, group, tail(tree.groups[group])) for group in asked)


def _pass_over(pools: Any, page: Page | None, path: Path) -> None:
    """A page that nobody can use, wherever he begins."""
    size, kind = pools.world.block_size, pools.world.kinds[pools.number]
    if page is None or not page.idle or not page.copies or page.passed or len(path) - 2 < reach.sink(kind, size):
        return
    if all(_is_lost(pools.tree, block, size) for block in _one_way(pools.tree, path, tail(pools), size)):
        pools.cells.reached["of no use"] += 1
        pools.restamp(page.hottest, page.copies[page.hottest])
        page.passed = True


def _cut_off(pools: Any, page: Page | None) -> None:
    """Nobody can resume at the end of a page any more."""
    if pools.cells is None or page is None or not page.idle or not page.copies:
        return
    if not (page.covered or page.passed):
        pools.cells.reached["cut off"] += 1
        pools.restamp(page.hottest, page.copies[page.hottest])
