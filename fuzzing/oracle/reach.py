"""What each kind of group reads and keeps, by definition. Knows no pages."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzing.world.plain import Blocks, Group


def num_blocks(tokens: int, size: int) -> int:
    """Blocks that so many tokens occupy."""
    return -(-tokens // size)


def needed(group: Group, length: int, size: int) -> Sequence[int]:
    """Blocks that must be there to go on after `length` tokens: all it reads, and the one it goes on writing."""
    blocks = range(num_blocks(length, size))
    if group.kind == "state":
        return blocks[-1:]  # a snapshot at the end of block b stands for every token up to there
    if group.kind == "window":
        oldest = length - group.window + 1  # the query itself is the last token of its window
        return [block for block in blocks if block * size < group.sinks or (block + 1) * size > oldest]
    return blocks


def sink(group: Group, size: int) -> int:
    """Leading blocks that never leave a row."""
    return num_blocks(group.sinks, size)


def keeps(group: Group, size: int) -> int:
    """Blocks right before the last final one that a row goes on holding, sinks aside; -1: all."""
    if group.kind == "window":
        return num_blocks(group.window - 1, size)
    return 0 if group.kind == "state" else -1


def bounded(group: Group) -> bool:
    """It forgets."""
    return group.kind in ("window", "state")


def is_stop(group: Group, position: int, marks: tuple[int, ...]) -> bool:
    """A state is kept here."""
    return position > 0 and (position in marks or (group.every > 0 and position % group.every == 0))


def runs(blocks: Sequence[int]) -> Blocks:
    """The same blocks as runs."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if found and found[-1][1] == block:
            found[-1] = (found[-1][0], block + 1)
        else:
            found.append((block, block + 1))
    return tuple(found)
