"""Checks: what an attack on files tried, and whether it held; and acts that must not hang. Knows no attack."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

PATIENT = 60.0  # seconds after which an act hangs


class Checks:
    """Counts what did not hold."""

    def __init__(self) -> None:
        self.broken = 0

    def held(self, what: str, holds: bool, seen: object = "") -> None:
        """One thing that must hold."""
        self.broken += not holds
        print(f"   {'held  ' if holds else 'BROKEN'}  {what}{'' if holds or seen == '' else f': {seen!r}'}", flush=True)


def within(act: Callable[[], Any], seconds: float = PATIENT) -> Any:
    """What it returned or raised; TimeoutError as a class: it hangs."""
    got: list[Any] = []

    def work() -> None:
        try:
            got.append(act())
        except BaseException as error:
            got.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return got[0] if got else TimeoutError


def run(name: str, attack: Callable[[Path, Checks], None]) -> None:
    """In a folder of its own; ends the process with 1 if something did not hold."""
    print(f"== {name}", flush=True)
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="quire-attack-", ignore_cleanup_errors=True) as folder:
        attack(Path(folder), checks)
    print(f"== {name}: {'it held' if not checks.broken else f'{checks.broken} did NOT hold'}", flush=True)
    sys.exit(int(checks.broken > 0))
