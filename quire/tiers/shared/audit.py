"""PageAudit: hashes of every page that was computed, or came, under the name that it has in a store. A debug switch:
what goes out must be one of them. Knows no cache and no slots, so it sees what those have mixed up.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from hashlib import blake2b
from threading import Lock

from quire.tiers.base import Bytes

MOST_NAMES = 1 << 17
MOST_HASHES = 64  # of one name: a text computed again may have other last bits
_log = logging.getLogger("quire.shared")


class PageAudit:
    """What the bytes of a page may be, by name; bounded, the latest. Calls come from any thread."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[bytes, OrderedDict[bytes, None]] = OrderedDict()
        self._lock = Lock()
        self.num_right = self.num_unknown = self.num_wrong = 0

    def __repr__(self) -> str:
        return f"PageAudit({self.num_right} right, {self.num_unknown} unknown, {self.num_wrong} wrong)"

    def note(self, name: bytes, page: Bytes) -> None:
        """These are its bytes: they were computed for that text and group, or came, verified."""
        mark = _hash(page)
        with self._lock:
            known = self._hashes.setdefault(name, OrderedDict())
            known[mark] = None
            self._hashes.move_to_end(name)
            if len(known) > MOST_HASHES:
                known.popitem(last=False)
            if len(self._hashes) > MOST_NAMES:
                self._hashes.popitem(last=False)

    def is_right(self, name: bytes, page: Bytes) -> bool:
        """Whether a page may go out under a name. One without a note may: an earlier process may have made it."""
        mark = _hash(page)
        with self._lock:
            known = self._hashes.get(name)
            self.num_unknown += known is None
            if known is None or mark in known:
                self.num_right += known is not None
                return True
            self.num_wrong += 1
        _log.error("a page was about to go out with bytes that were never computed for it: %s", name.hex())
        return False


def _hash(page: Bytes) -> bytes:
    return blake2b(page.tobytes(), digest_size=16).digest()
