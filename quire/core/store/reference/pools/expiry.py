"""Expiries: when the priority of idle pages runs out, the earliest first.

Owns the heap. Knows nothing of what happens to a page whose time has come.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from quire.core.store.reference.tree.node import NEVER, Page


class Expiries:
    """The noted expiries of a group's pages; a page's last note counts."""

    __slots__ = ("_heap", "_pages", "_turn")

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self._heap: list[tuple[int, int, int]] = []  # (expiry, turn, page id)
        self._turn = 0

    def note(self, page: Page) -> None:
        """Note the page's expiry."""
        self._turn += 1  # equal expiries run out in the order of release: the deepest block first
        page.turn = self._turn
        heappush(self._heap, (page.expiry, page.turn, page.number))
        if len(self._heap) > 4 * len(self._pages) + 64:  # mostly of pages that were held again: start afresh
            noted = (page for page in self._pages if page.expiry >= 0)
            self._heap = sorted((page.expiry, page.turn, page.number) for page in noted)

    def take_due(self, now: int) -> Page | None:
        """The first page whose time has come, which then has no expiry any more."""
        while self._heap and self._heap[0][0] <= now:
            expiry, turn, number = heappop(self._heap)
            page = self._pages[number]
            if page.expiry == expiry and page.turn == turn:
                page.expiry = NEVER
                return page
        return None
