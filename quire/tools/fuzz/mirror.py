"""Mirror: what a router knows who only hears events. Owns its own event hash, made from the formula alone."""

from __future__ import annotations

from collections.abc import Iterable

from quire import Cleared, Created, Event, Moved, Removed, Retained, Stored
from quire.tools.fuzz.compare import Mismatch
from quire.tools.fuzz.plain import Block, Path

_MASK = (1 << 64) - 1
_K0, _K1, _K2, _K3 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93
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
                known.update((name, (0, priority)) for name, priority in zip(hashes, priorities, strict=True))
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


def fold(a: int, b: int) -> int:
    """Low half xor high half of the product of two 64-bit numbers."""
    product = (a & _MASK) * (b & _MASK)
    return (product & _MASK) ^ (product >> 64)


def event_hash(parent: int, block: Block) -> int:
    """The hash of a block under its parent's, in two lanes of token pairs."""
    tokens = [identity[0] & 0xFFFFFFFF for identity in block]
    seed = fold(parent ^ _K0, len(tokens) + _K1)
    pairs = list(zip(tokens[::2], [*tokens[1::2], 0], strict=False))
    words = [low | high << 32 for low, high in pairs]
    a, b = seed, seed ^ _K3
    for word in words[0::2]:
        a = (fold(a ^ word, _K2) + _K1) & _MASK
    for word in words[1::2]:
        b = (fold(b ^ word, _K0) + _K3) & _MASK
    name = fold(a ^ _K1, b ^ _K2)
    for place, (_, *extra) in enumerate(block):
        if any(extra):
            for word, factor in zip(extra, (_K0 + place, _K1, _K2), strict=True):
                name = fold(name ^ word, factor)
    return name or 1
