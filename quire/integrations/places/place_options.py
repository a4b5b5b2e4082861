"""PlaceOptions: what an operator writes of the places of a plug's pages, checked by name. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, get_args

from quire.core.records.errors import InputError, say, shown
from quire.core.records.memory import parse_bytes

Order = Literal["adaptive", "lru"]
LONGEST = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Where the pages lie, and how much of them there may be: on a disk, in a shared store, or in both."""

    plug: ClassVar[str] = "a plug"  # its name in what is refused
    up_to: ClassVar[tuple[tuple[str, float], ...]] = (("deadline", LONGEST), ("wait", LONGEST))

    folder: str = ""  # of the disk
    bytes: int | str = 0  # on the disk, manifest included; written "500GB"
    shared: str = field(default="", repr=False)  # a store: a folder, or redis://user:password@host:6379/0
    shared_bytes: int | str | None = None  # that may lie in a shared folder; other stores bound themselves
    eviction: Order = "adaptive"
    namespace: str = ""  # what you know of the model and its config does not say
    deadline: float = 10.0  # seconds without any answer after which the disk is given up
    wait: float = 2.0  # seconds that the store has to say what it has, and to give a batch of pages

    def __post_init__(self) -> None:
        for name in ("folder", "shared", "namespace"):
            if not isinstance(getattr(self, name), str):
                fact = f"it is a {type(getattr(self, name)).__name__}, not text"
                raise InputError(say(f"{name} of {self.plug}", fact, f'write "{name}": "...", or leave it out'))
        self._check_places()
        if self.eviction not in get_args(Order):
            cure = f"use one of {', '.join(get_args(Order))}"
            raise InputError(say(f"eviction {shown(self.eviction)}", "it is not a known order", cure))
        for name, most in self.up_to:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise InputError(say(f"{name} {shown(value)}", f"it must be above 0, at most {most:g}", "leave it out"))

    def _check_places(self) -> None:
        cure = 'write "folder": "/mnt/nvme/quire", "bytes": "500GB", or "shared": "redis://host:6379/0", or all three'
        if not self.folder and not self.shared:
            raise InputError(say(f"{self.plug} without 'folder' and 'shared'", "pages have no place to lie in", cure))
        if bool(self.folder) != bool(self.bytes):
            missing = "bytes" if self.folder else "folder"
            raise InputError(say(f"{self.plug} without {missing!r}", "a disk has a folder and a size", cure))
        if self.folder:
            parse_bytes(self.bytes, "a disk")
        if self.shared_bytes is None:
            return
        if not self.shared or "://" in self.shared:
            fact = "only a shared folder is bounded from here; a server has its own limit"
            raise InputError(say(f"shared_bytes of {self.plug}", fact, "leave it out"))
        parse_bytes(self.shared_bytes, "a shared folder")

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Those of a config; what is unknown is refused by name."""
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                fact = "there is none of that name"
                raise InputError(say(f"option {shown(name)} of {cls.plug}", fact, f"use {known}"))
        return cls(**given)
