"""How often a keeper does what, and what it has done. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeeperPace:
    """How often and how much: seconds between looks (longer while there is nothing to do), bytes copied at once, when a
    fence is due, how fast to scrub."""

    look_seconds: float = 0.25
    copy_bytes: int = 32 << 20
    fence_seconds: float = 1.0
    fence_bytes: int = 256 << 20
    compact_bytes: int = 8 << 20  # the log is compacted when it has grown by that, and to twice its size
    scrub_bytes_per_second: float = 4e6  # 0: never
    close_seconds: float = 60.0  # how long closing waits for a disk that does not answer


@dataclass(slots=True)
class KeeperReport:
    """What a keeper has done, and what is wrong."""

    restored: int = 0  # pages found at the start
    copied_down: int = 0
    brought_up: int = 0
    failed: int = 0  # pages that were damaged, or could not be written
    given_up: int = 0  # moves for which the disk did not answer in time: that says nothing about their pages
    left_out: int = 0  # pages that were copied and could not be recorded
    fences: int = 0
    compactions: int = 0
    scrubbed_bad: int = 0
    errors: int = 0  # bugs of Quire; after the first one the disk is used no more
    index_bytes: int = 0  # memory that knowing the pages on disk takes, now: in the cache, and here
    stalled: str = ""  # why what changed cannot be recorded now, as on a full disk; it is tried again
    broken: str = ""  # why nothing is copied down any more; after a bug nothing is read either
