"""What must hold of one layer group: its rows, its pages, who holds and claims them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from quire.core.records.errors import BrokenInvariant
from quire.core.records.plan import NO_MOVES, MoveColumn, Moves
from quire.core.state.claim import hit_of
from quire.core.state.held_hit import hits_of
from quire.core.state.registry import Registry, Ride
from quire.core.store.dumped import NONE, Dump, DumpedGroup, hottest

if TYPE_CHECKING:
    from quire.core.store.interface import Hit


class GroupView:
    """One group's part of a dump, with the invariants that speak of it."""

    def __init__(self, registry: Registry, dump: Dump, group: int) -> None:
        self.registry, self.dump, self.group = registry, dump, group
        self.setup = setup = registry.setup
        self.store, self.place = setup.pools[group]
        self.layer = setup.layers[group]
        self.facts: DumpedGroup = self.dump.groups[self.place]
        self.pages, self.orders = self.facts.pages, self.facts.orders
        self.slots = [setup.config.slots_of(tier, group) for tier in range(len(setup.config.tiers))]
        self.rows = {row: self.store.pages[self.place][row].tolist() for row in self.dump.rows}  # page ids by column
        flight, own = registry.in_flight, group in setup.own_groups
        self.rides = [ride for some in (*flight.rides.values(), flight.coming) for ride in some] if own else []
        self.left = {row for row in flight.ending if flight.since[row] > flight.last[row]}  # what they compute is void

    def check(self) -> None:
        """All of them."""
        self.committed_pages_are_in_the_tree()
        self.holders_are_counted()
        self.claims_are_counted()
        self.stays_are_counted()
        self.rows_show_their_pages()
        self.what_will_be_read_is_there()
        self.written_pages_are_private()
        self.pending_pages_are_shared()
        self.shared_pages_hold_the_right_tokens()

    def capacity(self, row: int) -> int:
        """Columns of a row."""
        return int(self.store.capacity[self.place][row])

    def begins(self, row: int) -> int:
        """First token that a row writes: what it shares with rows in flight these compute."""
        return max([self.dump.rows[row].computed, *(ride.end for ride in self.rides if ride.row == row)])

    def background(self) -> Moves:
        """Moves of this group in open background plans."""
        moves = np.concatenate([NO_MOVES, *(plan.moves for plan in self.registry.background.values())])
        mine: Moves = moves[moves[:, MoveColumn.GROUP] == self.group]
        return mine

    def covered_pages(self) -> set[int]:
        """Of a group that needs all blocks, in the adaptive order: pages with a child in their tier or a hotter one."""
        if self.facts.cells is None or self.layer.bounded:
            return set()
        found: set[int] = set()
        for node in self.dump.nodes:
            child, parent = node.pages[self.place], self.dump.nodes[node.parent].pages[self.place]
            if node.parent == NONE or child == NONE or parent == NONE:
                continue
            if hottest(self.pages[child]) <= hottest(self.pages[parent]):
                found.add(parent)
        return found

    def committed_pages_are_in_the_tree(self) -> None:
        """A committed page is the page of exactly its node; an open page has no node and at least one holder."""
        pages = ((number, node.pages[self.place]) for number, node in enumerate(self.dump.nodes))
        of_node = {number: page for number, page in pages if page >= 0}
        for number, page in self.pages.items():
            if page.node == NONE:
                if page.holders <= 0 and not page.claims:
                    raise BrokenInvariant(f"open page {number} has no holder")
            elif of_node.pop(page.node, NONE) != number:
                raise BrokenInvariant(f"page {number} is not its node's page")
        if of_node:
            raise BrokenInvariant(f"nodes name pages that do not know them: {list(of_node.values())}")

    def holders_are_counted(self) -> None:
        """Holders of a page = entries in all rows + spares + current states + holds + what writers fill."""
        found: Counter[int] = Counter()
        for row, facts in self.dump.rows.items():
            found.update(page for page in self.rows[row] if page >= 0)
            found.update(facts.spares[self.place])
            found.update(page for page in [facts.currents[self.place]] if page >= 0)
        for held in self.registry.holds:
            found.update(held.pages[self.group].tolist())
        for writing in self.registry.open_writers.values() if self.group in self.setup.own_groups else ():
            found.update(writing.pages[self.group].tolist())
        for number, page in self.pages.items():
            if page.holders != found.pop(number, 0):
                raise BrokenInvariant(f"page {number}: holder count {page.holders} is wrong")
        if found:
            raise BrokenInvariant(f"pages that do not exist are held: {found}")

    def claims_are_counted(self) -> None:
        """Claims of a page = open claims and finds whose hit it is part of, and background moves that read it."""
        found: Counter[int] = Counter(self.background()[:, MoveColumn.PAGE].tolist())
        for hit in self.hits():
            found.update([*hit.pages(self.place).tolist(), *hit.sources()[self.place : self.place + 1]])
        for number, page in self.pages.items():
            if page.claims != (expected := found.pop(number, 0)):
                raise BrokenInvariant(f"page {number}: {page.claims} claims, {expected} expected")
        if found:
            raise BrokenInvariant(f"pages that do not exist are claimed: {found}")

    def stays_are_counted(self) -> None:
        """Who needs a page where it is: finds, background moves that read it, prefetches. Its source is there."""
        moves = self.background()
        found: Counter[int] = Counter(moves[:, MoveColumn.PAGE].tolist())
        for kept in self.registry.open_finds.values() if len(self.slots) > 1 else ():
            hit = hits_of(kept, self.group)
            found.update([] if hit is None else hit.pages(self.place).tolist())
        for prefetching in self.registry.open_prefetches.values():
            named = zip(prefetching.pages[self.group].tolist(), prefetching.stamps[self.group].tolist(), strict=True)
            found.update(page for page, stamp in named if self.is_still(page, stamp))
        for number, page in self.pages.items():
            if page.stays != found.pop(number, 0):
                raise BrokenInvariant(f"page {number}: {page.stays} need it where it is")
            if page.copying != (number in moves[:, MoveColumn.PAGE]):
                raise BrokenInvariant(f"page {number} is being copied, or not")
        if found:
            raise BrokenInvariant(f"pages that do not exist are needed: {found}")
        for move in moves.tolist():
            tier, slot, number = move[MoveColumn.SRC_TIER], move[MoveColumn.SRC_SLOT], move[MoveColumn.PAGE]
            if self.pages[number].slots[tier] != slot:
                raise BrokenInvariant(f"page {number} is read from slot {slot} of tier {tier}, and is not there")

    def is_still(self, page: int, stamp: int) -> bool:
        """Whether a page is there that was kept under this stamp."""
        return page in self.pages and self.store.page_info(self.place, page).stamp == stamp

    def hits(self) -> list[Hit]:
        """What open claims and finds rest on."""
        claims = [claim for claims in self.registry.open_claims.values() for claim in claims]
        hits = [hit_of(claim, self.group) for claim in claims]
        hits += [hits_of(kept, self.group) for kept in self.registry.open_finds.values()]
        return [hit for hit in hits if hit is not None]

    def rows_show_their_pages(self) -> None:
        """A row's slots are its pages' device slots; beyond its capacity there is nothing, and so in rows not live."""
        device = np.full(sum(self.slots) + 1, -1, np.int32)  # by page; the last is a hole's, whose number is -1
        device[list(self.pages)] = [page.slots[0] for page in self.pages.values()]
        pages, slots = self.store.pages[self.place], self.store.slots[self.place]
        for row in np.flatnonzero((slots != device[pages]).any(axis=1)).tolist():
            raise BrokenInvariant(f"row {row}: slots {slots[row]} are not the pages' device slots {device[pages[row]]}")
        beyond = np.arange(pages.shape[1]) >= self.store.capacity[self.place][:, None]
        for row in np.flatnonzero(((pages >= 0) & beyond).any(axis=1)).tolist():
            raise BrokenInvariant(f"row {row} has pages beyond its capacity")
        for row in np.flatnonzero(((pages >= 0) & (slots < 0)).any(axis=1)).tolist():
            raise BrokenInvariant(f"row {row}: no slot")
        currents, their_slots = self.store.currents[self.place], self.store.current_slots[self.place]
        for row, (current, slot) in enumerate(zip(currents.tolist(), their_slots.tolist(), strict=True)):
            if (current >= 0) != bool(self.layer.current and row in self.dump.rows):
                raise BrokenInvariant(f"row {row}: state {current}")
            if slot != device[current]:
                raise BrokenInvariant(f"row {row}: state in slot {slot}")

    def what_will_be_read_is_there(self) -> None:
        """Every block that the next query reads has a page, and so has every one that is being written."""
        size = self.setup.block_size
        for row, facts in self.dump.rows.items():
            if row in self.left:
                continue
            pages, spans = self.rows[row], self.layer.live_blocks(self.begins(row), size)
            needed = {block for span in spans for block in range(span.start, span.end)}
            if not self.layer.current:
                needed |= set(range(self.begins(row) // size, self.capacity(row)))
            if facts.ahead:  # it waits for a transfer: what it was given stands beyond `computed`
                needed &= {block for block, page in enumerate(pages) if page >= 0}
            if not all(pages[block] >= 0 for block in needed):
                raise BrokenInvariant(f"row {row}: holes in {sorted(needed)} of {pages}")

    def written_pages_are_private(self) -> None:
        """From its first uncomputed token on, a sequence writes only into open pages that no other row shows, but such
        as share what is computed in them."""
        size = self.setup.block_size
        shown = Counter(page for row, pages in self.rows.items() if row not in self.left for page in pages if page >= 0)
        shown -= Counter(
            page for ride in self.rides for page in self.pending(ride.row, ride) if ride.row not in self.left
        )
        for row, facts in self.dump.rows.items():
            for page in self.rows[row][self.begins(row) // size : self.capacity(row)]:
                if page < 0 or facts.ahead or row in self.left:
                    continue  # a hole, or a sequence that waits for a transfer: it writes only what it wanted
                if self.pages[page].node != NONE:
                    raise BrokenInvariant(f"row {row} would write into committed page {page}")
                if shown[page] != 1:
                    raise BrokenInvariant(f"row {row} would write into page {page} of another row")

    def pending(self, row: int, ride: Ride) -> list[int]:
        """A row's pages of the blocks that another shares with its owner."""
        size = self.setup.block_size
        return [page for page in self.rows[row][ride.start // size : ride.end // size] if page >= 0]

    def pending_pages_are_shared(self) -> None:
        """What a row shares with one in flight are that one's pages, of the same tokens, and not in the tree."""
        for ride in self.rides:
            mine, theirs = self.pending(ride.row, ride), set(self.pending(ride.owner, ride))
            tokens = [self.dump.rows[row].tokens[ride.start : ride.end] for row in (ride.row, ride.owner)]
            if ride.row not in self.left and not (theirs.issuperset(mine) and tokens[0] == tokens[1]):
                raise BrokenInvariant(f"row {ride.row} shares {mine} with row {ride.owner}, which has {theirs}")
            if any(self.pages[page].node != NONE for page in mine):
                raise BrokenInvariant(f"row {ride.row}: pages {mine} are pending, and in the tree")

    def shared_pages_hold_the_right_tokens(self) -> None:
        """A committed page in a row stands for exactly that row's tokens, from the first one on."""
        size = self.setup.block_size
        for row, facts in self.dump.rows.items():
            tokens = [tuple(facts.tokens[first : first + size]) for first in range(0, len(facts.tokens), size)]
            known: dict[int, int] = {}  # block -> its node, of those that were looked at
            for block, page in enumerate(self.rows[row]):
                node = self.pages[page].node if page >= 0 else NONE
                if node != NONE and not self._leads_to(node, block, tokens, known):
                    raise BrokenInvariant(f"row {row} block {block}: page {page} is of other tokens")
                known[block] = node

    def _leads_to(self, number: int, block: int, tokens: list[tuple[int, ...]], known: dict[int, int]) -> bool:
        """Whether the way from a root to a node is that of these blocks up to this one; `known` nodes are right."""
        while number >= 0 and (node := self.dump.nodes[number]).parent != NONE:
            if known.get(block) == number:
                return True
            if not 0 <= block < len(tokens) or node.tokens != tokens[block]:
                return False
            number, block = node.parent, block - 1
        return number >= 0 and block < 0
