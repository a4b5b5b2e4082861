"""Shared stores of a process that dies at its nth change of them, perhaps in the middle of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from quire.tiers.shared import FolderStore
from quire.tiers.shared.stores.file_calls import Buffers, FileCalls


class DeadlyCalls(FileCalls):
    """Calls of a shared folder."""

    def __init__(self, left: int, dice: np.random.Generator) -> None:
        self._left, self._dice = left, dice

    def write(self, number: int, data: Buffers) -> None:
        if self._last():
            whole = b"".join(bytes(part) for part in data)
            super().write(number, [whole[: int(self._dice.integers(len(whole) + 1))]])
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(number, data)

    def rename(self, old: Path, new: Path) -> None:
        if self._last():
            os.kill(os.getpid(), signal.SIGKILL)
        super().rename(old, new)

    def _last(self) -> bool:
        self._left -= 1
        return self._left < 0


def deadly_connections(base: type[Any], left: int, dice: np.random.Generator) -> type[Any]:
    """Connections to a Redis: the server gets a part of what is sent last."""
    counted = [left]

    class Deadly(base):  # type: ignore[misc]  # redis-py's own, whichever the URL has chosen
        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            counted[0] -= 1
            if counted[0] < 0:
                whole = b"".join([command] if isinstance(command, bytes) else [bytes(part) for part in command])
                super().send_packed_command([whole[: int(dice.integers(len(whole) + 1))]], check_health)
                os.kill(os.getpid(), signal.SIGKILL)
            super().send_packed_command(command, check_health)

    return Deadly


def make_deadly(store: Any, left: int, dice: np.random.Generator) -> None:
    """A folder, or a Redis: its process dies at the change after so many."""
    if isinstance(store, FolderStore):
        store._files = DeadlyCalls(left, dice)
        return
    pool = store._client.connection_pool
    pool.disconnect()  # those that there are
    pool.reset()
    pool.connection_class = deadly_connections(pool.connection_class, left, dice)
