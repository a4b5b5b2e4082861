"""The tree as a dictionary: path -> one page or none per group. Lookups read it from end to end; knows no slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from fuzzing.oracle.page import Page
from fuzzing.world.plain import Block, Identity, Path

Pages = list[Page | None]
_LAST = ((inf,),)  # greater than any block


class Tree:
    """Committed pages by path. A path exists while it, or one below it, has a page or is where a sequence goes on."""

    def __init__(self, num_groups: int, tips: Callable[[], Iterable[Path]]) -> None:
        self.num_groups = num_groups
        self.tips = tips
        self.at: dict[Path, Pages] = {}
        self._under: dict[Path, dict[Path, Pages]] = {}  # the same by parent
        self._tops: list[Path] = []  # where the paths end of which the two below were made
        self._known: set[Path] = set()
        self._next: dict[Path, list[Path]] = {}  # of each that has some, the paths one block longer
        self._asked: set[Path] = set()  # where prompts ended whose text was known to go on

    def attach(self, page: Page, path: Path) -> None:
        """The page stands for this path now."""
        pages = self.at.setdefault(path, [None] * self.num_groups)
        pages[page.group] = page
        self._under.setdefault(path[:-1], {})[path] = pages
        page.path = path

    def detach(self, page: Page, replaced: bool = False) -> None:
        """The page stands for nothing now; where another comes in its place the path has never been gone."""
        assert page.path is not None
        pages = self.at[page.path]
        pages[page.group] = None
        if not any(pages):
            del self.at[page.path], self._under[page.path[:-1]][page.path]
            if not self._under[page.path[:-1]]:
                del self._under[page.path[:-1]]
        page.path = None
        if not replaced:
            self.forget_gone()

    def page(self, path: Path, group: int) -> Page | None:
        """The page of a path, if there is one."""
        return self.at.get(path, [None] * self.num_groups)[group]

    def whole(self, path: Path) -> list[Page] | None:
        """The pages of a path when every group has one."""
        pages = self.at.get(path)
        return [page for page in pages if page] if pages and all(pages) else None

    def is_leaf(self, path: Path) -> bool:
        """Nothing exists below."""
        self._look()
        return path not in self._next

    def ask_again(self, path: Path) -> None:
        """A prompt ends at this path: if the text goes on, somebody may ask for it once more."""
        if not self.is_leaf(path):
            self._asked.add(path)

    def is_asked(self, path: Path) -> bool:
        """Whether a prompt ended there while the text was known to go on."""
        return path in self._asked

    def forget_gone(self) -> None:
        """What was asked of paths that exist no more is forgotten, also if they come again."""
        if self._asked:
            self._asked &= self.exists()

    def is_point(self, path: Path, states: list[int], size: int) -> bool:
        """Whether somebody can be expected to resume at the end of a path."""
        below = self.next_blocks(path)
        if states:
            ends = len(below) > 1 or any(len(other[-1]) < size for other in below)
            return ends or any(self.page(path, group) is not None for group in states)
        return len(below) != 1 or len(below[0][-1]) < size or path in self._asked

    def reaches_point(self, path: Path, tail: int, states: list[int], size: int) -> bool:
        """Whether somebody can be expected to resume there, or so few blocks below that a window reaches back to it."""
        reached = [path]
        for _ in range(tail):
            if any(self.is_point(other, states, size) for other in reached):
                return True
            reached = [other for one in reached for other in self.next_blocks(one)]
        return False

    def is_overtaken(self, path: Path, group: int) -> bool:
        """Whether the text goes on from a snapshot in one way only, to a later one, and nobody stands on that way."""
        tips, below = set(self.tips()), [path]
        while len(below) == 1 and below[0] not in tips:
            below = self.next_blocks(below[0])
            if len(below) == 1 and self.page(below[0], group) is not None:
                return True
        return False

    def page_before(self, path: Path, group: int) -> Page | None:
        """The last page of a group before the end of a path."""
        above = path[:-1]
        while len(above) > 1 and self.page(above, group) is None:
            above = above[:-1]
        return self.page(above, group)

    def next_blocks(self, path: Path) -> list[Path]:
        """The paths that are one block longer."""
        self._look()
        return self._next.get(path, [])

    def exists(self) -> set[Path]:
        """Every path that exists, scopes left out."""
        self._look()
        return self._known

    def depth(self, path: Path) -> int:
        """How many blocks of a path exist."""
        self._look()
        deepest = 0
        while deepest + 1 < len(path) and path[: deepest + 2] in self._known:
            deepest += 1
        return deepest

    def _look(self) -> None:
        """What exists is found anew when paths have come or gone."""
        tops = [*self.at, *self.tips()]
        if tops != self._tops:
            self._tops = tops
            self._known = set()
            for path in tops:
                while len(path) > 1 and path not in self._known:
                    self._known.add(path)
                    path = path[:-1]
            self._next = {}
            for path in self._known:
                self._next.setdefault(path[:-1], []).append(path)

    def children(self, parent: Path) -> Iterable[tuple[Path, Pages]]:
        """Paths with pages right below."""
        return self._under.get(parent, {}).items()

    def partial_source(self, parent: Path, query: Block, idle_leaves_only: bool, slow: int) -> tuple[Path | None, int]:
        """The child that shares the most leading tokens with the query, the handiest of those; and how many."""
        found: list[tuple[int, bool, int, int, Path]] = []
        for path, pages in self.children(parent):
            common = common_tokens(path[-1], query)
            if not common or not all(page and page.hottest != slow for page in pages):
                continue
            first = pages[0]
            assert first is not None
            takeable = self.is_leaf(path) and not any(page.holders or page.stays for page in pages if page)
            if takeable or not idle_leaves_only:
                found.append((-common, not (takeable and first.hottest == 0), first.hottest, first.number, path))
        if not found:
            return None, 0
        best = min(found)
        return best[-1], -best[0]

    def whole_tail(self, parent: Path, query: Block, idle_leaves_only: bool, slow: int) -> Path | None:
        """The longest child shorter than a block with a page of every group, if the query begins with all of it."""
        found: list[Path] = []
        for path, pages in self.children(parent):
            near = [page for page in pages if page and page.hottest != slow]
            used = any(page.holders or page.stays for page in near)
            if path[-1] == query[: len(path[-1])] and len(near) == len(pages) and not (used and idle_leaves_only):
                found.append(path)
        return max(found, key=lambda path: len(path[-1]), default=None)

    def below(self, path: Path) -> list[Path]:
        """The path and all below it that have pages: children before parents, siblings in the order of their tokens."""
        depth = len(path)
        return sorted((other for other in self.at if other[:depth] == path), key=lambda other: (*other[1:], _LAST))


def common_tokens(one: Block, other: Block) -> int:
    """Leading tokens two blocks share."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def path_of(root: int, identities: Iterable[Identity], block_size: int) -> Path:
    """The path of a token sequence, its last block perhaps partial."""
    tokens = tuple(identities)
    return (root, *(tokens[place : place + block_size] for place in range(0, len(tokens), block_size)))
