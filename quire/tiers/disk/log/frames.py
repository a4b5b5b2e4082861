"""Frames: the log that a manifest is made of, as bytes. Owns the head of the file, the cut of the log into frames with
a number and checksums, and how a reader finds its way past damage. Knows nothing of what frames say.

    file   [ head, 512 bytes ][ frame 0: the head again ][ frame 1 ][ frame 2 ] ...      each at a multiple of 8
    frame  magic, number, kind, size, checksum of the payload, checksum of this; then the payload

Checksums are seeded with the fingerprint, so that nothing a user writes into a prompt can be taken for a frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

import numpy as np

from quire.core.records.errors import InputError, say
from quire.tiers.base import Bytes, first_of
from quire.tiers.disk.pages.checksum import checksum

FORMAT = 1
POOLED = 2  # the same, of groups that share pools; a reader of the other alone must not take their slots for apart
FILE_MAGIC = b"QUIREKV\xff"
FRAME_MAGIC = b"\xa5QF\xf1\x1eQF\xf2"  # no two token ids look like it: both halves are negative numbers
HEAD_BYTES = 512
MAX_PAYLOAD = 64 << 20
MAX_GROUPS = 48  # what a head has room for
HEAD, CHANGES, FENCE = range(3)  # kinds of frames
FIRST_NUMBER = 1 << 32  # of a new log: a compacted one counts down from where its tail begins

_FRAME = Struct("<8sQIIQQ")  # magic, number, kind, 0, payload bytes, payload checksum; then the checksum of these
FRAME_BYTES = _FRAME.size + 8
_HEAD = Struct("<8sII32sQ")  # magic, format, number of groups, fingerprint, 0; page bytes of the groups; checksum
_POOLS_AT = _HEAD.size + 8 * MAX_GROUPS  # one byte per group: its pool, if some share one


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """Whose pages they are, and how large."""

    fingerprint: bytes
    page_bytes: tuple[int, ...]
    pool_of: tuple[int, ...] = ()  # by group: the first group that has the same slots; (): no group shares its slots

    def __post_init__(self) -> None:
        if len(self.fingerprint) != 32:
            fact = f"it has {len(self.fingerprint)} bytes"
            raise InputError(say("a fingerprint", fact, "pass 32 bytes that stand for model and layout"))
        if not 0 < len(self.page_bytes) <= MAX_GROUPS:
            fact = f"there are {len(self.page_bytes)}"
            raise InputError(say("layer groups on disk", fact, f"have 1 to {MAX_GROUPS}"))
        own = tuple(range(len(self.page_bytes)))
        object.__setattr__(self, "pool_of", first_of(self.pool_of) if self.pool_of else own)
        if len(self.pool_of) != len(own):
            fact = f"pools of {len(self.pool_of)} groups, pages of {len(own)}"
            raise InputError(say("layer groups on disk", fact, "give one pool number per group"))

    @property
    def pooled(self) -> bool:
        """Some groups have the same slots."""
        return self.pool_of != tuple(range(len(self.page_bytes)))

    def pack(self) -> bytes:
        """As the first bytes of a file."""
        format_ = POOLED if self.pooled else FORMAT
        start = _HEAD.pack(FILE_MAGIC, format_, len(self.page_bytes), self.fingerprint, 0)
        body = (start + np.array(self.page_bytes, "<u8").tobytes()).ljust(_POOLS_AT, b"\0")
        body = (body + (bytes(self.pool_of) if self.pooled else b"")).ljust(HEAD_BYTES - 8, b"\0")
        return body + checksum(body).to_bytes(8, "little")

    @property
    def seed(self) -> int:
        """Of the checksums of frames."""
        return seed_of(self.fingerprint)


def seed_of(fingerprint: bytes) -> int:
    """What frames of that model are summed up with."""
    return int.from_bytes(blake2b(fingerprint, digest_size=8, person=b"quire-frames").digest(), "little")


def unpack_head(raw: bytes) -> ManifestHead | None:
    """What a head says; None when it is damaged, or none of this format."""
    if len(raw) < HEAD_BYTES or checksum(raw[: HEAD_BYTES - 8]) != int.from_bytes(raw[HEAD_BYTES - 8 :][:8], "little"):
        return None
    magic, format_, num_groups, fingerprint, _ = _HEAD.unpack_from(raw)
    if magic != FILE_MAGIC or format_ not in (FORMAT, POOLED) or not 0 < num_groups <= MAX_GROUPS:
        return None
    sizes = np.frombuffer(raw, "<u8", num_groups, _HEAD.size)
    pools = tuple(raw[_POOLS_AT : _POOLS_AT + num_groups]) if format_ == POOLED else ()
    return ManifestHead(fingerprint, tuple(int(size) for size in sizes), pools)


def format_of(raw: bytes) -> int | None:
    """The format number that a file claims; None when it is not a manifest."""
    if len(raw) < 12 or raw[:8] != FILE_MAGIC:
        return None
    return int.from_bytes(raw[8:12], "little")


def pack_frame(number: int, kind: int, payload: bytes, seed: int) -> bytes:
    """A frame. Requires: a payload of a multiple of 8 bytes."""
    start = _FRAME.pack(FRAME_MAGIC, number, kind, 0, len(payload), checksum(payload, seed))
    return b"".join((start, checksum(start, seed).to_bytes(8, "little"), payload))


@dataclass(frozen=True, slots=True)
class Frame:
    """A sound frame: where it starts and ends, and its payload, not copied."""

    number: int
    kind: int
    start: int
    end: int
    payload: Bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes between sound frames that are none; `fenced`: a fence says that all of it was on disk."""

    start: int
    end: int
    fenced: bool
    frames: int | None  # how many are missing, where the numbers around it say so


@dataclass(frozen=True, slots=True)
class Log:
    """A file, read: its sound frames in order, and what lies between them."""

    frames: list[Frame]
    gaps: list[Gap]
    covered: int  # frames with a number below this one, and their pages, were on disk when the last fence was made
    end: int  # behind the last sound frame


def scan(raw: Bytes, seed: int, start: int, covered: int = 0) -> Log:
    """Every sound frame of the file from `start` on; those below number `covered` are known to have been on disk."""
    frames: list[Frame] = []
    holes: list[_Hole] = []
    here, expected = start, None
    while here < len(raw):
        frame, known_end = _frame_at(raw, here, seed)
        if frame is None:
            after = known_end or _next_start(raw, here + 8, seed)
            if holes and holes[-1].end == here:
                holes[-1].end = after
            else:
                holes.append(_Hole(here, after, expected))
            here = after
            continue
        if holes and holes[-1].end == here:
            holes[-1].after = frame.number
        elif expected is not None and frame.number != expected:
            holes.append(_Hole(here, here, expected, frame.number))
        frames.append(frame)
        here, expected = frame.end, frame.number + 1
    covered = max([covered, *(fence_of(frame) for frame in frames if frame.kind == FENCE)])
    fenced_end = max((frame.end for frame in frames if frame.number < covered), default=0)
    gaps = [
        Gap(hole.start, hole.end, hole.start < fenced_end or (hole.expected or 0) < covered, hole.missing)
        for hole in holes
    ]
    return Log(frames, gaps, covered, frames[-1].end if frames else start)


@dataclass(slots=True)
class _Hole:
    """Where no sound frame is: the number that was to come, and the one that came behind it."""

    start: int
    end: int
    expected: int | None
    after: int | None = None

    @property
    def missing(self) -> int | None:
        """How many frames that is."""
        return None if self.expected is None or self.after is None else self.after - self.expected


def pack_fence(covered: int) -> bytes:
    """The payload of a fence: frames below this number are on disk, and so are the pages that they name."""
    return covered.to_bytes(8, "little")


def fence_of(frame: Frame) -> int:
    """What a fence covers."""
    return int.from_bytes(frame.payload[:8].tobytes(), "little")


def _frame_at(raw: Bytes, here: int, seed: int) -> tuple[Frame | None, int | None]:
    """The frame that starts there; else None, and where the next one starts, if its head can be trusted that far."""
    start = raw[here : here + FRAME_BYTES].tobytes()
    if len(start) < FRAME_BYTES or start[:8] != FRAME_MAGIC:
        return None, None
    if checksum(start[:-8], seed) != int.from_bytes(start[-8:], "little"):
        return None, None
    _, number, kind, _, size, total = _FRAME.unpack_from(start)
    end = here + FRAME_BYTES + size
    if size > MAX_PAYLOAD or size % 8 or end > len(raw):
        return None, None
    payload = raw[here + FRAME_BYTES : end]
    if checksum(payload, seed) != total:
        return None, end
    return Frame(number, kind, here, end, payload), None


def _next_start(raw: Bytes, here: int, seed: int) -> int:
    """The next place at which a frame's head is sound; the end of the file when there is none."""
    words = raw[here : len(raw) - len(raw) % 8].view("<u8")
    for found in np.flatnonzero(words == int.from_bytes(FRAME_MAGIC, "little")):
        place = here + 8 * int(found)
        start = raw[place : place + FRAME_BYTES].tobytes()
        if len(start) == FRAME_BYTES and checksum(start[:-8], seed) == int.from_bytes(start[-8:], "little"):
            return place
    return len(raw)
