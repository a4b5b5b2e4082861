"""What is imported from `quire.core.store.twin`, as `reference` was called, is the same module."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

OURS = [path for path in (ROOT / "quire").rglob("*.py") if path != ROOT / "quire/core/store/twin.py"]
NAMES = ("", ".store", ".orders.lru", ".pools.order", ".keys.hash")


def test_the_old_name_gives_the_same_modules() -> None:
    for name in NAMES:
        old, new = (import_module(f"quire.core.store.{folder}{name}") for folder in ("twin", "reference"))
        assert old is new and new.__name__ == f"quire.core.store.reference{name}"


def test_nothing_of_ours_uses_it() -> None:
    assert len(OURS) > 500
    assert [path for path in OURS if "store.twin" in path.read_text(encoding="utf-8")] == []


def test_the_old_name_may_come_first() -> None:
    """As in a program that knows no other name, and puts an order of its own into use."""
    lines = (
        "from quire.core.store.twin.orders.lru import Lru",
        "from quire.core.store.twin import store",
        "from quire.core.store.reference.store import ORDERS",
        "assert store.ORDERS is ORDERS and Lru in ORDERS.values()",
    )
    subprocess.run([sys.executable, "-c", "; ".join(lines)], check=True, timeout=60)
