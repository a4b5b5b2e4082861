"""Room: how much a publisher keeps, and who may come to it. Knows no sockets."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.records.errors import InputError, say
from quire.net.curve_keys import Keys


@dataclass(frozen=True, slots=True)
class Room:
    """How much a publisher keeps, for subscribers that ask again and for its own thread; which clients it accepts."""

    batches: int = 10_000  # that can be asked for again
    num_bytes: int = 256 << 20  # of them
    waiting: int = 1 << 20  # hashes in the queue before `tell` takes no more
    peers: int = 256  # connected at once to ask; routers that are more than that disturb each other
    subscribers: int = 256  # connected at once to listen; the same
    answers: int = 64 << 20  # bytes under way to those who asked; a quarter of it to one of them
    keys: Keys | None = None  # of CURVE: only their holders read the stream, or ask

    def __post_init__(self) -> None:
        for name in ("batches", "num_bytes", "waiting", "peers", "subscribers", "answers"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InputError(say(f"room for {value!r} {name}", "that is not a size", "pass a positive int"))
        if self.keys is not None and not (isinstance(self.keys, Keys) and self.keys.secret):
            raise InputError(say("these keys of a publisher", "they have no secret one", "use Keys.make()"))
