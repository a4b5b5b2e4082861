"""Writers by definition: slots for blocks that are not there, in any tier; findable when written. Knows no bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzzing.oracle import claims, reach
from fuzzing.oracle.cells import CONTINUED, ONCE
from fuzzing.oracle.commit import is_unused, replace_page
from fuzzing.oracle.model import Model
from fuzzing.oracle.page import DEFAULT, Page
from fuzzing.oracle.points import NAMED
from fuzzing.oracle.pools import Pools
from fuzzing.oracle.state import State, retention
from fuzzing.oracle.tree import path_of
from fuzzing.world.plain import Ask, Identity, Misuse, Path, Skip, WriterFacts

Lack = tuple[int, int, int]


@dataclass(eq=False, slots=True)
class Writing:
    """A text that somebody brings, and the pages that wait for it."""

    ask: Ask
    tier: int
    text: list[Identity]
    pages: list[dict[int, Page]]  # per group, by block
    taken: int = 0
    early: set[tuple[int, int]] = field(default_factory=set)  # group and block of those taken before their turn
    cut: bool = False
    bad: set[Page] = field(default_factory=set)

    def path(self, size: int) -> Path:
        """Where its whole blocks belong."""
        return path_of(self.ask.root, self.text[: len(self.text) // size * size], size)


def take(model: Model, writing: Writing, end: int, skip: Skip, also: Skip = ()) -> Lack | None:
    """Pages for the blocks before `end` that have none, and for those of `also`, all or none; what stands along the
    text stays meanwhile."""
    state, size = model.own, model.world.block_size
    blocks = [] if writing.cut else list(range(writing.taken, end // size))
    path = writing.path(size)
    asked = [[b for b in blocks if b not in dict(skip).get(group, ())] for group in range(len(state.pools))]
    behind = {(group, b) for group, some in also for b in some if b >= max(writing.taken, end // size)}
    if any(b >= len(writing.text) // size for _, b in behind - writing.early) and not writing.cut:
        raise Misuse("a block behind the text")
    for group, some in enumerate(asked):
        some[:] = [b for b in some if (group, b) not in writing.early]
        some += [] if writing.cut else sorted(b for at, b in behind - writing.early if at == group)
    last = max((b + 1 for some in asked for b in some), default=0)
    is_slow = writing.tier == model.world.slow_tier  # in other tiers what is there only is missing
    there = claims.pages_along(state, path[: last + 1], slow=is_slow)
    known = state.tree.depth(path[: last + 1])
    along = [page for pages in claims.pages_along(state, path[: last + 1], slow=True) for page in pages.values()]
    for page in along:
        page.claims += 1
    missing = [[b for b in some if b not in have] for some, have in zip(asked, there, strict=True)]
    found = (lacks(state, group, writing, missing) for group, some in enumerate(missing) if some)
    lack = next((one for one in found if one is not None), None)
    for pools in state.pools if lack is None else ():
        pools.refresh(state.now())
    for group, some in enumerate(missing if lack is None else ()):
        fresh = CONTINUED if 0 < len(path) - 1 <= 2 * known else ONCE
        for block in some:
            value = retention(writing.ask, block, size) or (DEFAULT, None)
            writing.pages[group][block] = open_page(state.pools[group], writing.tier, value, fresh)
    for page in along:
        page.claims -= 1
    if lack is None:
        writing.taken = max(writing.taken, end // size)
        writing.early |= behind
    return lack


def lacks(state: State, group: int, writing: Writing, missing: list[list[int]]) -> Lack | None:
    """Whether its pool has not what its groups miss together."""
    mine = next(some for some in state.sharers if group in some)
    need, have = sum(len(missing[one]) for one in mine), room(state, group, writing.tier)
    return (group, need, have) if need > have else None


def room(state: State, group: int, tier: int) -> int:
    """Slots that can be had of a tier; of the device those that are reserved for nobody."""
    pools = state.pools[group]
    if tier == 0:
        return state.free(group)
    return sum(
        pools.klass(tier, slot) is not None and not pools.is_taboo(tier, page)
        for slot, page in enumerate(pools.owner[tier])
    )


def open_page(pools: Pools, tier: int, value: tuple[int, int | None], fresh: int) -> Page:
    """A new page in a slot of a tier, whatever that costs."""
    if pools.cells is not None:
        pools.cells.fresh = fresh
    if tier == 0:
        return pools.open_page(*value)
    slot = pools.victim(tier)
    assert slot is not None
    if not pools.soft(tier, slot):
        pools.evict(tier, slot)
    page = Page(pools.numbers.pop(), pools.group, *value, holders=1)
    pools.pages[page.number] = page
    if pools.cells is not None:
        pools.cells.made += 1
        pools.cells.begin(page)
    pools.put(page, tier, slot)
    return page


def facts(writing: Writing) -> WriterFacts:
    """Per group: blocks that wait, and the slots of their pages."""
    groups = [sorted(pages.items()) for pages in writing.pages]
    return tuple(tuple((block, page.copies[writing.tier]) for block, page in pages) for pages in groups)


def written(model: Model, writing: Writing, end: int, skip: Skip) -> int:
    """Pages before `end` take their places if those are free; none of them is held any more. How many are new."""
    state, size, now = model.own, model.world.block_size, model.own.now()
    due = [[block for block in sorted(pages) if (block + 1) * size <= end] for pages in writing.pages]
    good: list[list[tuple[int, Page]]] = []
    for group, blocks in enumerate(due):
        pages = [(block, writing.pages[group].pop(block)) for block in blocks]
        out = [writing.cut or block in dict(skip).get(group, ()) or page in writing.bad for block, page in pages]
        good.append([item for item, left in zip(pages, out, strict=True) if not left])
        state.pools[group].tell_time(now)
        for (_, page), left in reversed(list(zip(pages, out, strict=True))):
            if left:
                state.pools[group].let_go(page, now)
    if any(good):
        state.make_root(writing.ask.root)
    last = max((block + 1 for items in good for block, _ in items), default=0)
    see_points(state, writing, last)
    new = sum(publish(state, state.pools[group], writing, items) for group, items in enumerate(good))
    for pools, items in zip(state.pools, good, strict=True):
        let_go(state, pools, items, writing.path(size)[: last + 1])
    return new


def see_points(state: State, writing: Writing, last: int) -> None:
    """Its text may part from one that is known; others are expected where its prompt says, or lets guess."""
    size = state.world.block_size
    path = writing.path(size)[: last + 1]
    if not state.points.matter:
        return
    if (known := state.tree.depth(path)) < last:
        state.tree.part(path[: known + 1], size)
    edge, named = (writing.ask.compute_end - 1) // size, writing.ask.named(size)
    for depth in range(1, last + 1):
        state.points.put(path[: depth + 1], NAMED if depth in named else state.points.guess(depth, edge))


def publish(state: State, pools: Pools, writing: Writing, items: list[tuple[int, Page]]) -> int:
    """Those of one group."""
    path, new = writing.path(state.world.block_size), 0
    for block, page in items:
        other = state.tree.page(path[: block + 2], pools.group)
        if other is None:
            pools.attach(page, path[: block + 2])
            new += 1
        elif not other.is_near(state.world) and page.is_near(state.world) and is_unused(other):
            replace_page(state, pools, other, page)
            new += 1
    return new


def let_go(state: State, pools: Pools, items: list[tuple[int, Page]], path: Path) -> None:
    """Nobody holds the pages any more; what is above them, and between them, is ranked anew."""
    for _, page in reversed(items):
        pools.let_go(page, state.now())
    kind = state.kinds[pools.group]
    if items and kind.kind == "window":
        first = max(0, items[0][0] - reach.keeps(kind, state.world.block_size))
        for block in range(len(path) - 2, first - 1, -1):
            pools.look_again(state.tree.page(path[: block + 2], pools.group))


def close(model: Model, writing: Writing) -> None:
    """What was not written is given back."""
    for pools, pages in zip(model.own.pools, writing.pages, strict=True):
        pools.tell_time(model.own.now())
        for _, page in sorted(pages.items(), reverse=True):
            pools.let_go(page, model.own.now())
        pages.clear()


def spoil(writing: Writing, spoilt: list[Page], size: int) -> tuple[int, int] | None:
    """Bad pages stay its own, and will not be found; where the first is, if there are some."""
    blocks = [block for pages in writing.pages for block, page in pages.items() if page in spoilt]
    writing.bad |= {page for pages in writing.pages for page in pages.values() if page in spoilt}
    return (len(writing.text), min(blocks) * size) if blocks else None


def goes_through(writing: Writing, top: Path, size: int) -> bool:
    """Whether its text is that of a path, as far as it goes."""
    return writing.path(size)[: len(top)] == top
