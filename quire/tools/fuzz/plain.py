"""Plain data in which the oracle and the real cache are asked and answer: worlds, requests, results. Knows neither."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

Identity = tuple[int, int, int, int]  # token and its three extra words: what makes two tokens the same
Block = tuple[Identity, ...]
Path = tuple[Any, ...]  # number of the scope, then blocks from the first on
Runs = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]  # media: which content, and the tokens it covers
Move = tuple[int, ...]  # kind, group, src tier, src slot, dst tier, dst slot, tokens, page, second page (-1)
RefusalFacts = tuple[str, str, int, int, bool]  # name, reason, need, have, never
ClaimFacts = tuple[str, int, int, tuple[int, ...]]  # name, start, whole blocks, pages to onboard per group
SetbackFacts = tuple[str, str, int, int, bool]  # "claim" or "sequence", name, old start, start, lost

TICKS = 1_000_000  # per second of the clock


class Misuse(Exception):
    """A call that must be refused with an error, and change nothing."""


@dataclass(frozen=True, slots=True)
class World:
    """Sizes and rules of one small cache."""

    block_size: int
    tiers: tuple[tuple[int, ...], ...]  # slots by tier, then by group
    rows: int = 6
    max_length: int = 40
    reuse: bool = True
    partial: bool = True
    copy_on: bool = True
    shadows: bool = True
    offload_min: int = 30
    release_order: bool = False
    planes: int = 2  # strips of a page; 0: it cannot be split
    flaky: bool = False  # colder tiers may fail, and moves may be doubted

    @property
    def num_groups(self) -> int:
        """Layer groups."""
        return len(self.tiers[0])

    def blocks(self, length: int) -> int:
        """Blocks that so many tokens occupy."""
        return -(-length // self.block_size)


@dataclass(frozen=True, slots=True, repr=False)
class Ask:
    """A request in plain data."""

    name: str
    tokens: tuple[int, ...]
    scope: int = 0
    extra_ids: tuple[int, ...] = ()  # one per token, or none at all
    media: Runs = ()
    root: int = 0  # number of the scope in events
    identities: tuple[Identity, ...] = ()
    length: int | None = None
    ranges: tuple[tuple[int, int | None, int, int | None], ...] = ()  # start, end, priority, seconds
    decode: tuple[int, int | None] | None = None  # priority, seconds
    by: str = "first"
    reuse: bool = True
    beams: int = 1
    extra_tokens: int = 0
    max_new_tokens: int = 0

    def __repr__(self) -> str:
        derived = ("name", "tokens", "root", "identities")
        given = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name not in derived]
        told = [f"{name}={value!r}" for name, value in given if value != getattr(_PLAIN, name, ())]
        return f"Ask({', '.join([repr(self.name), repr(list(self.tokens)), *told])})"

    @property
    def room(self) -> int:
        """Tokens of the prompt that get slots."""
        return len(self.tokens) if self.length is None else self.length

    @property
    def compute_end(self) -> int:
        """First prompt token that is not computed here."""
        return min(self.room, len(self.tokens))


_PLAIN = Ask("", ())


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A plan in plain data."""

    number: int
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one admission."""

    token_budget: int | None = None
    max_chunk: int | None = None
    all_or_nothing: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admission decided."""

    rows: tuple[tuple[str, int, int], ...]  # name, row, start of each new sequence
    spans: tuple[tuple[str, int, int], ...]
    refused: tuple[RefusalFacts, ...]
    plan: PlanFacts
    counts: tuple[tuple[int, ...], ...]  # per new sequence and group


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a probe tells."""

    start: int
    blocks: int  # whole ones
    held: int  # of those, on the device and not to be had
    onboards: tuple[int, ...]
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
