"""SlowPace: how fast a disk or a shared store is, and how long a request waits for it. Numbers that go into a model."""

from __future__ import annotations

from dataclasses import dataclass

from quire import InputError
from quire.core.records.errors import say
from quire.simulate.setup.engine_pace import LEAST, MOST, MOST_SECONDS

COPY_BYTES = 32 << 20  # copied down at once, as a disk tier does


@dataclass(frozen=True, slots=True)
class SlowPace:
    """A tier that no step waits for: bandwidths, the time before the first byte, and the bound of a prefetch's wait."""

    read: float = 3e9  # bytes per second
    write: float = 1e9
    latency: float = 0.0002  # seconds before a read begins to come
    wait: float = 2.0  # seconds that a request is passed over for its pages, at most

    def __post_init__(self) -> None:
        for name, number in (("read", self.read), ("write", self.write)):
            if not LEAST <= number <= MOST:
                cure = "give bytes per second, such as 3GB/s"
                raise InputError(say(f"{name} bandwidth {number!r} of a slow tier", "nothing would ever come", cure))
        for name, number in (("latency", self.latency), ("wait", self.wait)):
            if not 0 <= number <= MOST_SECONDS:
                cure = f"give 0 or more, up to {MOST_SECONDS:g} s"
                raise InputError(say(f"{name} {number!r} of a slow tier", "it is not a time", cure))

    def to_json(self) -> dict[str, float]:
        """For the page and the JSON."""
        return {
            "read_bytes_per_second": self.read,
            "write_bytes_per_second": self.write,
            "latency_ms": self.latency * 1000,
            "wait_seconds": self.wait,
        }


DISK, SHARED = SlowPace(), SlowPace(read=1e9, write=1e9, latency=0.001)
