"""JoinedTraces: traces as they are. One passes unchanged, byte by byte; several become one, in the order given.

Traces that say when they began are set beside each other in time; of others the times stay as they are. Where ids only
count blocks, as in traces of recorded sessions or of lengths, equal ones of two traces mean nothing: such are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from quire.core.records.errors import InputError, say
from quire.trace.logs.sessions import SESSIONS
from quire.trace.read.lines import MOONCAKE_BLOCK, LineReader, Wrong
from quire.trace.record.trace_writer import FIELD, TraceWriter

_KEPT = ("sharing", "began", "key")  # what a joined trace says of itself as its first part did


class JoinedTraces:
    """Checks lines and hands them on."""

    def __init__(self, write: Callable[[bytes], object], unit: int | None, alone: bool) -> None:
        self._write, self._unit, self._alone = write, unit, alone
        self._reader: LineReader | None = None
        self._writer: TraceWriter | None = None
        self._began: float | None = None  # of the first one, ms since the epoch
        self._offset = 0.0  # of this one, ms
        self._first = False
        self._keys: set[str] = set()
        self._kinds: list[str] = []  # of ids, file by file: shared, counted, unknown
        self.num_requests = 0

    def begin(self, reader: LineReader) -> None:
        """The next file."""
        unit = self._reader.unit if self._reader is not None else self._unit
        self._reader, reader.unit = reader, unit
        self._first, self._offset = True, 0.0

    def add(self, text: bytes) -> int:
        """One line; raises TraceError."""
        assert self._reader is not None
        line = self._reader.read(text)
        if line is None:
            return 0
        self.num_requests += 1
        if self._alone:
            self._write(text if text.endswith(b"\n") else text + b"\n")
            return 1
        if self._first:
            self._hear(self._reader.said)
        fields = json.loads(text)
        fields.pop(FIELD, None)
        time = "timestamp" if self._reader.kind == "mooncake" else "time_ms"
        if self._offset:
            fields[time] = max(0, round(fields[time] + self._offset))
        self._out().add(fields)
        return 1

    def _hear(self, said: dict[str, Any]) -> None:
        """When the file began, and by which key its ids were made."""
        self._first = False
        self._check_ids(said)
        if isinstance(said.get("key"), str):
            self._keys.add(said["key"])
        if not isinstance(said.get("began"), str):
            return
        try:
            began = datetime.fromisoformat(said["began"]).timestamp() * 1000
        except (ValueError, OverflowError):
            raise Wrong("its 'began' is not a time", "write it as 2026-01-31T12:00:00Z") from None
        self._began = began if self._began is None else self._began
        self._offset = began - self._began

    def _check_ids(self, said: dict[str, Any]) -> None:
        """Whether equal ids of this file and of those before are equal blocks, or are never looked at."""
        assert self._reader is not None
        unknown = said.get("sharing") == "unknown"
        self._kinds.append("unknown" if unknown else "counted" if said.get("from") in SESSIONS else "shared")
        if len(self._kinds) > 1 and ("counted" in self._kinds or len(set(self._kinds)) > 1):
            fact = "its ids, or those of the one before, only count blocks: equal ones would be taken for equal text"
            cure = "make one trace of all recordings or logs (docs/trace.md)"
            raise InputError(say(f"{self._reader.name}, joined with another trace", fact, cure))

    def _out(self) -> TraceWriter:
        if self._writer is None:
            assert self._reader is not None
            said: dict[str, Any] = {name: self._reader.said[name] for name in _KEPT if name in self._reader.said}
            unit = {"block_size": self._reader.unit or MOONCAKE_BLOCK} if self._reader.kind == "mooncake" else {}
            source = self._reader.said.get("from")
            self._writer = TraceWriter(
                self._write, {**unit, "from": source if source in SESSIONS else "traces", **said}
            )
        return self._writer

    @property
    def notes(self) -> list[str]:
        """What a reader should know."""
        if len(self._keys) < 2:
            return []
        return ["the traces were made with different keys: what they share with each other is not known"]

    def end(self, summary: dict[str, Any]) -> None:
        """The end mark, where there is one."""
        if self._writer is not None:
            self._writer.end(summary)
