"""Offers: a row's pages take their places in the tree.

Owns who gets a node's place when two rows have computed the same block. Knows nothing of when a row offers.
"""

from collections.abc import Sequence

from quire.core.store.twin.page import Page
from quire.core.store.twin.parts import Parts
from quire.core.store.twin.pool import Pool
from quire.core.store.twin.tree import Node


def offer(parts: Parts, pool: Pool, nodes: Sequence[Node], pages: Sequence[Page | None]) -> tuple[int, int]:
    """Put open pages on their nodes; how many got one, and how many found it taken. A run is told as one."""
    attached = refused = 0
    run: list[Node] = []
    for node, page in zip(nodes, pages, strict=True):
        other = node.pages[pool.group]
        if page is not None and page.is_open and other is None:
            pool.attach(page, node)
            run.append(node)
            attached += 1
            continue
        _tell(pool, run)
        run = []
        if page is None or other is None or not page.is_open:
            continue  # a hole, or a page that has its node already
        if _is_cold_duplicate(other) and page.slots[0] >= 0:
            _replace(pool, other, page, parts.inherit)
        else:
            refused += 1
    _tell(pool, run)
    return attached, refused


def store(pool: Pool, page: Page, node: Node) -> None:
    """An open page takes an empty place, told by itself."""
    pool.attach(page, node)
    _tell(pool, [node])


def _tell(pool: Pool, run: list[Node]) -> None:
    if run:
        pool.events.stored(pool.group, run)


def _is_cold_duplicate(page: Page) -> bool:
    return page.is_idle and page.claims == 0 and page.slots[0] < 0


def _replace(pool: Pool, old: Page, new: Page, inherit: bool) -> None:
    """A device page takes the node of an idle page that has only colder copies; those become its shadows."""
    node, hottest, priority = old.node, old.hottest, old.priority
    assert node is not None
    for tier, slot in enumerate(old.slots):
        if slot < 0:
            continue
        if pool.rules.shadows and inherit and new.slots[tier] < 0:
            pool.strip(old, tier)
            pool.add_copy(new, tier, slot)
            pool.orders[tier].push_shadow(slot)
        else:
            pool.discard_copy(old, tier)
    old.node = None
    pool.free_id(old)
    pool.attach(new, node)
    pool.events.moved(pool.group, node, hottest, 0)
    pool.events.retained(pool.group, node, priority, new.priority)
