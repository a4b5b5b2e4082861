"""LayerGroup: what one group of layers reads and keeps. The only file that knows kinds of attention; it knows no pages.

    full     every token before the query          # # # # # # # # q
    window   the last W tokens, itself included    s s . . . # # # q    s: sinks, read for ever
    state    one recurrent state, updated in place . . S . . S . . q    S: snapshots, where reading may begin
    cross    the encoder's tokens, a stream of its own

Every method and function answers in blocks; `size` is the block size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from quire.core.records.caller_arguments import names_fields
from quire.core.records.errors import InputError, say, shown
from quire.core.records.span import Span, cut_before, merged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST = 1 << 31  # the store counts in 32 bits
ALL = -1  # as a tail or a keep: every block up to here
Kind = Literal["full", "window", "state", "cross"]


class Marks(NamedTuple):
    """Where a request wants snapshots besides the regular ones."""

    named: tuple[int, ...] = ()
    end: int = 0  # the last block edge inside its prompt at which it may be cut
    last: int = 0  # the prompt's end, if it is a block edge
    junction: int = 0  # where it parts from a text that is cached
    uncut: tuple[Span, ...] = ()  # no step ends inside these, so no snapshot is taken there either


class Lengths(NamedTuple):
    """How long a sequence gets, in tokens."""

    prompt: int
    reach: int  # the prompt with the room behind it
    longest: int


NO_MARKS = Marks()


def _edges(marks: Marks) -> tuple[int, ...]:
    return *marks.named, marks.end, marks.last, marks.junction


@names_fields
@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a reading rule, hence a block table. By default full attention."""

    name: str = "full"
    page_bytes: int = 0  # bytes of one page (of one state); 0: the cache is used for decisions only
    planes: int = 0  # equal strips of a page (layers x K/V), each block_size tokens long; 0: a page cannot be split
    window: int | None = None  # tokens a query reads, itself included
    sinks: int = 0  # leading tokens a window group reads for ever
    snapshot_every: int | None = None  # recurrent state: a snapshot every so many tokens; 0: no regular ones
    snapshot_at_end: bool = True  # and one at the last block edge inside each prompt, and at its end if that is one
    cross: bool = False  # reads the encoder's stream
    extra_tokens: int | None = None  # room it always has behind a sequence (a draft model's); None: the request's
    snapshot_decoding: int | None = None  # snapshots while decoding: every so many tokens; 0: none; None: as in prompts
    snapshot_inside: bool = False  # a step writes the states inside its span itself: prompts are not cut for them
    pool: str | None = None  # groups that name the same pool share its slots; None: a pool of its own

    def __post_init__(self) -> None:
        self._check_values()
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise self._wrong(f"its window is {shown(self.window)}", "a query reads at least itself: give 1 or more")
        if self.planes and self.page_bytes % self.planes:
            fact = f"{self.page_bytes} bytes do not divide into {self.planes} planes"
            raise self._wrong(fact, "make page_bytes a multiple of planes")
        if (self.window is not None) + (self.snapshot_every is not None) + self.cross > 1:
            raise self._wrong("it asks for two kinds at once", "use one of window, snapshot_every and cross")
        if self.sinks and self.window is None:
            raise self._wrong(f"it has {self.sinks} sinks and no window", "only a window forgets; leave sinks at 0")
        if self.snapshot_decoding is not None and self.kind != "state":
            fact = f"snapshot_decoding is {self.snapshot_decoding}, and it keeps no states"
            raise self._wrong(fact, "give snapshot_every too, or leave it at None")
        if type(self.snapshot_inside) is not bool or (self.snapshot_inside and self.kind != "state"):
            fact = f"snapshot_inside is {shown(self.snapshot_inside)}"
            raise self._wrong(fact, "pass True or False, and True only with snapshot_every")
        if self.cross and self.pool is not None:
            fact = f"it names pool {shown(self.pool)}, and the encoder's pages come and go by rules of their own"
            raise self._wrong(fact, "leave pool at None: a cross group has a pool of its own")
        if self.extra_tokens is not None and self.kind in ("state", "cross"):
            raise self._wrong("extra_tokens have no meaning for it", "leave them at None")

    def _check_values(self) -> None:
        if not isinstance(self.name, str):
            raise self._wrong(f"its name is a {type(self.name).__name__}", "pass a string")
        for name in ("page_bytes", "planes", "sinks", "snapshot_every", "snapshot_decoding", "extra_tokens"):
            number = getattr(self, name)
            if number is None and name in ("snapshot_every", "snapshot_decoding", "extra_tokens"):
                continue
            if type(number) is not int or number < 0:
                raise self._wrong(f"{name} {shown(number)} is not a size", "give a whole number >= 0")
            if number >= LARGEST and name not in ("page_bytes", "planes"):
                raise self._wrong(f"{name} {shown(number)} is beyond {LARGEST:,} tokens", "give fewer")
        if self.pool is not None and not isinstance(self.pool, str):
            raise self._wrong(f"its pool is {shown(self.pool)}", "pass the pool's name, or None for one of its own")
        for name in ("cross", "snapshot_at_end"):
            if type(getattr(self, name)) is not bool:
                raise self._wrong(f"{name} is {shown(getattr(self, name))}", "pass True or False")

    def _wrong(self, fact: str, cure: str) -> InputError:
        return InputError(say(f"layer group {shown(self.name)}", fact, cure))

    @property
    def kind(self) -> Kind:
        """For people and for events; decisions are made by the methods below."""
        if self.cross:
            return "cross"
        if self.snapshot_every is not None:
            return "state"
        return "full" if self.window is None else "window"

    def clamped(self, max_length: int) -> LayerGroup:
        """A window that no sequence can outgrow is full attention."""
        if self.window is None or self.window < max_length:
            return self
        return replace(self, window=None, sinks=0)

    # -- what resuming and holding needs -----------------------------------------------------------------------------

    def tail(self, size: int) -> int:
        """Blocks right before a boundary that must be there to resume at it; ALL for every one."""
        if self.snapshot_every is not None:
            return 1
        return ALL if self.window is None else -(-(self.window - 1) // size)

    def sink(self, size: int) -> int:
        """Leading blocks that must be there as well."""
        return -(-self.sinks // size)

    @property
    def bounded(self) -> bool:
        """It forgets: a sequence lets go of pages while it runs."""
        return self.window is not None or self.snapshot_every is not None

    @property
    def current(self) -> int:
        """Pages outside the block table: the state that is updated in place."""
        return int(self.snapshot_every is not None)

    def every(self, size: int) -> int:
        """While decoding, every how many blocks one gets a page."""
        every = self.snapshot_every if self.snapshot_decoding is None else self.snapshot_decoding
        return 1 if every is None else every // size

    def live_blocks(self, length: int, size: int) -> tuple[Span, ...]:
        """Blocks that the query at position `length` may read or add to, when KV of `length` tokens exists."""
        stop = -(-length // size)
        if self.snapshot_every is not None:
            return ()
        if self.window is None:
            return merged(Span(0, stop))
        first = max(0, length - self.window + 1) // size
        return merged(Span(0, min(self.sink(size), stop)), Span(min(first, stop), stop))

    def needs_at(self, length: int, size: int) -> tuple[Span, ...]:
        """Blocks that must be present to resume, or to decode, at `length`."""
        if self.snapshot_every is None:
            return self.live_blocks(length, size)
        stop = -(-length // size)
        return merged(Span(max(0, stop - 1), stop))

    def found(self, present: Sequence[bool] | NDArray[np.bool_], length: int, size: int) -> tuple[Span, ...]:
        """Of what `length` needs, the blocks that are there; where every block is needed, those before a gap."""
        if self.tail(size) == ALL:
            there = bytes(present[: -(-length // size)])  # not block by block: a probe asks about long prompts
            return merged(Span(0, there.find(0) if 0 in there else len(there)))
        blocks = [b for need in self.needs_at(length, size) for b in range(need.start, min(need.end, len(present)))]
        if self.snapshot_every is not None and length % size:
            return ()
        return merged(*(Span(b, b + 1) for b in blocks if present[b]))

    # -- what computing takes ----------------------------------------------------------------------------------------

    def most(self, lengths: tuple[int, int, int], beams: int, size: int, chunk: int | None) -> int:
        """Device pages it may hold at once over a whole life of such `Lengths`."""
        if self.snapshot_every is not None:
            return beams + 1  # one state each, and the snapshot that they began from
        prompt, reach, longest = lengths
        total, shared = -(-longest // size), prompt // size
        spare = (beams - 1) * forked_pages(self, prompt, size)
        plain = total if beams == 1 else max(shared + (total - shared) * beams, -(-reach // size) + spare)
        if self.window is None:
            return plain
        first = peak_pages(self, 0, reach, chunk, size)
        return min(plain, max(first + spare, _later(self, prompt, reach, beams, size)))

    def running(self, size: int) -> int:
        """Pages a decoding sequence of a bounded group holds at most, sinks aside."""
        return self.tail(size) + 2 + -(-(self.extra_tokens or 0) // size)


def blocks_kept(group: LayerGroup, size: int) -> int:
    """Blocks right before the last final token that a sequence goes on holding; ALL: it never lets go."""
    return 0 if group.snapshot_every is not None else group.tail(size)


def is_stop(group: LayerGroup, position: int, marks: Marks | None, size: int) -> bool:
    """A snapshot is taken here; without marks (nothing is kept) nowhere."""
    every = group.snapshot_every
    if every is None or marks is None or not position or position % size:
        return False
    if marks.uncut and cut_before(position, marks.uncut) < position:
        return False
    if every and position % every == 0:
        return True
    if group.snapshot_at_end and (position == marks.end or position == marks.last):
        return True
    return position == marks.junction or position in marks.named


def yields_its_end(group: LayerGroup, marks: Marks | None, size: int) -> bool:
    """Its snapshot at the prompt's end serves longer prompts only, and there is one before it for the same prompt."""
    if marks is None or not marks.last or not is_stop(group, marks.end, marks, size):
        return False
    return not is_stop(group, marks.last, marks._replace(last=0), size)


def next_stop(group: LayerGroup, start: int, end: int, marks: Marks | None, size: int) -> int:
    """Where a step from `start` on must end at the latest: elsewhere a state is kept only by the step itself."""
    return end if group.snapshot_inside else _next_snapshot(group, start, end, marks, size)


def _next_snapshot(group: LayerGroup, start: int, end: int, marks: Marks | None, size: int) -> int:
    """Where behind `start` the next snapshot is, or the end."""
    if group.snapshot_every is None or marks is None:
        return end
    if group.snapshot_every:
        end = min(end, _next_regular(group, start, marks))
    for edge in _edges(marks):
        if start < edge < end and is_stop(group, edge, marks, size):
            end = edge
    return end


def snapshots_inside(group: LayerGroup, start: int, end: int, marks: Marks | None, size: int) -> list[int]:
    """Blocks behind which a step from `start` to `end` writes the state itself, its end included."""
    if not group.snapshot_inside or marks is None:
        return []
    places = set(_edges(marks))
    if group.snapshot_every:
        places.update(range((start // group.snapshot_every + 1) * group.snapshot_every, end + 1, group.snapshot_every))
    return sorted(at // size - 1 for at in places if start < at <= end and is_stop(group, at, marks, size))


def _next_regular(group: LayerGroup, start: int, marks: Marks) -> int:
    """The next regular snapshot behind `start` that no uncut span is in the way of."""
    assert group.snapshot_every
    position = (start // group.snapshot_every + 1) * group.snapshot_every
    for span in marks.uncut:
        if span.start < position < span.end:
            position = -(-span.end // group.snapshot_every) * group.snapshot_every
    return position


def stored_at(group: LayerGroup, start: int, end: int, size: int, marks: Marks | None = NO_MARKS) -> tuple[int, int]:
    """Blocks, from and to, that get a page of their own when the tokens up to `end` are computed in one step."""
    if group.snapshot_every is not None:
        stop = end // size
        return stop - (not group.snapshot_inside and is_stop(group, end, marks, size)), stop
    return start // size, max(start // size, -(-end // size))


def room_at(group: LayerGroup, length: int, reach: int, size: int) -> Span:
    """Blocks, sinks aside, that a sequence which only decodes after `length` has pages for, up to `reach`."""
    if group.snapshot_every is not None:
        return Span(length // size, length // size)
    first = 0 if group.window is None else max(0, length - group.window + 1) // size
    return Span(first, -(-reach // size))


def peak_pages(
    group: LayerGroup, start: int, end: int, chunk: int | None, size: int, *, marks: Marks | None = NO_MARKS,
    held: int = 0,
) -> int:  # fmt: skip
    """Pages of its own that a sequence holds at once while it computes up to `end`, `chunk` tokens in a step.

    `held`: those that it has at first, because no other row has the pages of its hit.
    """
    if group.snapshot_every is not None:
        return int(is_stop(group, _next_snapshot(group, start, end, marks, size), marks, size))
    first = start // size
    blocks = -(-end // size) - first
    if group.window is None or chunk is None:
        return blocks + held
    most = max(0, group.sink(size) - first) + group.tail(size) + -(-(size - 1 + chunk) // size)
    return min(blocks + held, most)  # a step may begin at the last token of a block, its window before it


def forked_pages(group: LayerGroup, length: int, size: int) -> int:
    """Pages that a fork at `length` cannot share: one formula for beams and forks, with and without reuse."""
    if group.cross:
        return 0
    if group.snapshot_every is not None:
        return 1
    return -(-(length + (group.extra_tokens or 0)) // size) - length // size


def most_decoding(group: LayerGroup, lengths: Lengths, beams: int, size: int) -> int:
    """The same for a sequence whose prompt a transfer brings."""
    prompt, reach, _ = lengths
    plain = group.most(lengths, beams, size, None)
    if group.window is None:
        return plain
    room = room_at(group, prompt, reach, size)
    first = min(group.sink(size), room.start) + len(room) + (beams - 1) * forked_pages(group, prompt, size)
    return min(plain, max(first, _later(group, prompt, reach, beams, size)))


def _later(group: LayerGroup, prompt: int, reach: int, beams: int, size: int) -> int:
    """Pages that beams hold at most while they decode: they share the sinks that the prompt has filled.

    The first of them has the room up to `reach`, which it got with the prompt, while the others begin.
    """
    shared = min(group.sink(size), prompt // size)
    roomy = max(group.running(size), group.tail(size) + -(-reach // size) - prompt // size)
    return shared + beams * (group.sink(size) - shared) + roomy + (beams - 1) * group.running(size)


def columns_of(group: LayerGroup, length: int, size: int) -> int:
    """Places of its row that `length` tokens use: a state's snapshot belongs to a whole block."""
    return length // size if group.snapshot_every is not None else -(-length // size)


def growth(group: LayerGroup, coming: int, have: int, size: int) -> int:
    """Slots that `coming` more blocks need at most, when a sequence holds `have` pages; snapshots can wait."""
    if group.snapshot_every is not None:
        return 0
    if group.window is None:
        return coming
    return min(coming, max(0, group.sink(size) + group.running(size) - have))


def misplaced(group: LayerGroup, size: int) -> str | None:
    """Why its snapshots cannot be taken in blocks of this size."""
    for every in (group.snapshot_every or 0, group.snapshot_decoding or 0):
        if every % size:
            return f"snapshots every {every} tokens do not fall on edges of {size}"
    return None


def hopeless_group(group: LayerGroup, slots: int, size: int, max_length: int) -> str | None:
    """Why no hit can ever satisfy it, or only at positions that requests name."""
    if group.snapshot_every is not None and slots < 2:
        return "has no slot for a snapshot beside one current state: it refuses every request that may be reused"
    regular = min(group.snapshot_every or max_length, group.snapshot_decoding or max_length)
    if group.snapshot_every is not None and not group.snapshot_at_end and not regular < max_length:
        every = f"has snapshots every {group.snapshot_every} tokens, none at the end of prompts"
        others = "only junctions, ends of sequences and requests that name snapshots leave any"
        return f"{every}, and max_length is {max_length}: {others}"
    least = min(group.tail(size) + group.sink(size), -(-max_length // size))
    if group.window is not None and least > slots:
        why = f"needs {least} pages to resume, and its pool has {slots}"
        return f"(window {group.window}) {why}: long prompts are computed from the start"
    return None


def pools_of(groups: Sequence[LayerGroup]) -> tuple[int, ...]:
    """By group: the number of its pool. Pools are counted in the order in which groups first name them."""
    names = [number if group.pool is None else group.pool for number, group in enumerate(groups)]
    found = list(dict.fromkeys(names))
    return tuple(found.index(name) for name in names)
