"""check(cache): every invariant of one state, readable as the specification. Changes nothing; slow on purpose."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quire.core.cache import Cache
from quire.core.records.errors import BrokenInvariant
from quire.core.state.claim import hit_of
from quire.core.state.registry import Registry
from quire.core.state.setup import Setup
from quire.core.state.stream import TokenStream

EMPTY, SHADOW, FIRST_PRIORITY = 0, 1, 2
EMPTY_RELEASED = FIRST_PRIORITY + 35  # where release_order files empty slots


def check(cache: Cache) -> None:
    """Look at every invariant; raises BrokenInvariant, which names the first that does not hold, also under -O."""
    with cache._lock:
        registry, setup = cache._registry, cache._setup
        for stream in setup.streams:
            dump = stream.store.dump()
            for place in range(len(dump["groups"])):
                view = GroupView(registry, dump, stream.first + place)
                view.every_slot_is_in_one_place()
                view.pages_have_copies()
                view.order_lists_what_may_go()
                view.committed_pages_are_in_the_tree()
                view.holders_are_counted()
                view.claims_are_counted()
                view.free_count_is_true()
                view.rows_show_their_pages()
                view.what_will_be_read_is_there()
                view.written_pages_are_private()
                view.shared_pages_hold_the_right_tokens()
            the_tree_is_whole(dump, setup.block_size)
            lengths_are_ordered(setup, stream, dump)
        rows_belong_to_sequences(registry)


class GroupView:
    """One group's part of a dump, with the invariants that speak of it."""

    def __init__(self, registry: Registry, dump: dict[str, Any], group: int) -> None:
        self.registry, self.dump, self.group = registry, dump, group
        self.setup = setup = registry.setup
        self.store, self.place = setup.pools[group]
        self.layer = setup.layers[group]
        self.pages: dict[int, Any] = dump["groups"][self.place]["pages"]
        self.orders: list[dict[int, list[int]]] = dump["groups"][self.place]["orders"]
        self.slots = [tier.of_group(group) for tier in setup.config.tiers]

    def row_pages(self, row: int) -> list[int]:
        """Page ids by column."""
        found: list[int] = self.store.pages[self.place][row].tolist()
        return found

    def every_slot_is_in_one_place(self) -> None:
        """A slot holds one copy of one page, or is empty and listed as such; nothing is lost, nothing is twice."""
        for tier, capacity in enumerate(self.slots):
            copies = Counter(page[3][tier] for page in self.pages.values() if page[3][tier] >= 0)
            if not all(count == 1 for count in copies.values()):
                raise BrokenInvariant(f"tier {tier}: a slot holds two pages: {copies}")
            listed = Counter(slot for slots in self.orders[tier].values() for slot in slots)
            if not all(count == 1 for count in listed.values()):
                raise BrokenInvariant(f"tier {tier}: a slot is listed twice")
            empty = set(listed) - set(copies)
            if len(empty) + len(copies) != capacity:
                raise BrokenInvariant(f"tier {tier}: {len(empty)} empty + {len(copies)} used != {capacity}")
            if not all(0 <= slot < capacity for slot in [*copies, *listed]):
                raise BrokenInvariant(f"tier {tier}: a slot is out of range")

    def pages_have_copies(self) -> None:
        """A page has at least one copy; page ids are all either in use or free, once."""
        for page, (_, _, _, slots, *_) in self.pages.items():
            if not any(slot >= 0 for slot in slots):
                raise BrokenInvariant(f"page {page} has no copy")
        ids = Counter([*self.pages, *self.dump["groups"][self.place]["free_pages"]])
        if sorted(ids) != list(range(sum(self.slots))) or max(ids.values()) != 1:
            raise BrokenInvariant("page ids are lost or doubled")

    def order_lists_what_may_go(self) -> None:
        """Listed: empty slots, shadows, and the hottest copy of an idle page by its priority. Nothing else."""
        expected = [Counter[tuple[int, int]]() for _ in self.slots]
        owner: list[set[int]] = [set() for _ in self.slots]
        for path, holders, _, slots, priority, *_ in self.pages.values():
            tiers = [tier for tier, slot in enumerate(slots) if slot >= 0]
            for tier in tiers:
                owner[tier].add(slots[tier])
            for tier in tiers[1:]:
                expected[tier][SHADOW, slots[tier]] += 1
            if path is not None and holders == 0:
                expected[tiers[0]][FIRST_PRIORITY + priority, slots[tiers[0]]] += 1
        empty_class = EMPTY_RELEASED if self.setup.config.eviction == "release_order" else EMPTY
        for tier, capacity in enumerate(self.slots):
            for slot in set(range(capacity)) - owner[tier]:
                expected[tier][empty_class, slot] += 1
            listed = Counter((klass, slot) for klass, slots in self.orders[tier].items() for slot in slots)
            if listed != expected[tier]:
                raise BrokenInvariant(f"tier {tier}: order {listed - expected[tier]} vs {expected[tier] - listed}")

    def committed_pages_are_in_the_tree(self) -> None:
        """A committed page is the page of exactly its node; an open page has no node and somebody holds it."""
        of_node = {path: pages[self.place] for path, _, pages, _, _ in self.dump["nodes"] if pages[self.place] >= 0}
        for page, (path, holders, *_) in self.pages.items():
            if path is None:
                if holders <= 0:
                    raise BrokenInvariant(f"open page {page} is held by nobody")
            else:
                if of_node.pop(path, None) != page:
                    raise BrokenInvariant(f"page {page} is not its node's page")
        if of_node:
            raise BrokenInvariant(f"nodes name pages that do not know them: {list(of_node.values())}")

    def holders_are_counted(self) -> None:
        """Holders of a page = entries in all rows + spares + current states + holds."""
        found: Counter[int] = Counter()
        for row, facts in self.dump["rows"].items():
            found.update(page for page in self.row_pages(row) if page >= 0)
            found.update(facts[7][self.place])
            found.update(page for page in [facts[15][self.place]] if page >= 0)
        for held in self.registry.holds:
            found.update(held.pages[self.group].tolist())
        for page, (_, holders, *_) in self.pages.items():
            if holders != found.pop(page, 0):
                raise BrokenInvariant(f"page {page}: holder count {holders} is wrong")
        if found:
            raise BrokenInvariant(f"pages that do not exist are held: {found}")

    def claims_are_counted(self) -> None:
        """Claims of a page = open claims whose hit it is part of."""
        found: Counter[int] = Counter()
        for claims in self.registry.open_claims.values():
            for claim in claims:
                hit = hit_of(claim, self.group)
                if hit is not None:
                    found.update(
                        node for node in [hit.source, *map(hit.node, hit.held(self.place).tolist())] if node >= 0
                    )
        for page, (_, _, num_claims, *_) in self.pages.items():
            node = self.store.page_info(self.place, page)[0]
            if num_claims != (found[node] if node >= 0 else 0):
                raise BrokenInvariant(f"page {page}: {num_claims} claims, {found[node]} expected")

    def free_count_is_true(self) -> None:
        """Free = device slots that are empty or hold an idle page nobody claims, less what is promised."""
        used = sum(slots[0] >= 0 for _, _, _, slots, *_ in self.pages.values())
        idle = sum(
            path is not None and not holders and not claims and slots[0] >= 0
            for path, holders, claims, slots, *_ in self.pages.values()
        )
        promised = 0
        for facts in self.dump["rows"].values():
            own, peak = facts[13][self.place], facts[14][self.place]
            promised += max(0, peak - own) if peak else 0
        free = self.slots[0] - used + idle - promised
        if self.store.available(self.place) != free:
            raise BrokenInvariant(f"free count is not {free}")
        if free < 0 and not self.registry.open_claims:
            raise BrokenInvariant(f"{-free} promised slots are not there")

    def rows_show_their_pages(self) -> None:
        """A row's slots are its pages' device slots; beyond its capacity there is nothing."""
        for row in range(self.setup.config.max_sequences):
            pages = self.row_pages(row)
            slots = self.store.slots[self.place][row].tolist()
            capacity = int(self.store.capacity[self.place][row])
            shown = [self.pages[page][3][0] if page >= 0 else -1 for page in pages]
            if slots != shown:
                raise BrokenInvariant(f"row {row}: slots {slots} are not the pages' device slots {shown}")
            if not all(page < 0 for page in pages[capacity:]):
                raise BrokenInvariant(f"row {row} has pages beyond its capacity")
            if not all(slot >= 0 for page, slot in zip(pages, slots, strict=True) if page >= 0):
                raise BrokenInvariant(f"row {row}: no slot")
            current = int(self.store.currents[self.place][row])
            slot = int(self.store.current_slots[self.place][row])
            if (current >= 0) != bool(self.layer.current and row in self.dump["rows"]):
                raise BrokenInvariant(f"row {row}: state {current}")
            if slot != (self.pages[current][3][0] if current >= 0 else -1):
                raise BrokenInvariant(f"row {row}: state in slot {slot}")

    def what_will_be_read_is_there(self) -> None:
        """Every block that the next query reads has a page, and so has every one that is being written."""
        size = self.setup.block_size
        for row, (_, computed, *_) in self.dump["rows"].items():
            pages, capacity = self.row_pages(row), int(self.store.capacity[self.place][row])
            needed = {block for span in self.layer.live_blocks(computed, size) for block in range(span.start, span.end)}
            if not self.layer.current:
                needed |= set(range(computed // size, capacity))
            if self.dump["rows"][row][16]:  # it waits for a transfer: what it was given stands beyond `computed`
                needed &= {block for block, page in enumerate(pages) if page >= 0}
            if not all(pages[block] >= 0 for block in needed):
                raise BrokenInvariant(f"row {row}: holes in {sorted(needed)} of {pages}")

    def written_pages_are_private(self) -> None:
        """From its first uncomputed token on, a sequence writes only into open pages that no other row shows."""
        shown: Counter[int] = Counter()
        for row in self.dump["rows"]:
            shown.update(page for page in self.row_pages(row) if page >= 0)
        for row, (_, computed, *_, ahead, _, _) in self.dump["rows"].items():
            capacity = int(self.store.capacity[self.place][row])
            for page in self.row_pages(row)[computed // self.setup.block_size : capacity]:
                if page < 0 or ahead:
                    continue  # a hole, or a sequence that waits for a transfer: it writes only what it wanted
                if self.pages[page][0] is not None:
                    raise BrokenInvariant(f"row {row} would write into committed page {page}")
                if shown[page] != 1:
                    raise BrokenInvariant(f"row {row} would write into page {page} of another row")

    def shared_pages_hold_the_right_tokens(self) -> None:
        """A committed page in a row stands for exactly that row's tokens, from the first one on."""
        size = self.setup.config.block_size
        for row, (_, _, _, tokens, *_) in self.dump["rows"].items():
            for block, page in enumerate(self.row_pages(row)):
                path = self.pages[page][0] if page >= 0 else None
                if path is not None:
                    meant = [identity[0] for part in path[1:] for identity in part]
                    if meant != tokens[: (block + 1) * size]:
                        raise BrokenInvariant(f"row {row} block {block}: page {page} is of other tokens")


def the_tree_is_whole(dump: dict[str, Any], block_size: int) -> None:
    """Every node's parent exists and is full; a node has a page, a child, or is where a sequence goes on."""
    nodes = {path: (size, pages, children, tips) for path, size, pages, children, tips in dump["nodes"]}
    roots = {(root,) for root, _ in dump["roots"]}
    for path, (size, pages, children, tips) in nodes.items():
        above = path[:-1]
        if above not in nodes and above not in roots:
            raise BrokenInvariant(f"a node has no parent: {path}")
        if size != len(path[-1]):
            raise BrokenInvariant(f"size {size} of {path}")
        if above not in roots and nodes[above][0] != block_size:
            raise BrokenInvariant(f"a partial block is a parent: {above}")
        if not (any(page >= 0 for page in pages) or children or tips):
            raise BrokenInvariant(f"a node stands for nothing: {path}")
    born = Counter(path[:-1] for path in nodes)
    if not all(children == born[path] for path, (_, _, children, _) in nodes.items()):
        raise BrokenInvariant("child counts are wrong")


def lengths_are_ordered(setup: Setup, stream: TokenStream, dump: dict[str, Any]) -> None:
    """committed <= computed <= handed out <= length; computed tokens have slots in every group with columns."""
    size = setup.block_size
    paged = [g for g in range(len(dump["groups"])) if not setup.layers[stream.first + g].current]
    for row, (length, computed, committed, tokens, *_, handed, _) in dump["rows"].items():
        if not committed * size <= computed <= handed <= length == len(tokens):
            raise BrokenInvariant(f"row {row}: {committed}, {computed}, {handed}, {length}")
        if not all(stream.store.capacity[g][row] * size >= computed for g in paged):
            raise BrokenInvariant(f"row {row} lacks slots")


def rows_belong_to_sequences(registry: Registry) -> None:
    """Live rows are the live sequences' rows; the others are free, once each."""
    setup, sequences = registry.setup, registry.sequences.values()
    rows = sorted(sequence.row for sequence in sequences)
    live = sorted(setup.store.dump()["rows"])
    if rows != live:
        raise BrokenInvariant(f"rows {live} vs sequences {rows}")
    if sorted(rows + registry.free_rows) != list(range(setup.config.max_sequences)):
        raise BrokenInvariant("rows are lost or doubled")
    if setup.cross is not None:
        across = {sequence.row for sequence in sequences if sequence.request.encoder is not None}
        if set(setup.cross.store.dump()["rows"]) != across:
            raise BrokenInvariant("the encoder's stream has other rows")
