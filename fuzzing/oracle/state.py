"""What the oracle knows: rows, claims, holds, plans, pools and the tree, as plain objects. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuzzing.oracle.page import DEFAULT, Page
from fuzzing.oracle.points import Points
from fuzzing.oracle.pools import Pools
from fuzzing.oracle.room import Room
from fuzzing.oracle.tree import Tree
from fuzzing.world.plain import TICKS, Ask, Identity, Move, Path, ReceiptFacts, RefusalFacts, World

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
    pages: list[list[Page | None]]  # per group, per block; None is a hole
    spares: list[list[Page]]
    kept: int  # leading tokens that are still the request's own
    keep: bool  # what it computes may be stored
    bases: list[int]  # per group: columns from here on are its own
    fronts: list[int]  # columns below have left, but for sinks
    showns: list[int]  # columns below were offered to the tree
    edge: int  # blocks after which the same prompt could begin again
    owns: list[int] = field(default_factory=list)  # pages of its own
    held: list[int] = field(default_factory=list)  # of those, the ones of its hit that nobody else had
    peaks: list[int] = field(default_factory=list)  # of those, how many it may hold at once while its prompt lasts
    extras: list[int] = field(default_factory=list)  # of those, how many more because holds keep pages that will leave
    currents: list[Page | None] = field(default_factory=list)  # of state groups: the state itself
    fresh: list[int] = field(default_factory=list)  # class of new pages, in the adaptive order
    written: list[int] = field(default_factory=list)  # of state groups: columns below are written by the prompt's steps
    followed: list[bool] = field(default_factory=list)  # the last that was known of its prompt was to come back
    begun: int = 0  # blocks of its hit
    granted: int = 0  # the furthest it was ever told to compute
    handed: int = 0  # how far it was told to compute last; what is generated is computed in the next step
    reached: int = 0  # how far it was told to compute before tokens were taken back
    prompt: int = 0  # tokens before it are handed out in parts
    launched: int = 0  # how far steps in flight compute it; 0: none does
    since: int = 0  # what steps before this one compute of it counts nothing: it has lost pages
    ending: tuple[bool, int] | None = None  # released while a step in flight computes it: whether to store it, the hint
    decodes: bool = False  # a transfer brings the rest of its prompt
    received: bool = False  # and for some groups more than that: all of it counts, or nothing
    ahead: bool = False  # its pages are those of the prompt's end, not of `computed`
    junction: int = 0  # where its prompt parted from what was known
    named: tuple[int, ...] = ()  # blocks after which others are expected to begin

    @property
    def decode(self) -> tuple[int, int | None]:
        """Priority and ticks of pages made while decoding."""
        return decode_value(self.ask)

    @property
    def is_past(self) -> bool:
        """A step that was not told may have gone further than it has computed: its state is not known."""
        return self.ahead or max(self.handed, self.reached) > self.computed

    def reserve(self, group: int) -> int:
        """Pages reserved for it that it has not taken."""
        return max(0, self.peaks[group] - self.owns[group])

    def all_pages(self, group: int) -> list[Page]:
        """Every page it holds, in the order of columns, the current state last; spares left out."""
        return [page for page in (*self.pages[group], self.currents[group]) if page is not None]


@dataclass(eq=False, slots=True)
class Claim:
    """A request's hold on its hit."""

    ask: Ask
    purpose: str
    start: int = 0
    blocks: int = 0
    coming: int = 0  # the same if all of the slow tier had been brought up
    source: Path | None = None  # the block of a partial hit
    pages: list[dict[int, Page]] = field(default_factory=list)  # per group: the whole blocks it holds
    sources: list[Page] = field(default_factory=list)  # per group: the source's page, or none at all
    found: list[dict[int, Page]] = field(default_factory=list)  # per group: all pages along its tokens, when it looked
    walked: int = 0  # blocks that exist along its tokens
    junction: int = 0  # where it parts from what is known, if a state is to be kept there
    full: Claim | None = None  # what there is, where a part of that is computed all the same
    across: Claim | None = None  # the same in the encoder's stream
    owner: Row | None = None  # the row in flight that computes the last of its blocks, when it looked
    pending: range = range(0)  # those
    receipt: ReceiptFacts | None = None
    cut: bool = False  # what it found was forgotten since
    first: int = 0  # of a find: blocks before it are elsewhere
    good: int = 0  # of a find: blocks up to which what it holds is good
    told: bool = False  # of a find: that it was used
    lost: set[Page] = field(default_factory=set)  # of a find: pages that turned out to be bad
    places: list[Any] = field(default_factory=list)  # of a find: per group block, tier and slot, which stay

    @property
    def held(self) -> list[Page]:
        """Every page it claims, in its own stream."""
        return [page for pages in self.pages for page in pages.values()] + self.sources

    @property
    def num_tokens(self) -> int:
        """Prompt tokens left to compute."""
        return 0 if self.purpose == "decode" else self.ask.compute_end - self.start

    def cold(self, group: int) -> list[Page]:
        """Whole blocks that are not on the device."""
        return [page for page in self.pages[group].values() if 0 not in page.copies]


@dataclass(eq=False, slots=True)
class Batch:
    """The claims of one call."""

    claims: list[Claim]
    refused: list[RefusalFacts]
    behind: list[Claim] = field(default_factory=list)  # those that wait for what some of the claims compute


class State:
    """One small cache, or one token stream of it: the layer groups that read it, as they should be."""

    def __init__(self, world: World, clock: Callable[[], float], groups: range) -> None:
        self.world = world
        self.clock = clock
        self.groups = groups  # numbers of its groups in the cache
        self.kinds = [world.kinds[group] for group in groups]
        self.apart = len(groups) > 1 or self.kinds[0].kind in ("window", "state")  # groups may have different parts
        windows = any(kind.kind == "window" for kind in self.kinds)
        self.asks = windows and not world.has_state and not world.release_order  # prompts asked again matter
        self.partial_hits = world.partial and groups.start == 0
        self.moves: list[Done] = []
        self.rows: dict[str, Row] = {}
        self.points = Points(world, self.kinds, [sum(tier[group] for tier in world.tiers) for group in groups])
        self.tree = Tree(len(groups), self.tips, self.points)
        homes = [world.home(group) for group in groups]
        rooms = {home: Room(world, group) for home, group in zip(reversed(homes), reversed(groups), strict=True)}
        self.pools = [
            Pools(world, (place, group), self.tree, self.moves, rooms[homes[place]])
            for place, group in enumerate(groups)
        ]
        self.sharers = [[place for place, one in enumerate(homes) if one == home] for home in dict.fromkeys(homes)]
        self.mates = [next(groups for groups in self.sharers if one in groups) for one in range(len(groups))]
        self.roots: list[int] = []  # numbers of the scopes, in the order they came up
        self.holds: dict[str, tuple[int, int, list[list[tuple[int, Page]]]]] = {}  # start, end; by group: block, page
        self.trusted = True  # no plan is under way that might fail

    def free(self, group: int) -> int:
        """Device slots that can be had and are reserved for nobody."""
        reserved = 0
        for row in self.rows.values():
            if any(row.peaks):
                reserved += sum(row.reserve(one) for one in self.mates[group] if row.peaks[one])
        return self.pools[group].room.free() - reserved

    def offers(self, group: int) -> bool:
        """Whether final pages become findable at once: a state's are kept where it stands."""
        return self.kinds[group].kind != "state"

    def tips(self) -> list[Path]:
        """Where live sequences go on in the tree."""
        return [row.tip for row in self.rows.values() if row.tip is not None]

    def now(self) -> int:
        """The clock in whole ticks."""
        return int(self.clock() * TICKS)

    def make_root(self, root: int) -> None:
        """A scope comes up; scopes with nothing left in them go first."""
        if root not in self.roots:
            self.sweep()
            self.roots.append(root)

    def sweep(self) -> None:
        """Scopes with nothing left in them go."""
        alive = {path[0] for path in (*self.tree.at, *self.tips())}
        self.roots = [root for root in self.roots if root in alive]


def name_of(row: Row) -> str:
    """What it was asked for as, also when it has ended and waits for a step in flight."""
    return row.ask.name.split("~")[0]


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
