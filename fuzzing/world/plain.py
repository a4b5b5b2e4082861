"""Plain data in which the oracle and the real cache are asked and answer: worlds, requests, results. Knows neither."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

Identity = tuple[int, int, int, int]  # token and its three extra words: what makes two tokens the same
Block = tuple[Identity, ...]
Path = tuple[Any, ...]  # number of the scope, then blocks from the first on
Runs = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  # media: which content, and the tokens it covers
Move = tuple[int, ...]  # kind, group, src tier, src slot, dst tier, dst slot, tokens, page, second page (-1)
RefusalFacts = tuple[str, str, int, int, bool, int]  # name, reason, need, have, never, group (-1: none)
Blocks = tuple[tuple[int, int], ...]  # first and last block of each run, last one out
Numbers = tuple[int, ...]  # one per group
SetbackFacts = tuple[str, str, int, int, bool]  # "claim" or "sequence", name, old start, start, lost

WriterFacts = tuple[tuple[tuple[int, int], ...], ...]  # per group: block, slot
Skip = tuple[tuple[int, tuple[int, ...]], ...]  # groups, and the blocks of them that are left out
FoundFacts = tuple[int, int, tuple[Any, ...]]  # start, end; per group: block, tier, slot

TICKS = 1_000_000  # per second of the clock
SMALL = 40  # longest sequence of small worlds


class Misuse(Exception):
    """A call that must be refused with an error, and change nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one layer group reads; the kind says which of the numbers count."""

    kind: str = "full"  # full, window, state, cross
    window: int = 0
    sinks: int = 0
    every: int = 0  # tokens between snapshots, 0: no regular ones
    at_end: bool = True  # a snapshot at the last block edge of a prompt
    decoding: int | None = None  # the same while decoding, if it differs
    inside: bool = False  # a step writes snapshots itself: its span is not cut for them
    extra: int | None = None  # room it always has behind a sequence

    def clamped(self, max_length: int) -> Group:
        """A window that nothing can outgrow reads everything."""
        return replace(self, kind="full", window=0, sinks=0) if self.window >= max_length else self


FULL = Group()


@dataclass(frozen=True, slots=True)
class World:
    """Sizes and rules of one small cache."""

    block_size: int
    tiers: tuple[tuple[int, ...], ...]  # slots by tier, then by group; of a shared pool the same for all its groups
    rows: int = 6
    max_length: int = 40
    reuse: bool = True
    partial: bool = True
    copy_on: bool = True
    shadows: bool = True
    offload_min: int = 30
    release_order: bool = False
    adaptive: bool = False
    ghosts: int = 0  # per slot, in the adaptive order and with receipts
    min_uses: int = 1  # of a page that is copied down early, in the adaptive order
    planes: int = 2  # strips of a page; 0: it cannot be split
    flaky: bool = False  # colder tiers may fail, and moves may be doubted
    groups: tuple[Group, ...] = ()  # none given: all full
    max_chunk: int | None = None
    encoder_most: int | None = None  # longest encoder input; None: as long as sequences
    receipts: bool = False  # every claim says why it missed what it missed
    scopes: int = 0  # other scopes in which a receipt looks
    slow: bool = False  # no step waits for the coldest tier
    share: float = 1.0  # of the slots above it that prefetches may hold
    snug: Ask | None = None  # a request for which the device pools are just large enough
    spacing: int = 0  # tokens between resume points that are tried inside prompts; 0: nothing is guessed
    pools: tuple[int, ...] = ()  # by group: a group of the same pool, the first one; none given: each has its own
    share_pending: bool = False  # claims find what steps in flight compute
    doubles_at: int = 0  # position of a token that costs twice the first, in the adaptive order; 0: all cost the same

    kinds: tuple[Group, ...] = field(init=False, repr=False, compare=False)  # the rule of each group
    num_own: int = field(init=False, repr=False, compare=False)  # groups of the sequence's own tokens; cross come after
    has_state: bool = field(init=False, repr=False, compare=False)
    is_plain: bool = field(init=False, repr=False, compare=False)  # full attention only

    def __post_init__(self) -> None:
        given = self.groups or (FULL,) * self.num_groups
        kinds = tuple(group.clamped(self.max_length) for group in given)
        facts = {
            "kinds": kinds,
            "num_own": sum(one.kind != "cross" for one in kinds),
            "has_state": any(one.kind == "state" for one in kinds),
            "is_plain": all(one.kind == "full" and one.extra is None for one in kinds),
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @property
    def num_groups(self) -> int:
        """Layer groups."""
        return len(self.tiers[0])

    def home(self, group: int) -> int:
        """The first group of its pool."""
        return self.pools[group] if self.pools else group

    @property
    def scale(self) -> int:
        """How much longer its texts are than those of small worlds."""
        return max(1, self.max_length // SMALL)

    @property
    def slow_tier(self) -> int:
        """The coldest tier if no step waits for it, else -1."""
        return len(self.tiers) - 1 if self.slow else -1

    @property
    def fast(self) -> range:
        """Tiers that steps read and write."""
        return range(len(self.tiers) - self.slow)

    @property
    def max_encoder(self) -> int:
        """Longest encoder input."""
        return self.max_length if self.encoder_most is None else self.encoder_most

    def blocks(self, length: int) -> int:
        """Blocks that so many tokens occupy."""
        return -(-length // self.block_size)


@dataclass(frozen=True, slots=True)
class Encoder:
    """What an encoder read: so many tokens of one content, told by its tokens, by a digest, or not at all."""

    length: int
    content: int
    told: str = "tokens"  # tokens, digest, nothing
    serial: int = 0  # of one that is told by nothing: it is like no other

    @property
    def meaning(self) -> tuple[object, ...]:
        """All that its states depend on."""
        return self.told, self.content, self.length, self.serial


@dataclass(frozen=True, slots=True, repr=False)
class Ask:
    """A request in plain data."""

    name: str
    tokens: tuple[int, ...]
    scope: int = 0
    extra_ids: tuple[int, ...] = ()  # one per token, or none at all
    media: Runs = ()
    root: int = 0  # number of the scope in events; with an encoder that of both
    scope_root: int = 0  # of the scope alone
    identities: tuple[Identity, ...] = ()
    length: int | None = None
    ranges: tuple[tuple[int, int | None, int, int | None], ...] = ()  # start, end, priority, seconds
    decode: tuple[int, int | None] | None = None  # priority, seconds
    by: str = "first"
    reuse: bool = True
    reuse_limit: int | None = None
    redo: int = 0  # blocks of what it finds that it computes all the same
    beams: int = 1
    extra_tokens: int = 0
    max_new_tokens: int = 0
    snapshots: tuple[int, ...] = ()  # resume points
    encoder: Encoder | None = None
    uncut: tuple[tuple[int, int], ...] = ()  # tokens that one step computes together
    session: int | None = None
    places: tuple[Identity, ...] = ()  # identities of the encoder's stream, whole blocks

    room: int = field(init=False, repr=False, compare=False)  # tokens of the prompt that get slots
    compute_end: int = field(init=False, repr=False, compare=False)  # first prompt token that is not computed here

    def __post_init__(self) -> None:
        room = len(self.tokens) if self.length is None else self.length
        object.__setattr__(self, "room", room)
        object.__setattr__(self, "compute_end", min(room, len(self.tokens)))

    def name_tokens(self, identities: tuple[Identity, ...], places: tuple[Identity, ...], roots: Numbers) -> None:
        """Tell a new ask what follows from the rest of it; `roots` are its own and its scope's."""
        for name, value in zip(
            ("identities", "places", "root", "scope_root"), (identities, places, *roots), strict=True
        ):
            object.__setattr__(self, name, value)

    def named(self, size: int) -> tuple[int, ...]:
        """Blocks of its prompt after which it says that others may begin."""
        return tuple(sorted({at // size for at in self.snapshots if size <= at <= self.compute_end}))

    def is_uncut(self, place: int) -> bool:
        """No step may end here."""
        return any(start < place < stop for start, stop in self.uncut)

    @property
    def keeps(self) -> bool:
        """It may be found again: text over an input that nothing names may not."""
        return self.reuse and (self.encoder is None or self.encoder.told != "nothing")

    @property
    def may_resume(self) -> bool:
        """It has none of what a request loses when it is suspended."""
        return self.length is None and self.reuse_limit is None and all(end is not None for _, end, _, _ in self.ranges)

    def __repr__(self) -> str:
        derived = ("name", "tokens", "root", "scope_root", "identities", "places", "room", "compute_end")
        given = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name not in derived]
        told = [f"{name}={value!r}" for name, value in given if value != getattr(_PLAIN, name, ())]
        return f"Ask({', '.join([repr(self.name), repr(list(self.tokens)), *told])})"


_PLAIN = Ask("", ())


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A plan in plain data."""

    number: int
    moves: tuple[Move, ...]
    background: bool = False
    after: int = -1  # the step's plan that must have run before


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one admission."""

    token_budget: int | None = None
    max_chunk: int | None = None
    all_or_nothing: bool = False


class MissFacts(NamedTuple):
    """Tokens that were not reused for one reason."""

    cause: str
    start: int
    stop: int
    group: int | None = None
    ticks: int | None = None  # since they went
    admission: int | None = None
    request: str | None = None  # who computes them
    hint: int = 0  # that their pages were ranked by


class ReceiptFacts(NamedTuple):
    """What of a prompt was reused, and why the rest was not."""

    length: int
    reused: int
    hits: tuple[tuple[tuple[int, int], int], ...]  # tokens by tier and group
    misses: tuple[MissFacts, ...]


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What a claim found."""

    name: str
    start: int
    blocks: int  # whole ones that every group can resume after
    onboards: Numbers  # pages to read from a colder tier
    slots: Numbers  # slots it needs at its peak
    spans: tuple[Blocks, ...]  # per group: what there is of what the prompt's end needs, in tokens
    wants: tuple[Blocks, ...]  # per group: what the prompt's end needs and the claim does not hold, in blocks
    receipt: ReceiptFacts | None = None
    coming: int = 0  # tokens that a prefetch would have brought
    coming_pages: Numbers = ()
    junction: int = 0  # where a state will be kept because the text parts there


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admission decided."""

    rows: tuple[tuple[str, int, int], ...]  # name, row, start of each new sequence
    spans: tuple[tuple[str, int, int], ...]
    refused: tuple[RefusalFacts, ...]
    plan: PlanFacts
    counts: tuple[tuple[int, ...], ...]  # per new sequence and group
    waiting: tuple[str, ...]  # continuing ones without a span
    receipts: tuple[ReceiptFacts, ...] | None = None  # of the new sequences
    snapshots: tuple[tuple[str, int, int, int], ...] = ()  # name, group, position, slot that a step writes itself


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a probe tells."""

    start: int
    blocks: int  # whole ones
    held: int  # of those, on the device and not to be had
    spans: tuple[Blocks, ...]  # per group, in tokens
    onboards: Numbers
    slots: tuple[int, ...]  # by how much the free counts would go down
    slots_to_completion: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closing:
    """What finishing a plan changed."""

    setbacks: tuple[SetbackFacts, ...]
    plan: PlanFacts | None

    def firm(self) -> Closing:
        """The part that is laid down: setbacks come in any order."""
        return replace(self, setbacks=tuple(sorted(self.setbacks)))
