"""An order over keys of a caller, who keeps what they stand for: which go next when room is needed.

Owns all that an order needs to know of keys alone: uses, classes, ghosts, what LRU would have kept, and which key
continues which. Ranks them by the same lists as pages (`adaptive`, `lru`). Knows no tokens, no tree and no tiers, nor
where the bytes are. A key is bytes; equal bytes are the same thing.
"""

from collections.abc import Collection, Container, Sequence

import numpy as np

from quire.core.records.errors import BrokenInvariant
from quire.core.store.interface import Int32Array, Int64Array
from quire.core.store.reference.keys.hash import K0, K1, K2, MASK, fold
from quire.core.store.reference.learned.ages import age_bin, cell_number, class_of, told_class
from quire.core.store.reference.learned.cells import stride
from quire.core.store.reference.learned.ghosts import Ghost, Ghosts, rest_of
from quire.core.store.reference.learned.rival import Rival
from quire.core.store.reference.orders.adaptive import Adaptive
from quire.core.store.reference.orders.lru import Lru
from quire.core.store.reference.pools.order import Entry, EvictionOrder
from quire.core.store.reference.tree.node import DEFAULT_PRIORITY
from quire.core.store.reuse import (
    AGING,
    CONTINUED,
    EVICTED,
    MAX_USES,
    NEVER,
    NUM_AGES,
    NUM_CELLS,
    NUM_REUSE_CLASSES,
    ONCE,
)

MOST_KEYS = 1 << 28
LEAST_NEW = 2048  # keys that come until an order learns, at least: in a small one learning would take longer
APART = 4  # uses of a key more than of the next: turns may have ended between them; more were other texts


class Kept:
    """What is known of a key that is there."""

    __slots__ = (
        "alive", "hash", "held", "key", "kids", "number", "parent", "priority", "reuse", "spared", "used", "uses",
        "watched",
    )  # fmt: skip

    def __init__(self, key: bytes, number: int) -> None:
        self.key = key
        self.hash = hash_of(key)
        self.number = number
        self.alive = True
        self.held = True
        self.spared = False  # by the call that is under way
        self.parent: Kept | None = None  # the key that it continues; it may have gone
        self.kids = 0  # keys that continue it
        self.priority = DEFAULT_PRIORITY
        self.uses, self.reuse, self.used = 0, ONCE, 0
        self.watched = False


class KeyOrder:
    """Which of a caller's keys go next."""

    def __init__(self, room: int, ghosts: int = 8, adaptive: bool = True) -> None:
        if not 1 <= room <= MOST_KEYS or not 0 <= ghosts <= 64:
            raise ValueError(
                f"an order of {room} keys with {ghosts} ghosts each: 1 to {MOST_KEYS} keys, 0 to 64 ghosts"
            )
        self._room, self._adaptive = room, adaptive
        self._ghosts_each = ghosts if adaptive else 0
        self.clear()

    def clear(self) -> None:
        """All keys go, held ones too, and all that was learned."""
        self._kept: dict[bytes, Kept] = {}
        self._places: list[Kept | None] = [None] * self._room
        self._free = list(range(self._room - 1, -1, -1))
        self._num_held = 0
        self._ranking: EvictionOrder[Kept] = Adaptive() if self._adaptive else Lru()
        self._ghosts, self._rival = Ghosts(self._ghosts_each * self._room), Rival(self._room)
        self._hits = np.zeros((NUM_REUSE_CLASSES, NUM_AGES), np.int64)
        self._lost = np.zeros((NUM_REUSE_CLASSES, NUM_AGES), np.int64)
        self._now, self._asked, self._made, self._inserted = 0, -1, 0, 0
        self._met: dict[bytes, int] = {}  # keys that will come, and were there before -> their uses with this one

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    @property
    def num_free(self) -> int:
        """Keys that may go."""
        return len(self._kept) - self._num_held

    def set_time(self, now: int) -> None:
        """In microseconds; it never goes back."""
        self._now = max(self._now, now)

    # keys come, are held, and go

    def meet(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """These will come: how many of them were there before, and the class of the last of those."""
        self._met.clear()
        count, reuse = 0, ONCE
        for key in keys:
            ghost = self._ghosts.take_ghost((0, hash_of(key), 0)) if len(self._ghosts) else None
            if ghost is not None:
                self._rival.miss_watched(ghost.key)
                self._hits[ghost.reuse, age_bin(self._now - ghost.used)] += 1
                self._met[key] = min(ghost.uses + 1, MAX_USES)
                count, reuse = count + 1, ghost.reuse
        return count, reuse

    def come(self, key: bytes) -> None:
        """A key is there from now on, and held."""
        if key in self._kept or not self._free:
            raise ValueError("the key is there already" if key in self._kept else f"{self._room} keys are there")
        kept = self._kept[key] = Kept(key, self._free.pop())
        self._places[kept.number] = kept
        self._num_held += 1
        kept.uses = self._met.pop(key, 1)
        kept.reuse, kept.used = class_of(kept.uses, ONCE), self._now
        if self._rival.chooses(np.array([kept.hash & 0xFFFFFFFF, kept.hash >> 32], np.uint32).view(np.int32)):
            kept.watched = self._rival.come_watched((0, kept.hash, 0))
        self._made += 1
        self._inserted += 1
        self._ranking.add(kept, self._entry_of(kept))

    def hold(self, key: bytes) -> None:
        """A key may not go from now on."""
        kept = self._kept[key]
        self._num_held += not kept.held
        kept.held = True

    def let_go(self, key: bytes) -> None:
        """A key may go from now on."""
        kept = self._kept[key]
        self._num_held -= kept.held
        kept.held = False
        self._ranking.spare_no_more(kept)

    def take(self, count: int, spared: Collection[bytes] = ()) -> list[bytes] | None:
        """So many keys go, neither held nor spared; None: there are fewer, and nothing has changed."""
        apart = [kept for key in spared if (kept := self._kept.get(key)) is not None and not kept.held]
        if count > self.num_free - len({kept.number for kept in apart}):
            return None
        if self._made >= -(-self._room // AGING):
            self._made = 0
            self._ranking.age(self._now)
        for kept in apart:
            kept.spared = True
        gone = [self._take_first() for _ in range(count)]
        for kept in apart:
            kept.spared = False
            self._ranking.spare_no_more(kept)
        return gone

    def _take_first(self) -> bytes:
        kept = self._ranking.first(lambda other: other.held or other.spared)
        if kept is None:
            raise BrokenInvariant("no key may go, although it was counted before")
        ghost = Ghost((0, kept.hash, 0), kept.used, rest_of(kept.used, self._now), EVICTED, kept.uses, kept.reuse, 0)
        old = self._ghosts.add(ghost)
        if old is not None:
            self._lost[old.reuse, age_bin(self._now - old.used)] += 1
        self._leave(kept)
        return kept.key

    def drop(self, key: bytes) -> None:
        """A key is gone, held or not, and not for want of room."""
        self._leave(self._kept[key])

    def _leave(self, kept: Kept) -> None:
        self._ranking.remove(kept)
        del self._kept[kept.key]
        self._places[kept.number] = None
        self._free.append(kept.number)
        self._num_held -= kept.held
        self._rival.watched -= kept.watched
        kept.alive = False
        self._unlink(kept)

    # which key continues which

    def chain(self, keys: Sequence[bytes]) -> None:
        """Each key continues the one before it: it is of no use without it, and goes before it."""
        above = None
        for key in keys:
            kept = self._kept.get(key)
            if kept is None:
                continue
            if above is not None and above is not kept and (kept.parent is not above):
                self._unlink(kept)
                kept.parent = above
                above.kids += 1
                if above.kids == 1 and self._adaptive:
                    self._relist(above)
            above = kept

    def _unlink(self, kept: Kept) -> None:
        parent, kept.parent = kept.parent, None
        if parent is not None and parent.alive:
            parent.kids -= 1
            if parent.kids == 0 and self._adaptive:
                self._relist(parent, True)

    # what is known of their use

    def use(self, keys: Sequence[bytes], reused: Container[bytes], continued: bool) -> int:
        """A request is over that used these keys, found the `reused` ones there, and made the others; `continued`: it
        went on from known text. Its last key goes first. The class that the last reused key had."""
        self._now = self._asked = max(self._now, self._asked + 1)
        known = [kept for key in keys if (kept := self._kept.get(key)) is not None]
        last = ONCE
        for kept in known:
            again = kept.key in reused
            last = kept.reuse if again else last
            self._count_use(kept, again, CONTINUED if continued else ONCE)
        for kept in reversed(known):
            self._relist(kept)
        return last

    def _count_use(self, kept: Kept, reused: bool, fresh: int) -> None:
        if not self._adaptive:
            kept.reuse = ONCE
            return
        if reused:
            if kept.watched:
                self._rival.find_watched((0, kept.hash, 0))
            self._hits[kept.reuse, age_bin(self._now - kept.used)] += 1
            kept.uses = min(kept.uses + 1, MAX_USES)
        kept.reuse, kept.used = class_of(kept.uses, fresh), self._now

    def hint(self, keys: Sequence[bytes], back: int) -> int:
        """When the text of these keys comes back (0: unknown): of the last ones, which no other text shares. How many
        keys that is."""
        count, uses, below = 0, 0, None
        for key in reversed(keys):
            kept = self._kept.get(key)
            if kept is None:
                continue
            if kept.kids > (below is not None and below.parent is kept) or 0 < uses < kept.uses - APART:
                break
            uses, below, count = kept.uses, kept, count + 1
            reuse = told_class(back, kept.uses, kept.reuse)
            if reuse != kept.reuse:
                kept.reuse = reuse
                self._relist(kept)
        return count

    def retain(self, keys: Sequence[bytes], priority: int) -> None:
        """These keys have this priority from now on: lower ones go before them."""
        if not 0 <= priority <= 100:
            raise ValueError(f"priority {priority}, must be 0 to 100")
        for key in reversed(keys):
            kept = self._kept.get(key)
            if kept is not None and kept.priority != priority:
                kept.priority = priority
                self._relist(kept)

    def _relist(self, kept: Kept, released: bool = False) -> None:
        self._ranking.remove(kept)
        self._ranking.add(kept, self._entry_of(kept), released)

    def _entry_of(self, kept: Kept) -> Entry:
        if not self._adaptive:
            return Entry(kept.priority, kept.reuse == NEVER)
        return Entry(kept.priority, False, kept.kids > 0, kept.reuse, kept.used)

    # what the adaptive order learns

    @property
    def is_due(self) -> bool:
        """Whether there is enough new to learn from."""
        return self._adaptive and self._inserted >= max((self._room + 1) // 2, LEAST_NEW)

    def take_counts(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """As of a store's group: hits, lost ghosts, a census, the rival's counts."""
        census, step = np.zeros(NUM_CELLS, np.int64), stride(self._room)
        for kept in self._places[::step]:
            if kept is not None:
                census[cell_number(kept.reuse, age_bin(self._now - kept.used))] += step
        step = stride(self._ghosts.room)
        for ghost in self._ghosts.places[::step]:
            if ghost is not None:
                census[cell_number(ghost.reuse, age_bin(self._now - ghost.used))] += step
        rival = np.array([self._rival.gained, self._rival.missed, self._rival.watched], np.int64)
        taken = self._hits.copy(), self._lost.copy(), census.reshape(self._hits.shape), rival
        self._hits[:], self._lost[:], self._inserted = 0, 0, 0
        self._rival.gained = self._rival.missed = 0
        return taken

    def set_rank(self, cells: Int32Array, recency: bool) -> None:
        """Evict in this order of cells from now on; all are named."""
        if not isinstance(self._ranking, Adaptive) or sorted(np.asarray(cells).tolist()) != list(range(NUM_CELLS)):
            raise ValueError(f"an order names each of {NUM_CELLS} cells once, if it is adaptive")
        self._ranking.rank_cells(np.asarray(cells).tolist(), recency)


def hash_of(key: bytes) -> int:
    """64 bits by which a key that has gone is known."""
    number = (K1 ^ len(key)) & MASK
    for place in range(0, len(key), 8):
        number = fold(number ^ int.from_bytes(key[place : place + 8], "little"), K0) ^ K2
    return number
