"""SharedStore: pages by name, owned elsewhere and gone at any time. Owns the contract that all stores keep.

    name (tag of the scope, digest of the block, group) ──► header, page      see quire/tiers/page_digest.py

A store is called on threads of its caller's choice, several at once. It decides nothing: when to ask, how long to wait
and what to do about a store that fails are the client's. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from quire.core.records.errors import QuireError, say
from quire.tiers.base import Bytes


class StoreMiss(StrEnum):
    """Why a page did not come, or did not go."""

    ABSENT = "absent"  # the store has no such page, or no longer
    DAMAGED = "damaged"  # its checksum does not fit its bytes and its name
    SIZE = "size"  # it is shorter or longer than a page of this group
    FORMAT = "format"  # it was written by a version that this one does not know
    FAILED = "failed"  # the store could not read or write this one
    FULL = "full"  # the store has no room
    LATE = "late"  # the deadline passed
    UNREACHABLE = "unreachable"  # the store does not answer
    BUSY = "busy"  # too much was under way here
    QUOTA = "quota"  # its label has sent what it may
    CLOSED = "closed"


class StoreError(QuireError):
    """A whole batch failed, for one reason."""

    def __init__(self, store: str, miss: StoreMiss, fact: str) -> None:
        super().__init__(store, miss, fact)
        self.store, self.miss, self.fact = store, miss, fact

    def __str__(self) -> str:
        return say(f"shared store {self.store}", self.fact, "what it holds counts as missing until it answers")


class SharedStore(Protocol):
    """Pages by name. A deadline is a time of `time.monotonic`; what is not done by then is LATE.

    A batch is carried to its end: each page has its own answer. StoreError is for what concerns all of them. A page
    that is got is one that was put, byte for byte; what is in the buffer of another is unspecified.
    """

    @property
    def name(self) -> str:
        """For messages: what kind it is and where, never a password."""
        ...

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Which are there, at this moment."""
        ...

    def get_many(self, names: Sequence[bytes], into: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Fill the buffers, uint8 [page_bytes] each; None where it did."""
        ...

    def put_many(self, names: Sequence[bytes], pages: Sequence[Bytes], deadline: float) -> list[StoreMiss | None]:
        """Keep the pages; None where it did. A page that is there already may be left as it is."""
        ...

    def remove_scope(self, tag: bytes, deadline: float) -> int:
        """Take out every page whose name begins with this tag, of any writer; how many. LATE: not all of them."""
        ...

    def close(self) -> None:
        """Give up connections; closing again does nothing."""
        ...
