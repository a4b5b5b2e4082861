"""Actions: what a session wants done, as data: a message to send, or pages to write. Nothing is done here."""

from __future__ import annotations

from dataclasses import dataclass

from quire.transfer.geometry.byte_rows import Rows
from quire.transfer.wire import messages as wire


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a peer."""

    peer: str
    message: wire.AnyMessage


@dataclass(frozen=True, slots=True, eq=False)
class PageWrite:
    """Write page bytes through a peer's door."""

    peer: str
    door: int
    rows: Rows


Actions = list[SendMessage | PageWrite]
