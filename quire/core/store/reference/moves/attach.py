"""Pages take their places in the tree and leave them.

Owns how a page becomes the page of a node and stops being it, and which page gets the place when two rows have computed
the same block. Knows nothing of when a row offers its pages.
"""

from collections.abc import Sequence

from quire.core.store.reference.moves.events import facts_of, log_moved, log_retained, log_stored
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page
from quire.core.store.reference.tree.resume_points import snapshot_before


def attach(pool: Pool, page: Page, node: Node, block_size: int, before: int = -1) -> None:
    """An open page becomes the page of a node, which had one in tier `before` (-1: none); the caller logs it."""
    node.pages[pool.group] = page
    page.node = node
    pool.note_slot(len(page.slots) - 1, page.slots[-1])
    if pool.cells is not None:
        pool.cells.inserted += 1
        if node.size == block_size:
            pool.cells.begin_watch(page, node)
        pool.child_moved(node, before, page.hottest)
    if pool.overtakes and before < 0:
        pool.rank_anew(snapshot_before(node, pool.group))


def attach_alone(state: State, pool: Pool, page: Page, node: Node) -> None:
    """An open page takes an empty place, logged by itself."""
    attach(pool, page, node, state.rules.block_size)
    log_stored(state, pool, [node])


def detach(state: State, pool: Pool, page: Page, tier: int, quiet: bool = False) -> None:
    """A committed page, last logged in `tier`, leaves its node, which goes too if it has no other use.

    Quiet: another event will report it.
    """
    node = page.node
    assert node is not None
    node.pages[pool.group] = None
    page.node = None
    if pool.cells is not None:
        pool.cells.end_watch(page)
    pool.note_slot(len(page.slots) - 1, page.slots[-1])
    pool.child_moved(node, tier, -1)
    if state.log.on and not quiet:
        state.log.log_removed(pool.group, (node.hash, facts_of(state, page, node, tier)))
    state.tree.prune(node)


def attach_row(state: State, pool: Pool, nodes: Sequence[Node], pages: Sequence[Page | None]) -> tuple[int, int]:
    """Put a row's open pages on their nodes; how many got one, and how many found it taken. A run is logged as one."""
    attached = refused = 0
    run: list[Node] = []
    for node, page in zip(nodes, pages, strict=True):
        other = node.pages[pool.group]
        if page is not None and page.is_open and other is None:
            attach(pool, page, node, state.rules.block_size)
            run.append(node)
            attached += 1
            continue
        log_stored(state, pool, run)
        run = []
        if page is None or other is None or not page.is_open:
            continue  # a hole, or a page that has its node already
        if displaces(page, other):
            replace_page(state, pool, other, page)
        else:
            refused += 1
    log_stored(state, pool, run)
    return attached, refused


def is_unused(page: Page) -> bool:
    """Whether a committed page has neither holders nor claims, and need not stay where it is."""
    return page.is_idle and page.claims == 0 and page.stays == 0


def displaces(page: Page, other: Page) -> bool:
    """Whether an open page shall replace the page of its block."""
    return is_unused(other) and other.slots[0] < 0 and page.slots[0] >= 0


def replace_page(state: State, pool: Pool, old: Page, new: Page) -> None:
    """A page takes the node of an idle page that has only colder copies; those become its shadows.

    A copy that a plan under way may still fail to write is not trusted; a copy in the slow tier is.
    """
    node, hottest, priority = old.node, old.hottest, old.priority
    assert node is not None
    for tier, slot in enumerate(old.slots):
        if slot < 0:
            continue
        trusted = tier == state.rules.slow or (state.rules.shadows and state.inherit)
        if trusted and new.slots[tier] < 0:
            pool.remove_copy(old, tier)
            pool.put_copy(new, tier, slot)
            pool.orders[tier].push_shadow(slot)
        else:
            pool.discard_copy(old, tier)
    old.node = None
    if pool.cells is not None:
        pool.cells.end_watch(old)
    pool.push_page(old)
    attach(pool, new, node, state.rules.block_size, hottest)
    log_moved(state, pool, new, hottest, new.hottest)
    log_retained(state, pool, new, priority, new.priority)
