"""Stalls: what a disk cannot do for now, as when it is full. Owns the two log lines: when it begins, when all is over.

Each kind of act ends its own stall: on a full disk short records may go through while a sync does not.
"""

from __future__ import annotations

import logging
from pathlib import Path

_log = logging.getLogger("quire.tiers")


class Stalls:
    """Of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reasons: dict[str, str] = {}  # by kind of act

    @property
    def why(self) -> str:
        """Why the first of them fails; empty: all goes well."""
        return next(iter(self._reasons.values()), "")

    def begin(self, act: str, why: str) -> None:
        """It has failed, and is tried again."""
        if not self._reasons:
            _log.warning("nothing is copied down to %s for now: %s", self._folder, why)
        self._reasons[act] = why

    def end(self, *acts: str) -> None:
        """These are done."""
        stalled = [act for act in acts if act in self._reasons]
        for act in stalled:
            del self._reasons[act]
        if stalled and not self._reasons:
            _log.warning("pages are copied down to %s again", self._folder)
