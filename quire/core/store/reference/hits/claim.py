"""Claims: they keep what a hit needs from being evicted.

Owns the holds of phase 1. Moves nothing, allocates nothing, changes no order; knows nothing of rows.
"""

from collections.abc import Sequence

from quire.core.store.interface import Need, SourceState
from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.tree.node import Page


def claim(pools: Sequence[Pool], hit: Hit, needs: Sequence[Need] | None = None, stays: bool = False) -> None:
    """Keep pages from being evicted: those that `blocks` needs, or those of `needs` that the walk found.

    With `stays` their copies below the device stay where they are, too: they are read there.
    """
    if hit.claimed or hit.row >= 0:
        raise ValueError("this hit is claimed already")
    if needs is not None and (hit.source_node is not None or len(needs) != len(pools)):
        raise ValueError(f"needs are one per group ({len(pools)}), of a hit without a partial block")
    held = [hit.pages_for(pool.group, needs) for pool in pools]
    hit.source_pages = hit.pages_of_source()
    hit.pages_held = held
    for pool, page in claimed_pages(pools, hit):
        pool.claim_page(page)
        if stays:
            pool.keep_page(page)
    hit.stays = stays
    hit.mark(True, None if needs is None else tuple(needs))


def unclaim(pools: Sequence[Pool], hit: Hit) -> None:
    """Give a claim back, as if it had never been made."""
    if not hit.claimed:
        raise ValueError("this hit is not claimed")
    for pool, page in claimed_pages(pools, hit):
        if hit.stays:
            pool.unkeep_page(page)
        pool.unclaim_page(page)
    hit.pages_held, hit.source_pages = [], []
    hit.mark(False, None)


def claimed_pages(pools: Sequence[Pool], hit: Hit) -> list[tuple[Pool, Page]]:
    """Every page the claim is on, with its pool."""
    full = [(pool, page) for pool, pages in zip(pools, hit.pages_held, strict=True) for page in pages]
    return full + [(pools[group], page) for group, page in enumerate(hit.source_pages)]


def source_state(hit: Hit) -> SourceState:
    """Of the source now: is a leaf; and per group: its page is held, its claims, its hottest tier."""
    node = hit.source_node
    if node is None:
        return 0, (), (), ()
    pages = hit.source_pages or [page for page in node.pages if page is not None]
    held, claims = (int(page.holders > 0) for page in pages), (page.claims for page in pages)
    is_leaf = node.alive and not node.children and not any(page.stays for page in pages)  # else it is not taken over
    return int(is_leaf), tuple(held), tuple(claims), tuple(page.hottest for page in pages)
