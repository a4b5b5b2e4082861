"""Tenure: which pages have got or lost copies since last asked, for which rows they were made, which were dropped.

For bills of memory. Costs no more than the pages there are, however seldom it is taken. Knows no copies: the caller
looks where the pages are.
"""


class Tenure:
    """Of one pool."""

    __slots__ = ("_changed", "_dropped", "makers", "makes")

    def __init__(self, num_pages: int, makes: list[int]) -> None:
        self._changed: dict[int, None] = {}
        self._dropped: set[int] = set()
        self.makers = [-1] * num_pages  # by page: the row that it was made for, -1: for none
        self.makes = makes  # the row that pages are being made for, the store's one number

    def note_copy(self, page: int) -> None:
        """The page has got a copy or lost one."""
        self._changed.setdefault(page)

    def note_made(self, page: int) -> None:
        """The page is a new one."""
        self.makers[page] = self.makes[0]

    def note_dropped(self, page: int) -> None:
        """The page was evicted with its last copy; its number may be another's at once."""
        self._dropped.add(page)

    def take_pages(self) -> list[tuple[int, bool]]:
        """Pages that have changed since the last call, ascending, and whether one of that number was dropped."""
        taken = [(page, page in self._dropped) for page in sorted(self._changed)]
        self._changed.clear()
        self._dropped.clear()
        return taken
