"""A process forks while it has a folder open, and is killed: the child neither keeps the lock nor hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from quire import StateError

from ..tiers.disk.rig import Kept
from .checks import PATIENT, Checks, run, within


def owner(folder: Path, pipe: int) -> None:
    """Opens the folder, forks, and waits to be killed; the fork says what came of its calls, and stays."""
    kept = Kept(folder)
    kept.compute(1)
    kept.keeper.flush()
    if os.fork() == 0:
        signal.alarm(int(PATIENT))
        for act in (kept.keeper.flush, lambda: kept.folder.tier.verify(0, [0]), lambda: kept.fetched(1)):
            os.write(pipe, b"r" if isinstance(within(act, 10), StateError) else b"-")
        time.sleep(PATIENT)
        os._exit(0)
    time.sleep(PATIENT)


def attack(folder: Path, checks: Checks) -> None:
    """The owner dies, its fork lives."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.setsid()  # so that both can be ended together
        owner(folder, writer)
    os.close(writer)
    answers = b"".join(os.read(reader, 1) for _ in range(3))
    checks.held("a fork that uses the folder is refused at once", answers == b"rrr", answers)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    again = within(lambda: Kept(folder))
    checks.held("the dead owner's fork does not keep the lock", isinstance(again, Kept), again)
    if isinstance(again, Kept):
        checks.held("what was durable is there", again.fetched(1) == 16)
        again.close()
    os.killpg(parent, signal.SIGKILL)


if __name__ == "__main__":
    run("forks", attack)
