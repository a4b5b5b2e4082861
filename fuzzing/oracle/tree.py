"""The tree as a dictionary: path -> one page or none per group. Lookups read it from end to end; knows no slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from math import inf
from typing import Any

from fuzzing.oracle.page import Page
from fuzzing.oracle.points import LOOKS_BACK, Points
from fuzzing.world.plain import Block, Identity, Path

Pages = list[Page | None]
_LAST = ((inf,),)  # greater than any block


class Tree:
    """Committed pages by path. A path exists while it, or one below it, has a page or is where a sequence goes on."""

    def __init__(self, num_groups: int, tips: Callable[[], list[Path]], points: Points) -> None:
        self.num_groups = num_groups
        self.points = points
        self.groups: dict[int, Any] = {}  # their Pools, by place
        self.tips = tips
        self.at: dict[Path, Pages] = {}
        self._under: dict[Path, dict[Path, Pages]] = {}  # the same by parent
        self._tips: list[Path] = []  # as they were when last looked at
        self._known: dict[Path, int] = {}  # how much keeps a path: its pages count as one, its tips, what is below
        self._next: dict[Path, dict[Path, None]] = {}  # of each that has some, the paths one block longer
        self._doubted: set[Path] = set()  # may be gone, or never have existed, since what was asked was last looked at
        self.ends: dict[tuple[int, int], Any] = {}  # where the last row of a session ended: its path first
        self._asked: set[Path] = set()  # where prompts ended whose text was known to go on

    def attach(self, page: Page, path: Path) -> None:
        """The page stands for this path now."""
        pages = self.at.get(path)
        if pages is None:
            pages = self.at[path] = [None] * self.num_groups
            self._under.setdefault(path[:-1], {})[path] = pages
            self._keep(path)
        pages[page.group] = page
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
            self._drop(page.path)
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

    def ask_again(self, path: Path, size: int) -> None:
        """A prompt ends at this path: if the text goes on, somebody may ask for it once more."""
        if not self.is_leaf(path):
            self.part(path, size)
            self._asked.add(path)
            self._doubted.add(path)

    def goes_on(self, path: Path, size: int) -> bool:
        """Whether a text goes on from a path in one way, with a whole block, and nobody asked for its end."""
        below = self.next_blocks(path)
        return len(below) == 1 and len(below[0][-1]) == size and path not in self._asked

    def part(self, path: Path, size: int) -> None:
        """Somebody goes another way from here than one text does, or ends here, and could resume here next time."""
        if len(path) == 1 or not self.goes_on(path, size):
            return
        stop = max(0, len(path) - 1 - LOOKS_BACK)
        anyway = [depth for depth in range(stop + 1, len(path) - 1) if not self.goes_on(path[: depth + 1], size)]
        self.points.serve(path, max(anyway, default=stop))

    def is_asked(self, path: Path) -> bool:
        """Whether a prompt ended there while the text was known to go on."""
        return path in self._asked

    def forget_gone(self) -> None:
        """What was asked of paths that exist no more is forgotten, also if they come again."""
        self._look()
        doubted = self._doubted | self.points.doubted
        self._doubted.clear()
        self.points.doubted.clear()
        for path in doubted:
            if path not in self._known:
                self._asked.discard(path)
                self.points.at.pop(path, None)
        if self.ends:
            self.ends = {key: end for key, end in self.ends.items() if end[0] in self._known}

    def is_point(self, path: Path, states: list[int], size: int) -> bool:
        """Whether somebody can be expected to resume at the end of a path."""
        below = self.next_blocks(path)
        if states:
            ends = len(below) > 1 or any(len(other[-1]) < size for other in below)
            return ends or any(self.page(path, group) is not None for group in states)
        return len(below) != 1 or len(below[0][-1]) < size or path in self._asked or self.points.counts(path)

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
        if self.points.counts(path):
            return False
        tips, below = set(self.tips()), [path]
        while len(below) == 1 and below[0] not in tips:
            below = self.next_blocks(below[0])
            if len(below) == 1 and self.page(below[0], group) is not None:
                return True
        return False

    def has_last(self, path: Path, group: int, blocks: int) -> bool:
        """Whether a group has a page of each of the last so many blocks of a path."""
        ends = [path[:end] for end in range(len(path), max(1, len(path) - blocks), -1)]
        return all(self.page(end, group) is not None for end in ends)

    def page_before(self, path: Path, group: int) -> Page | None:
        """The last page of a group before the end of a path."""
        above = path[:-1]
        while len(above) > 1 and self.page(above, group) is None:
            above = above[:-1]
        return self.page(above, group)

    def next_blocks(self, path: Path) -> list[Path]:
        """The paths that are one block longer."""
        self._look()
        return list(self._next.get(path, ()))

    def exists(self) -> KeysView[Path]:
        """Every path that exists, scopes left out."""
        self._look()
        return self._known.keys()

    def depth(self, path: Path) -> int:
        """How many blocks of a path exist."""
        self._look()
        deepest = 0
        while deepest + 1 < len(path) and path[: deepest + 2] in self._known:
            deepest += 1
        return deepest

    def _look(self) -> None:
        """Sequences may have gone on, come or gone; of pages it is known at once."""
        tips = self.tips()
        if tips != self._tips:
            before, self._tips = self._tips, tips
            for path in tips:
                self._keep(path)
            for path in before:
                self._drop(path)

    def _keep(self, path: Path) -> None:
        """One thing more keeps a path; one that comes to exist keeps the path before it."""
        while len(path) > 1:
            times = self._known.get(path, 0)
            self._known[path] = times + 1
            if times:
                return
            above = path[:-1]
            self._next.setdefault(above, {})[path] = None
            path = above

    def _drop(self, path: Path) -> None:
        """One thing less."""
        while len(path) > 1:
            times = self._known[path] - 1
            if times:
                self._known[path] = times
                return
            del self._known[path]
            self._doubted.add(path)
            above = path[:-1]
            below = self._next[above]
            del below[path]
            if not below:
                del self._next[above]
            path = above

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
