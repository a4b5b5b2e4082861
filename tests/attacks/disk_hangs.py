"""A disk that stops to answer, in the log and in the pages: flush, fence, forget, idle, prefetch, close and opening end
all the same, and what was durable is there when it answers again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quire import Request, Scope, StateError
from quire.tiers.disk import KeeperPace
from quire.tiers.disk.log.read_manifest import NAME

from ..tiers.disk.rig import Kept, prompt
from ..tiers.disk.test_hanging import SOON, GatedFiles
from .checks import Checks, run, within

PACE = KeeperPace(look_seconds=0.01, close_seconds=1.0, scrub_bytes_per_second=1e6)
MINE = Scope(salt="mine")


PLACES = ((NAME, "sync"), (NAME, "write"), ("pages-0", "sync"), ("pages-0", "write"), ("pages-0", "read"))


def attack(folder: Path, checks: Checks) -> None:
    """Every kind of call that may never come back."""
    for name, what in PLACES:
        stop(folder / f"{name}-{what}", (name, what), checks)


def stop(place: Path, call: tuple[str, str], checks: Checks) -> None:
    """Calls of one kind to one file are not answered."""
    files, where = GatedFiles(), f"while {call[0]} does not answer a {call[1]}"
    before = Kept(place)
    before.compute(1)
    before.compute(2, MINE)
    before.close()
    kept = Kept(place, PACE, files, io=SOON)
    files.closed.add(call)
    kept.compute(3)
    acts: dict[str, Callable[[], object]] = {
        "flush(1)": lambda: kept.keeper.flush(1),
        "fence()": kept.keeper.fence,
        "prefetch()": lambda: kept.keeper.prefetch(Request("f", prompt(1))),
        "forget()": lambda: kept.keeper.forget(MINE),
        "idle()": kept.keeper.idle,
    }
    for name, act in acts.items():
        checks.held(f"{name} ends {where}", within(act) is not TimeoutError)
    checks.held("what was forgotten is out of the cache", kept.found(2, MINE) == 0)
    checks.held("close() ends", within(lambda: kept.keeper.close(0.1)) is not TimeoutError)
    opened = within(lambda: Kept(place, files=files, io=SOON))
    checks.held("it is not opened twice", isinstance(opened, StateError) or not kept.keeper.hanging, opened)
    if isinstance(opened, Kept):
        within(opened.close)
    files.closed.clear()
    files.gate.set()
    while kept.keeper.hanging:
        pass
    again = Kept(place)
    checks.held("what was durable is there", again.fetched(1) == 16)
    again.close()


if __name__ == "__main__":
    run("a disk that does not answer", attack)
