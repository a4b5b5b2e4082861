"""Incident: what one file holds: why it was written, the config, and every call since the start. Reads and writes it.

A gzipped file of JSON lines: a header, a line for each call, an end mark. Nothing in it can run: it is read as data,
checked, and bounded. Knows no cache.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from quire.core.records.config import CacheConfig, TierConfig
from quire.core.records.errors import InputError, QuireError, say
from quire.core.records.groups import LayerGroup

FORMAT = 1
MOST_LINES = 50_000_000
LONGEST_LINE = 1 << 28  # bytes
MOST_BYTES = 1 << 34  # of a whole file, unpacked
LEFT_OUT = ("tiers", "groups", "events", "max_events", "event_seed", "rank")
Plain = list[Any]


@dataclass(frozen=True, slots=True)
class Incident:
    """Calls that changed a cache, from a state that is known, and why they were kept."""

    reason: str
    made: str  # when, as text
    config: CacheConfig
    calls: Sequence[Plain]  # each: verb, time, what its clock said, what it was given, what came of it
    start: Any = None  # the state before the first call; None: a new cache

    @property
    def seconds(self) -> float:
        """From the first call to the last."""
        return float(self.calls[-1][1] - self.calls[0][1]) if self.calls else 0.0

    def save(self, path: str | Path) -> None:
        """Write it; the file has its name when it is whole."""
        from quire.incidents.files.private_file import write_private

        header = {
            "quire_incident": FORMAT, "reason": self.reason, "made": self.made, "config": config_data(self.config),
            "calls": len(self.calls), "start": self.start,
        }  # fmt: skip
        write_private(Path(path), (_line(part) for part in (header, *self.calls, {"end": len(self.calls)})))


def load(path: str | Path) -> Incident:
    """Read an incident; a file that is not one, or was cut, is refused."""
    try:
        with gzip.open(path, "rb") as file:
            lines = _lines(path, file)
            header = json.loads(next(lines))
            if not isinstance(header, dict) or header.get("quire_incident") != FORMAT:
                raise _wrong(path, f"it is not an incident of format {FORMAT}")
            calls = []
            for line in lines:
                call = json.loads(line)
                if isinstance(call, dict):
                    break
                calls.append(_checked(path, call))
            else:
                raise _wrong(path, "it was cut: its end mark is missing")
    except (OSError, EOFError, ValueError, StopIteration, RecursionError) as error:
        if isinstance(error, QuireError):
            raise
        raise _wrong(path, str(getattr(error, "strerror", None) or str(error) or "it is empty")) from None
    if call.get("end") != len(calls) or header.get("calls") != len(calls):
        raise _wrong(path, f"it has {len(calls)} of {header.get('calls')} calls")
    reason, made = (str(header.get(name, ""))[:200] for name in ("reason", "made"))
    return Incident(reason, made, config_of(header.get("config"), path), calls, header.get("start"))


def _lines(path: str | Path, file: Any) -> Iterator[bytes]:
    size = number = 0
    while line := file.readline(LONGEST_LINE):
        size, number = size + len(line), number + 1
        if size > MOST_BYTES or number > MOST_LINES or len(line) >= LONGEST_LINE:
            raise _wrong(path, "it is larger than any that is written")
        yield line


def _checked(path: str | Path, call: Any) -> Plain:
    fits = isinstance(call, list) and len(call) == 5 and isinstance(call[0], str)
    if not fits or not isinstance(call[1], int | float) or not all(isinstance(part, list) for part in call[2:4]):
        raise _wrong(path, "a line of it is not a call")
    return list(call)


def _wrong(path: str | Path, fact: str) -> InputError:
    return InputError(say(f"incident {str(path)!r}", fact, "name a file that `quire incident` or a server has written"))


def _line(part: Any) -> bytes:
    return json.dumps(part, separators=(",", ":")).encode() + b"\n"


def config_data(config: CacheConfig) -> dict[str, Any]:
    """A config as JSON takes it, without what only events need. With the order that "auto" meant: it may come to mean
    another."""
    sizes = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in LEFT_OUT}
    sizes["eviction"] = config.order
    return {**sizes, "tiers": [asdict(tier) for tier in config.tiers], "groups": [asdict(one) for one in config.groups]}


def config_of(data: Any, path: str | Path) -> CacheConfig:
    """The config again."""
    try:
        tiers = tuple(TierConfig(**{**tier, "slots": _slots(tier["slots"])}) for tier in data["tiers"])
        groups = tuple(LayerGroup(**group) for group in data["groups"])
        order = data.get("eviction", "auto")
        if order == "auto":  # it was written before it was said which: LRU unless all was full attention
            order = "adaptive" if all(group.kind == "full" for group in groups) else "lru"
        config = CacheConfig(**{**data, "tiers": tiers, "groups": groups, "eviction": order})
    except (TypeError, KeyError, AttributeError, QuireError) as error:
        raise _wrong(path, f"its config is none: {error}") from None
    return replace(config, events=False)


def _slots(slots: Any) -> Any:
    return tuple(slots) if isinstance(slots, list) else slots
