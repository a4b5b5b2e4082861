"""A plug whose engine is stubbed, as attacks see it. Knows neither plug nor attack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..tiers.disk.dying import DeadlyFiles

KINDS = ("disk", "both", "store")


class Plugged(Protocol):
    """An engine over a plug's disk, store or both. Whatever it loads it compares; what differs raises."""

    loaded: int
    stored: int
    failed: int

    @property
    def disk(self) -> Any: ...

    @property
    def shared(self) -> Any:
        """The `KeyStore`."""

    def store(self, keys: list[Any]) -> None: ...

    def load(self, keys: list[Any]) -> None: ...

    def look(self) -> None:
        """Hear of what is over."""

    def settle(self) -> None:
        """Until nothing is under way."""

    def has(self, key: Any) -> bool: ...

    def durable(self, keys: list[Any]) -> list[Any]:
        """Those of these that the disk has, whole."""

    def load_all(self, keys: list[Any]) -> int:
        """How many of them are there and come."""

    def close(self) -> bool: ...


Make = Callable[..., Plugged]  # folder of the disk, folder or URL of the store; deadline, wait, files
Key = Callable[[int], Any]


def opened(make: Make, folder: Path, kind: str, files: DeadlyFiles | None = None, url: str = "") -> Plugged:
    """`url`: of a store that is no folder."""
    disk, store = folder / "disk" if kind != "store" else None, url or folder / "store" if kind != "disk" else None
    more: dict[str, Any] = {} if files is None else {"files": files}
    return make(disk, store, **more)
