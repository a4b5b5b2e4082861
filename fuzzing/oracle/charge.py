"""How many pages a request takes, group by group, and in which columns. Knows no pages."""

from __future__ import annotations

from dataclasses import dataclass

from fuzzing.oracle import reach
from fuzzing.world.plain import Ask, Group, World


@dataclass(frozen=True, slots=True)
class Fill:
    """Columns of one group that get pages now, what is reserved for later, and spare pages for beams."""

    first: int
    stop: int
    peak: int = 0
    spare: int = 0


class Charge:
    """One request and one group of a world."""

    def __init__(self, world: World, ask: Ask, group: Group, junction: int = 0) -> None:
        self.ask, self.group, self.size = ask, group, world.block_size
        self.junction = junction  # where it parts from what is known
        self.is_state = group.kind == "state"
        self.keep = world.reuse and ask.keeps
        self.new = max(0, min(ask.max_new_tokens, world.max_length - ask.room))  # tokens it may generate
        extra = ask.extra_tokens if group.extra is None else group.extra
        self.reach = ask.room if self.is_state else ask.room + extra  # tokens it makes room for
        self.chunk = None if world.max_chunk is None else world.max_chunk + self.reach - ask.compute_end
        self.spare = (ask.beams - 1) * self.apart(ask.compute_end)  # that is where beams part
        self._marks: tuple[int, ...] | None = None  # once asked for

    def blocks(self, tokens: int) -> int:
        """Blocks that so many tokens occupy."""
        return reach.num_blocks(tokens, self.size)

    def apart(self, length: int) -> int:
        """Pages that two beams cannot share at that length: what comes after whole blocks, drafts included."""
        if self.group.kind == "cross":
            return 0
        return 1 if self.is_state else self.blocks(length + (self.group.extra or 0)) - length // self.size

    def marks(self) -> tuple[int, ...]:
        """Where the request wants its state kept, regular places aside."""
        if self._marks is not None:
            return self._marks
        edges = range(0, self.ask.compute_end, self.size)
        end = max(edge for edge in edges if not self.ask.is_uncut(edge))  # where the same prompt could begin
        last = self.ask.compute_end // self.size * self.size  # and a longer one
        named = (block * self.size for block in self.ask.named(self.size))
        self._marks = (*named, self.junction, *((end, last) if self.group.at_end else ()))
        return self._marks

    def is_stop(self, position: int) -> bool:
        """A state is kept here."""
        may = self.is_state and self.keep and not self.ask.is_uncut(position)
        return may and reach.is_stop(self.group, position, self.marks())

    def beside_end(self, start: int, colder: bool) -> int:
        """Slots left beside a state at the prompt's end that is there for longer prompts only; -1: it does not matter.

        The identical prompt begins at the edge before, whose state is not to go for that.
        """
        end = self.ask.compute_end
        before = max(edge for edge in range(0, end, self.size) if not self.ask.is_uncut(edge))
        others = tuple(mark for mark in self.marks()[:-2] if mark)
        if (
            not self.group.at_end
            or end % self.size
            or not self.is_stop(end)
            or not before
            or reach.is_stop(self.group, end, (*others, before))
        ):
            return -1
        return 0 if start < before else -1 if colder else 1

    def peak(self, start: int, held: int = 0) -> int:
        """Pages of its own that it holds at once at most while the prompt is computed from `start`; held at first."""
        if self.is_state:
            return int(any(self.is_stop(position) for position in range(start + 1, self.reach + 1)))
        first, stop = start // self.size, self.blocks(self.reach)
        if self.group.kind != "window" or self.chunk is None:
            return stop - first + held
        sinks = max(0, reach.sink(self.group, self.size) - first)
        begun = self.blocks(self.size - 1 + self.chunk)  # wherever a step begins
        return min(stop - first + held, sinks + reach.keeps(self.group, self.size) + begun)

    def takes(self, start: int, alone: int = 0) -> int:
        """Device slots, at the peak, besides those of the whole pages it found before `start`.

        Those that it alone has make room when they leave.
        """
        return self.peak(start, alone) - alone + self.is_state + self.spare

    def fill(self, start: int, end: int, base: int, held: int = 0, tight: bool = False) -> Fill:
        """What a step that computes from `start` to `end` is given, of a prompt that is computed from `base` on.

        `tight`: a state at the prompt's end would take the place of the one before it.
        """
        last = end >= self.ask.compute_end or not reach.bounded(self.group)
        stop = max(start, self.reach if last else end)
        peak = 0 if last and not self.group.inside else self.peak(base, held)
        if self.is_state:
            kept = self.is_stop(stop) and not self.group.inside
            kept = kept and not (last and tight)
            return Fill(stop // self.size - kept, stop // self.size, peak, self.spare)
        return Fill(start // self.size, max(start // self.size, self.blocks(stop)), peak, self.spare)

    def inside(self, start: int, end: int) -> list[int]:
        """Columns behind which a step from `start` to `end` writes the state itself."""
        edges = range(self.size, end + 1, self.size) if self.group.inside else ()
        return [edge // self.size - 1 for edge in edges if edge > start and self.is_stop(edge)]

    def room(self) -> Fill:
        """What a row that only decodes is given: room for everything its end reads."""
        end = self.ask.compute_end
        if self.is_state:
            return Fill(end // self.size, end // self.size, 0, self.spare)
        first = max(0, end - self.group.window + 1) // self.size if self.group.kind == "window" else 0
        return Fill(first, self.blocks(self.reach), 0, self.spare)

    def room_takes(self, held: int) -> int:
        """Slots that takes, when so many pages are there."""
        room = self.room()
        sinks = min(reach.sink(self.group, self.size), room.first)
        return sinks + room.stop - room.first - (0 if self.is_state else held) + self.is_state + self.spare

    def worst(self, purpose: str) -> int:
        """Pages it may ever hold at once, when it shares nothing."""
        ask, group = self.ask, self.group
        if self.is_state:
            return ask.beams + self.keep  # a state each, and one that was kept or is to be
        drafts, always = (ask.extra_tokens, 0) if group.extra is None else (0, group.extra)
        total = self.blocks(ask.room + max(drafts, self.new) + always)
        shared = ask.compute_end // self.size
        most = max(shared + (total - shared) * ask.beams, self.blocks(self.reach) + self.spare)
        if group.kind != "window":
            return most
        sink, tail = reach.sink(group, self.size), reach.keeps(group, self.size)
        room = self.room()
        first = self.peak(0)
        if purpose == "decode":  # sinks that lie in its room are counted there
            first = min(sink, room.first) + room.stop - room.first
        first += self.spare
        apart = max(0, sink - shared)  # sinks that beams fill after they have parted
        each = tail + 2 + self.blocks(group.extra or 0)
        room_ahead = max(0, tail + self.blocks(self.reach) - shared - each)  # the first has it from its prompt on
        return min(most, max(first, sink - apart + ask.beams * (apart + each) + room_ahead))


def next_stop(world: World, ask: Ask, start: int, end: int, junction: int) -> int:
    """Where a step that begins at `start` ends at the latest: a state can only be kept where a step ends."""
    if not world.has_state:
        return end
    kinds = [group for group in world.kinds if group.kind == "state" and not group.inside]
    charges = [Charge(world, ask, group, junction) for group in kinds]
    edges = range(start // world.block_size * world.block_size, end, world.block_size)
    return next((edge for edge in edges if edge > start and any(one.is_stop(edge) for one in charges)), end)
