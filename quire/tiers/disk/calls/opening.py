"""Open something on a disk that may never answer. Owns the thread that waits for it then, and what becomes of what it
opens too late.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from threading import Lock, Thread

from quire.core.records.errors import StateError, say
from quire.tiers.disk.calls.disk_watch import DiskWatch

LOOKS = 4  # within the deadline


def open_within(watch: DiskWatch, act: Callable[[], ExitStack]) -> ExitStack:
    """What `act` has opened; StateError when the disk does not answer: then it is closed as soon as it is open."""
    future: Future[ExitStack] = Future()
    handing, given_up = Lock(), [False]

    def work() -> None:
        try:
            opened = act()
        except BaseException as error:
            future.set_exception(error)
            return
        with handing:
            if not given_up[0]:
                future.set_result(opened)
                return
        opened.close()

    Thread(target=work, name="quire-open", daemon=True).start()
    while True:
        try:
            return future.result(watch.seconds / LOOKS)
        except TimeoutError:
            with handing:
                if future.done() or not watch.hanging:
                    continue
                given_up[0] = True
            fact = f"the disk has not answered for {watch.seconds} s"
            raise StateError(say("opening a folder of pages", fact, "look at the disk")) from None
