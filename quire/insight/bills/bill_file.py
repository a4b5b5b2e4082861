"""A bill as a file: JSON that only its owner may read, there whole or as it was before. Knows not what it bills."""

from __future__ import annotations

import json
import os
from pathlib import Path

from quire.core.records.errors import InputError, say
from quire.insight.bills.bill import Bill, bill_of
from quire.tiers.process import FolderLock

NAME = "bills.json"  # in the folder of a disk tier
MOST_BYTES = 1 << 28


def save_bill(bill: Bill, path: Path) -> Path:
    """Write it; a process that is killed leaves the file as it was."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=_private) as file:
            json.dump(bill.to_json(), file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def lock_bill(path: Path) -> FolderLock:
    """Taken as long as a process adds to a bill's file; StateError where another one does."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FolderLock(path.parent, name=f"{path.name}.lock")


def bill_path(path: str | Path) -> Path:
    """A bill's file, by its own name or its folder's."""
    path = Path(path)
    return path if path.suffix == ".json" and not path.is_dir() else path / NAME


def load_bill(path: str | Path) -> Bill:
    """Read a bill, or that of a folder."""
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as wrong:
        raise InputError(say(f"the bill {path}", f"{wrong.strerror}", "name a bills.json, or its folder")) from None
    return parse_bill(data, str(path))


def parse_bill(data: bytes, name: str) -> Bill:
    """A bill out of its text."""
    if len(data) > MOST_BYTES:
        raise InputError(say(f"the bill {name}", f"it is longer than {MOST_BYTES} bytes", "name a bills.json"))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(say(f"the bill {name}", "it is not JSON", "name a bills.json, or use an older copy")) from None
    return bill_of(found)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
