"""Sizes: how many pages of each layer group fit into a number of bytes. Knows no cache."""

from __future__ import annotations

from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LayerGroup

MOST = 1 << 50  # bytes


def pages_in(num_bytes: int, groups: tuple[LayerGroup, ...], block_size: int, rows: int, chunk: int) -> tuple[int, ...]:
    """Pages per group, so that all hold about equally many tokens of context, and as many as fit.

    A window group holds what `rows` sequences read at once, and the same again for reuse; a state group a current state
    and a snapshot for each row, and then the regular ones.
    """
    if type(num_bytes) is not int:
        raise InputError(say(f"a cache of {shown(num_bytes)} bytes", "that is no whole number", "give bytes as an int"))
    if num_bytes > MOST:
        raise InputError(say(f"a cache of {shown(num_bytes)} bytes", "no machine has as many", "give less"))
    low, high = 0, num_bytes // min(group.page_bytes for group in groups)
    while low < high:
        blocks = (low + high + 1) // 2
        fits = _bytes(blocks, groups, block_size, (rows, chunk)) <= num_bytes
        low, high = (blocks, high) if fits else (low, blocks - 1)
    if low < 2:
        least = _bytes(2, groups, block_size, (rows, chunk))
        raise InputError(say(f"a cache of {num_bytes} bytes", f"two blocks take {least}", "give more memory"))
    return tuple(_pages(low, group, block_size, (rows, chunk)) for group in groups)


def _bytes(blocks: int, groups: tuple[LayerGroup, ...], size: int, load: tuple[int, int]) -> int:
    return sum(_pages(blocks, group, size, load) * group.page_bytes for group in groups)


def _pages(blocks: int, group: LayerGroup, size: int, load: tuple[int, int]) -> int:
    rows, chunk = load
    if group.current:
        regular = blocks * size // group.snapshot_every if group.snapshot_every else 0
        return 2 * rows + 2 + regular
    if group.window is None:
        return blocks
    return min(blocks, 2 * rows * group.running(size) + group.tail(size) + 2 * -(-chunk // size))
