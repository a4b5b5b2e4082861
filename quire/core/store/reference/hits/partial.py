"""The partial hit: the block that shares some tokens of the next one.

Owns which child of a node is the best, and how a row gets its page: taken over by a sole user, else copied before it is
written (copy on write; that of forks is in `rows/fork`). Knows nothing of the full blocks before it.
"""

from bisect import bisect_right
from collections.abc import Iterator

from quire.core.store.reference.hits.walk_result import Hit
from quire.core.store.reference.keys.chain import WIDTH, common_tokens
from quire.core.store.reference.moves.attach import detach
from quire.core.store.reference.moves.columns import onboard
from quire.core.store.reference.moves.evict import copy_part, new_page, unbury
from quire.core.store.reference.pools.listing import is_near
from quire.core.store.reference.pools.pool import Pool
from quire.core.store.reference.pools.state import State
from quire.core.store.reference.tree.node import Node, Page

MAX_EXAMINED = 64


def best_partial(parent: Node, query: bytes, policy: int, slow: int) -> tuple[Node | None, int]:
    """The best child that shares leading tokens with `query`, and how many; policy 1: only idle leaves."""
    best: Node | None = None
    matched = 0
    for child, common in _outward(parent, query):
        if best is not None and common < matched:
            break
        if qualifies(child, policy, slow) and (best is None or merit(child) < merit(best)):
            best, matched = child, common
    return best, matched


def longest_tail(parent: Node, query: bytes, policy: int, slow: int) -> Node | None:
    """The longest child, less than a block, that is a prefix of `query`: its state is the one after those tokens."""
    prefixes = (query[:end] for end in range(len(query), 0, -WIDTH))
    found = (parent.children[prefix] for prefix in prefixes if prefix in parent.children)
    return next((child for child in found if qualifies(child, policy, slow)), None)


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


def nearest_common(parent: Node, query: bytes) -> int:
    """The most leading tokens that any child shares with `query`: one of its neighbours in their order has them."""
    place = bisect_right(parent.order, query)
    return max((common_tokens(other, query) for other in parent.order[max(0, place - 1) : place + 1]), default=0)


def qualifies(child: Node, policy: int, slow: int) -> bool:
    return all(is_near(page, slow) for page in child.pages) and (
        policy == 2 or (not child.children and not child.is_held)
    )


def merit(child: Node) -> tuple[bool, int, int]:
    """Lower is better: can be taken over in place, then hotter, then the lower page id."""
    page = child.pages[0]
    assert page is not None
    in_place = not child.children and not child.is_held and page.hottest == 0
    return (not in_place, page.hottest, page.number)


def may_take_over(hit: Hit) -> bool:
    """The source is an idle leaf without other claims."""
    node = hit.source_node
    if node is None or node.children or not node.alive:
        return False
    return all(page.is_idle and page.claims == 1 and page.stays == 0 for page in hit.source_pages)


def take_source(state: State, pool: Pool, page: Page, retention: tuple[int, int]) -> Page:
    """The source's page leaves the tree and becomes a row's open page, on the device and nowhere else."""
    pool.unclaim_page(page)
    pool.hold_page(page)
    pool.use_page(page)
    if page.hottest > 0:
        onboard(state, pool, page)
    if page.node is not None:
        unbury(state, pool, page.node)
    detach(state, pool, page, page.hottest)
    pool.drop_shadows(page)
    page.priority, page.duration = retention
    return page


def copy_source(state: State, pool: Pool, source: Page, tokens: int, retention: tuple[int, int]) -> Page:
    """A new page of a row gets the matched tokens of the source; the claim on that ends."""
    page = new_page(state, pool, *retention)
    copy_part(state, pool, source, page, tokens)
    pool.use_page(source)
    if pool.cells is not None and source.is_idle:
        pool.relist(source)
    pool.unclaim_page(source)
    return page
