"""Mirror: what a router knows who only hears events. Owns its own event hash, made from the formula alone."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

from fuzzing.compare import Mismatch
from fuzzing.world.build import SEED as SEED
from fuzzing.world.plain import Block, Path
from quire import Cleared, Created, Event, Moved, Removed, Retained, Stored

_MASK = (1 << 64) - 1
Facts = dict[int, tuple[int, int]]  # hash -> tier, priority


class Mirror:
    """Replays events; per group the pages that should be there, by hash."""

    def __init__(self, num_groups: int) -> None:
        self.groups: list[Facts] = [{} for _ in range(num_groups)]
        self.created = 0

    def replay(self, events: Iterable[Event]) -> None:
        """Take events in order; each must make sense after those before it."""
        for event in events:
            self._replay(event)

    def _replay(self, event: Event) -> None:
        known = self.groups[event.group]
        match event:
            case Created():
                self.created += 1
            case Stored(hashes=hashes, priorities=priorities):
                self._stored(event, known)
                known.update((name, (event.tier, priority)) for name, priority in zip(hashes, priorities, strict=True))
            case Moved(hash=name, source=source, target=target):
                if not known[name][0] == source != target:
                    raise Mismatch(f"{event}: it is in tier {known[name][0]}")
                known[name] = (target, known[name][1])
            case Retained(hash=name, old=old, new=new):
                if not known[name][1] == old != new:
                    raise Mismatch(f"{event}: it has priority {known[name][1]}")
                known[name] = (known[name][0], new)
            case Removed(hashes=hashes):
                if not hashes:
                    raise Mismatch("a removal of nothing")
                for name in hashes:
                    if known.pop(name, None) is None:
                        raise Mismatch(f"{event}: it was not there")
            case Cleared():
                known.clear()

    def _stored(self, event: Stored, known: Facts) -> None:
        if set(event.hashes) & set(known):
            raise Mismatch(f"{event}: it was there")
        if len(event.tokens) != len(event.hashes) * event.tokens_per_block:
            raise Mismatch(f"{event}: tokens are missing")
        if event.scope is None:
            raise Mismatch(f"{event}: its scope has no name")


class Hashes:
    """Event hash of a path; made once."""

    def __init__(self) -> None:
        self.made: dict[Path, int] = {}

    def of(self, path: Path) -> int:
        """The hash of the last block of a path."""
        if len(path) == 1:
            return int(path[0])
        found = self.made.get(path)
        if found is None:
            found = self.made[path] = event_hash(self.of(path[:-1]), path[-1])
        return found


def event_hash(parent: int, block: Block) -> int:
    """The hash of a block under its parent's: its tokens, then what they carry."""
    name = keyed(pack(f"<Q{len(block)}i", parent, *(token for token, *_ in block)))
    words = [pack("<4Q", place, *extra) for place, (_, *extra) in enumerate(block) if any(extra)]
    return (keyed(pack("<Q", name) + b"".join(words) + b"\x01") if words else name) or 1


def keyed(message: bytes) -> int:
    """SipHash-2-4 of a message with the seed of all worlds, as its paper says it."""
    k0, k1 = (int.from_bytes(half, "little") for half in (SEED[:8], SEED[8:]))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    padded = message + b"\0" * (-(len(message) + 1) % 8) + bytes([len(message) & 0xFF])
    for place in range(0, len(padded), 8):
        word = int.from_bytes(padded[place : place + 8], "little")
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    _rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        for one, other, by in ((0, 1, 13), (2, 3, 16)):
            v[one] = (v[one] + v[other]) & _MASK
            v[other] = _turned(v[other], by) ^ v[one]
        v[0] = _turned(v[0], 32)
        for one, other, by in ((2, 1, 17), (0, 3, 21)):
            v[one] = (v[one] + v[other]) & _MASK
            v[other] = _turned(v[other], by) ^ v[one]
        v[2] = _turned(v[2], 32)


def _turned(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & _MASK
