"""Host limit: how much memory this process may have, so that more is refused at start. Owns where to read it; knows no
tier.

The system hands out memory at once and backs it when it is first written. A process that was given too much runs for
hours until the kernel kills it. A container's limit is that of its control groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from quire.core.records.errors import InputError, say
from quire.core.records.memory import say_bytes

ROOT = Path("/")
NO_LIMIT = 1 << 60  # version 1 of control groups says more than this where there is no limit


def check_host_memory(num_bytes: int, what: str, root: Path = ROOT) -> None:
    """Refuse more than this process may have; `root` is where /proc and /sys are."""
    most = memory_limit(root)
    if most is not None and num_bytes > most:
        fact = f"it cannot be had here (this process, or its container, may have {say_bytes(most)})"
        raise InputError(say(f"{what} of {say_bytes(num_bytes)}", fact, "give less"))


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes: the least of the machine's memory and of the limits of the control groups around this process."""
    limits = [limit for limit in (*_group_limits(root), *_machine(root)) if limit < NO_LIMIT]
    return min(limits, default=None)


def _machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * 1024


def _group_limits(root: Path) -> Iterator[int]:
    """Of the control group of this process and those above it; in a container the upper ones are not visible."""
    lines: list[str] = []
    with suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, kinds, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if kinds and "memory" not in kinds.split(","):
            continue
        top, name = ("memory", "memory.limit_in_bytes") if kinds else (".", "memory.max")
        group = PurePosixPath(path.lstrip("/") or ".")
        for one in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max" is not a number
                yield int((root / "sys/fs/cgroup" / top / one / name).read_text())
