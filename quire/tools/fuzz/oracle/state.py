"""What the oracle knows: rows, claims, holds, plans, pools and the tree, as plain objects. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quire.tools.fuzz.oracle.page import DEFAULT, Page
from quire.tools.fuzz.oracle.pools import Pools
from quire.tools.fuzz.oracle.tree import Tree
from quire.tools.fuzz.plain import TICKS, Ask, Identity, Move, Path, PlanFacts, RefusalFacts, World

Done = tuple[Move, tuple[Page, ...]]


@dataclass(eq=False, slots=True)
class Row:
    """A live sequence."""

    ask: Ask
    number: int
    tokens: list[Identity]
    start: int
    computed: int
    committed: int  # blocks
    prompt_end: int
    tip: Path | None  # where it goes on in the tree; None: it commits nothing any more
    pages: list[list[Page]]  # per group, per block
    spares: list[list[Page]]
    kept: int  # leading tokens that are still the request's own

    @property
    def decode(self) -> tuple[int, int | None]:
        """Priority and ticks of pages made while decoding."""
        return decode_value(self.ask)


@dataclass(eq=False, slots=True)
class Claim:
    """A request's hold on its hit."""

    ask: Ask
    purpose: str
    start: int = 0
    blocks: int = 0
    source: Path | None = None  # the block of a partial hit
    pages: list[list[Page]] = field(default_factory=list)  # per group: the whole blocks
    sources: list[Page] = field(default_factory=list)  # per group: the source's page, or none at all

    @property
    def held(self) -> list[Page]:
        """Every page it claims."""
        return [page for pages in self.pages for page in pages] + self.sources

    @property
    def num_tokens(self) -> int:
        """Prompt tokens left to compute."""
        return 0 if self.purpose == "decode" else self.ask.compute_end - self.start

    def cold(self, group: int) -> list[Page]:
        """Whole blocks that are not on the device."""
        return [page for page in self.pages[group] if 0 not in page.copies]


@dataclass(eq=False, slots=True)
class Batch:
    """The claims of one call."""

    claims: list[Claim]
    refused: list[RefusalFacts]


class State:
    """One small cache, as it should be."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self.world = world
        self.clock = clock
        self.moves: list[Done] = []
        self.rows: dict[str, Row] = {}
        self.tree = Tree(world.num_groups, self.tips)
        self.pools = [Pools(world, group, self.tree, self.moves) for group in range(world.num_groups)]
        self.free_rows = list(range(world.rows - 1, -1, -1))
        self.roots: list[int] = []  # numbers of the scopes, in the order they came up
        self.batches: dict[str, Batch] = {}
        self.holds: dict[str, tuple[int, int, list[list[Page]]]] = {}  # start, end, pages by group
        self.plans: dict[int, list[Done]] = {}
        self.next_plan = 0

    def tips(self) -> Iterable[Path]:
        """Where live sequences go on in the tree."""
        return [row.tip for row in self.rows.values() if row.tip is not None]

    def now(self) -> int:
        """The clock in whole ticks."""
        return int(self.clock() * TICKS)

    def take_plan(self) -> PlanFacts:
        """Everything decided since the last plan."""
        number = self.next_plan
        self.next_plan += 1
        if self.moves:
            self.plans[number] = list(self.moves)
        facts = PlanFacts(number, tuple(row for row, _ in self.moves))
        self.moves.clear()
        return facts

    def make_root(self, root: int) -> None:
        """A scope comes up; scopes with nothing left in them go first."""
        if root not in self.roots:
            alive = {path[0] for path in (*self.tree.at, *self.tips())}
            self.roots = [other for other in self.roots if other in alive] + [root]


def ticks(seconds: int | None) -> int | None:
    """Seconds as ticks; None stays None."""
    return None if seconds is None else seconds * TICKS


def decode_value(ask: Ask) -> tuple[int, int | None]:
    """Priority and ticks of a request's decoded pages."""
    return (DEFAULT, None) if ask.decode is None else (ask.decode[0], ticks(ask.decode[1]))


def retention(ask: Ask, block: int, block_size: int) -> tuple[int, int | None] | None:
    """What the request says about a block: the range of its first token, or the highest range it touches."""
    first = block * block_size
    if first >= ask.room:
        return decode_value(ask) if ask.decode is not None or ask.ranges else None
    last = first if ask.by == "first" else min(first + block_size, ask.room) - 1
    touched = [
        (priority, ticks(seconds))
        for start, end, priority, seconds in ask.ranges
        if max(start, first) <= min(last, ask.room - 1 if end is None else end - 1)
    ]
    return max(touched, key=lambda value: value[0], default=None)
