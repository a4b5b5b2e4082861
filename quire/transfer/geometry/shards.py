"""Shards: which bytes of a page two ranks have in common. Pure arithmetic; knows no ranks, no peers and no slots.

a page       [ layer 4                    ][ layer 5                    ]   layers in physical order
a layer      [ section K ][ section V     ]                                 each cut into shards on its own
of 4 shards   ^ this rank has shard 1, and it may be one of several replicas
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.core.records.errors import InputError, say


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a section a rank has, and which of the ranks with that part it is."""

    count: int = 1
    index: int = 0
    replicas: int = 1
    replica: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.index < self.count and 0 <= self.replica < self.replicas):
            fact = f"part {self.index} of {self.count}, replica {self.replica} of {self.replicas}"
            raise InputError(say("a shard", fact, "number parts and replicas from 0"))

    @classmethod
    def of_heads(cls, ranks: int, rank: int, heads: int) -> Shard:
        """The shard of one of `ranks` ranks: heads are split as far as they go, then replicated. 1 head: a latent."""
        if ranks < 1 or heads < 1 or not 0 <= rank < ranks:
            raise InputError(say(f"rank {rank} of {ranks} with {heads} heads", "no such rank", "number them from 0"))
        count = min(ranks, heads)
        if heads % count or ranks % count:
            fact = "neither divides the other"
            raise InputError(say(f"{heads} heads on {ranks} ranks", fact, "use a number of ranks that does"))
        replicas = ranks // count
        return cls(count, rank // replicas, replicas, rank % replicas)


WHOLE = Shard()


@dataclass(frozen=True, slots=True)
class Section:
    """One buffer of a layer as a rank has it: K, V, a latent, a part of a convolution's state.

    `rows` above 1 means token-major: that many equal rows, each cut into shards on its own.
    """

    name: str
    num_bytes: int
    shard: Shard = WHOLE
    rows: int = 1


@dataclass(frozen=True, slots=True)
class PageShape:
    """A page as one rank has it: global layer numbers in physical order, and the sections of each."""

    layers: tuple[int, ...]
    sections: tuple[Section, ...]

    def __post_init__(self) -> None:
        if len(set(self.layers)) != len(self.layers):
            raise InputError(say("a page", f"a layer is there twice in {short(self.layers)}", "name each layer once"))

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer."""
        return sum(section.num_bytes for section in self.sections)

    @property
    def page_bytes(self) -> int:
        """Bytes of the page."""
        return len(self.layers) * self.layer_bytes


def short(numbers: Sequence[int]) -> str:
    """A few of them, for a message."""
    return f"{list(numbers[:8])}"[:-1] + (", ...]" if len(numbers) > 8 else "]")


def opaque(page_bytes: int) -> PageShape:
    """A page that is moved as it is."""
    return PageShape((0,), (Section("page", page_bytes),))


class Fragment(NamedTuple):
    """Bytes that go from one offset in the source page to another in the target page."""

    source: int
    target: int
    num_bytes: int


class ByteRange(NamedTuple):
    """Bytes [start, end) of a page."""

    start: int
    end: int


def misfit(source: PageShape, target: PageShape) -> str | None:
    """Why two ranks' pages cannot be mapped onto each other; None when they can."""
    names = [[section.name for section in shape.sections] for shape in (source, target)]
    if names[0] != names[1]:
        return f"sections {names[0]} and {names[1]} differ"
    for mine, theirs in zip(source.sections, target.sections, strict=True):
        if mine.rows != theirs.rows:
            return f"{mine.name}: {mine.rows} and {theirs.rows} rows"
        counts = sorted((mine.shard.count, theirs.shard.count))
        if counts[1] % counts[0]:
            return f"{mine.name}: {counts[1]} shards do not divide into {counts[0]}"
        totals = [section.num_bytes * section.shard.count for section in (mine, theirs)]
        if totals[0] != totals[1]:
            return f"{mine.name}: {totals[0]} and {totals[1]} bytes over all shards"
        if mine.num_bytes % mine.rows or theirs.num_bytes % theirs.rows:
            return f"{mine.name}: {mine.num_bytes} or {theirs.num_bytes} bytes do not divide into {mine.rows} rows"
        replicas = sorted((mine.shard.replicas, theirs.shard.replicas))
        if replicas[1] % replicas[0]:
            return f"{mine.name}: {replicas[1]} replicas do not divide into {replicas[0]}"
    return None


def overlap(source: PageShape, target: PageShape, turn: int = 0) -> tuple[Fragment, ...]:
    """Bytes the source rank sends to the target rank; none when they share nothing or another replica is elected.

    `turn` rotates the election, so that not always the same replica works.
    """
    wrong = misfit(source, target)
    if wrong is not None:
        raise InputError(say("mapping two ranks' pages", wrong, "serve one model with layouts that divide"))
    theirs = {layer: index for index, layer in enumerate(target.layers)}
    found: list[Fragment] = []
    for index, layer in enumerate(source.layers):
        if layer in theirs:
            start, goal = index * source.layer_bytes, theirs[layer] * target.layer_bytes
            for mine, other in zip(source.sections, target.sections, strict=True):
                common = _common(mine, other, turn)
                found += [Fragment(start + f.source, goal + f.target, f.num_bytes) for f in common]
                start, goal = start + mine.num_bytes, goal + other.num_bytes
    return joined(found)


def _common(source: Section, target: Section, turn: int) -> Iterator[Fragment]:
    """The same inside one section."""
    mine, theirs = source.shard, target.shard
    electors = mine.replicas // theirs.replicas
    if electors > 1 and mine.replica % electors != turn % electors:
        return
    fine, coarse = (mine, theirs) if mine.count >= theirs.count else (theirs, mine)
    ratio = fine.count // coarse.count
    if fine.index // ratio != coarse.index:
        return
    rows, wide = source.rows, (source.num_bytes // source.rows, target.num_bytes // target.rows)
    size = min(wide)
    inside = fine.index % ratio * size
    shift = (0, inside) if fine is mine else (inside, 0)
    for row in range(rows):
        yield Fragment(row * wide[0] + shift[0], row * wide[1] + shift[1], size)


def gaps(page_bytes: int, fragments: Iterable[Fragment]) -> list[ByteRange]:
    """Bytes [start, end) of a target page that none of these fills."""
    found, filled = [], 0
    for start, end in sorted((fragment.target, fragment.target + fragment.num_bytes) for fragment in fragments):
        if start > filled:
            found.append(ByteRange(filled, start))
        filled = max(filled, end)
    return [*found, ByteRange(filled, page_bytes)] if filled < page_bytes else found


def joined(fragments: Iterable[Fragment]) -> tuple[Fragment, ...]:
    """The same bytes in as few fragments as possible."""
    found: list[Fragment] = []
    for new in fragments:
        if found:
            old = found[-1]
            if old.source + old.num_bytes == new.source and old.target + old.num_bytes == new.target:
                found[-1] = Fragment(old.source, old.target, old.num_bytes + new.num_bytes)
                continue
        found.append(new)
    return tuple(found)
