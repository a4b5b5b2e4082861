"""Claim by definition: what is there for a request, group by group, and what of it is held. Knows no slots."""

from __future__ import annotations

from fuzzing.compare import Mismatch
from fuzzing.oracle import reach
from fuzzing.oracle.charge import Charge
from fuzzing.oracle.page import Page
from fuzzing.oracle.pending import lengthen
from fuzzing.oracle.state import Claim, State
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Ask, Blocks, Path

Found = list[dict[int, Page]]  # per group: the page of each block that has one


def find(state: State, ask: Ask, purpose: str) -> Claim:
    """What a request may reuse: all there is of it, less the last blocks that it computes all the same."""
    usable = ask.compute_end - (purpose == "compute")
    usable = usable if ask.reuse_limit is None else min(usable, ask.reuse_limit)
    redo, size = ask.redo if purpose == "compute" else 0, state.world.block_size
    full = find_before(state, ask, purpose, usable, state.partial_hits, bool(redo))
    if redo and state.world.reuse and ask.keeps:
        path = path_of(ask.root, ask.identities[: max(0, full.coming - redo) * size], size)
        coming = longest(state, pages_along(state, path, slow=True), state.tree.depth(path))
    if not redo or not full.start:
        full.coming = coming if redo and full.found else full.coming
        return full
    edge = max(0, full.blocks + (full.source is not None) - redo) * size
    claim = find_before(state, ask, purpose, edge, False, True)
    claim.full, claim.coming = full, coming
    if state.world.has_state:
        path = path_of(ask.root, ask.identities[: usable // size * size], size)
        claim.junction = where_it_parts(state, full, path, usable)
    return claim


def find_before(state: State, ask: Ask, purpose: str, usable: int, partial: bool, roomy: bool) -> Claim:
    """The longest prefix every group can resume after, then the best block for what is left; holds nothing yet.

    `roomy`: nobody will copy from that block, so it is in nobody's way.
    """
    size = state.world.block_size
    claim = Claim(ask, purpose, pages=[{} for _ in state.pools])
    if not (state.world.reuse and ask.keeps):
        return claim
    path = path_of(ask.root, ask.identities[: usable // size * size], size)
    claim.found = pages_along(state, path)
    claim.walked = state.tree.depth(path)
    edges = points(state, claim.found, claim.walked)
    claim.blocks = claim.coming = last_of_all(edges)
    if state.world.slow:
        claim.coming = longest(state, pages_along(state, path, slow=True), claim.walked)
    claim.start = claim.blocks * size
    if claim.blocks < simple_rule(edges):
        raise Mismatch("more is computed again than need be")
    claim.pages = needed_pages(state, claim)
    if partial and state.world.has_state and purpose == "compute":
        find_tail(state, claim, path, edges, usable, roomy)
    elif partial and claim.start < usable and not (purpose == "decode" and state.apart):
        query = ask.identities[claim.start : min(claim.start + size, usable)]
        claim.source, matched = state.tree.partial_source(
            path[: claim.blocks + 1], query, not state.world.copy_on, state.world.slow_tier
        )
        if claim.source is not None:
            claim.sources = state.tree.whole(claim.source) or []
        if not roomy and in_the_way(state, claim):
            claim.source, claim.sources, matched = None, [], 0
        claim.start += matched
    if state.world.has_state and purpose == "compute":
        claim.junction = where_it_parts(state, claim, path, usable)
    lengthen(state, claim, usable)
    return claim


def where_it_parts(state: State, claim: Claim, path: Path, usable: int) -> int:
    """The last block edge that it shares with others who go on differently, if nothing up to there was found."""
    size, there = state.world.block_size, path[: claim.walked + 1]
    edge = claim.walked * size
    return edge if state.tree.next_blocks(there) and claim.start < edge and edge + size <= usable else 0


def find_tail(state: State, claim: Claim, path: Path, edges: list[list[int]], usable: int, roomy: bool) -> None:
    """The longest start at a tail that somebody left, with the state after it, where all other groups could go on."""
    size, before = state.world.block_size, (claim.blocks, claim.start, claim.pages, claim.coming)
    reading = [alone for alone, kind in zip(edges, state.kinds, strict=True) if kind.kind != "state"]
    for blocks in range(claim.walked, claim.blocks - 1, -1):
        if not all(blocks in alone for alone in reading):
            continue
        query = claim.ask.identities[blocks * size : max(blocks * size, min((blocks + 1) * size - 1, usable))]
        tail = state.tree.whole_tail(path[: blocks + 1], query, not state.world.copy_on, state.world.slow_tier)
        if tail is None:
            continue
        claim.source, claim.sources = tail, state.tree.whole(tail) or []
        claim.blocks, claim.start = blocks, blocks * size + len(tail[-1])
        claim.coming = max(claim.coming, blocks)
        needed = [[] if kind.kind == "state" else reach.needed(kind, blocks * size, size) for kind in state.kinds]
        claim.pages = [{b: pages[b] for b in some} for pages, some in zip(claim.found, needed, strict=True)]
        break
    if not roomy and in_the_way(state, claim):
        claim.source, claim.sources = None, []
        claim.blocks, claim.start, claim.pages, claim.coming = before


def in_the_way(state: State, claim: Claim) -> bool:
    """A block to copy from that could never stand beside its copy, and cannot become the copy either."""
    if claim.source is None:
        return False
    rooms = []  # at each copy: what a pool has left, when the groups before it have all that they may ever take
    for some in state.sharers:
        worst = [Charge(state.world, claim.ask, state.kinds[group]).worst(claim.purpose) for group in some]
        for place in range(len(some)):
            waiting = sum(1 + len(claim.pages[group]) for group in some[place:])
            rooms.append(state.world.tiers[0][state.groups[some[0]]] - sum(worst[:place]) - waiting - 1)
    used = any(page.holders or page.claims or page.stays for page in claim.sources)
    mine = state.tree.is_leaf(claim.source) and not used
    return min(rooms) < 0 and not mine


def pages_along(state: State, path: Path, slow: bool = False) -> Found:
    """Every page of every group along a path; those in the slow tier only are not there, unless asked for."""
    found: Found = [{} for _ in state.pools]
    anywhere = slow or not state.world.slow
    for block in range(state.tree.depth(path)):
        for group, page in enumerate(state.tree.at.get(path[: block + 2], ())):
            if page is not None and (anywhere or page.is_near(state.world)):
                found[group][block] = page
    return found


def resumable(state: State, found: Found, group: int, blocks: int) -> bool:
    """Whether a group has all it needs to go on after so many blocks."""
    size = state.world.block_size
    return found[group].keys() >= set(reach.needed(state.kinds[group], blocks * size, size))


def points(state: State, found: Found, walked: int) -> list[list[int]]:
    """The block edges after which each group could go on by itself, the last one first."""
    return [edges_of(state, found, group, walked) for group in range(len(state.pools))]


def edges_of(state: State, found: Found, group: int, walked: int) -> list[int]:
    """Those of one group; where all before an edge is needed, they are the ones up to the first gap."""
    there = found[group]
    if not reach.bounded(state.kinds[group]):
        return list(range(next((block for block in range(walked) if block not in there), walked), -1, -1))
    return [edge for edge in range(walked, -1, -1) if resumable(state, found, group, edge)]


def last_of_all(edges: list[list[int]]) -> int:
    """The last edge after which every group could go on."""
    return max(set(edges[0]).intersection(*edges[1:]))


def longest(state: State, found: Found, walked: int) -> int:
    """The same of what was found."""
    return last_of_all(points(state, found, walked))


def simple_rule(edges: list[list[int]]) -> int:
    """The least a cache must find: every group its longest; the shortest of those, lowered until all can go on."""
    least = min(alone[0] for alone in edges)
    while not all(least in alone for alone in edges):
        least -= 1
    return least


def needed_pages(state: State, claim: Claim) -> Found:
    """What the claim holds: what its start needs; for decoding all there is of what the prompt's end needs."""
    size = state.world.block_size
    if claim.purpose == "decode" and state.apart:
        return [{block: claim.found[g][block] for block in at_end(state, claim, g)} for g in range(len(state.pools))]
    needed = [reach.needed(kind, claim.blocks * size, size) for kind in state.kinds]
    return [{block: pages[block] for block in blocks} for pages, blocks in zip(claim.found, needed, strict=True)]


def at_end(state: State, claim: Claim, group: int) -> list[int]:
    """Of what the prompt's end needs, the blocks that are there; where all are needed, those before a gap."""
    size, kind, there = state.world.block_size, state.kinds[group], claim.found[group] if claim.found else {}
    blocks = [block for block in reach.needed(kind, claim.ask.compute_end, size) if block < claim.walked]
    if kind.kind == "state" and claim.ask.compute_end % size:
        return []
    if reach.bounded(kind):
        return [block for block in blocks if block in there]
    gap = next((block for block in blocks if block not in there), len(blocks))
    return blocks[:gap]


def spans(state: State, claim: Claim, group: int) -> Blocks:
    """Tokens the cache has for a group, of those its start and the prompt's end need; the partial hit included."""
    size = state.world.block_size
    blocks = {*at_end(state, claim, group), *claim.pages[group]}
    whole = {block * size + place for block in blocks for place in range(size)}
    return reach.runs([*whole, *(token for token in range(claim.blocks * size, claim.start) if token not in whole)])


def wants(state: State, claim: Claim, group: int) -> Blocks:
    """Blocks the prompt's end needs that are not there."""
    there = set(at_end(state, claim, group))
    needed = reach.needed(state.kinds[group], claim.ask.compute_end, state.world.block_size)
    return reach.runs([block for block in needed if block not in there])


def hold(claim: Claim) -> None:
    """Claim its pages."""
    for page in claim.held:
        page.claims += 1
    if claim.across is not None:
        hold(claim.across)


def let_go(state: State, claim: Claim) -> None:
    """Give its pages back; those that were kept for it alone, out of the tree, are no more."""
    for page in claim.held:
        state.pools[page.group].unclaim(page)
