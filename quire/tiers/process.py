"""Which process something belongs to: when a process forks its threads do not go along, nor does what needs them."""

from __future__ import annotations

import os

from quire.core.records.errors import StateError, say


def check_process(pid: int, what: str) -> None:
    """Refuse what another process has opened, of which this one is a fork: its threads are not here."""
    if os.getpid() != pid:
        fact = f"process {pid} has opened it, and this process is a fork of that one"
        raise StateError(say(what, fact, "open it in the process that uses it"))
