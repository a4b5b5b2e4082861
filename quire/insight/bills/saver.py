"""Saver: a thread that writes a bill now and then. It ends with the bills, or when it is closed. Knows no format."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from quire.core.records.errors import without_words

_log = logging.getLogger("quire.insight.bills")


class Saver:
    """Calls a method every so many seconds; what it raises is logged, once in a row."""

    def __init__(self, save: Callable[[], Any], every: float) -> None:
        self._over = threading.Event()
        target = (weakref.WeakMethod(save), self._over, every)
        self._thread = threading.Thread(target=_work, args=target, name="quire-bills", daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether its thread has ended though it is open."""
        return not self._over.is_set() and not self._thread.is_alive()

    def close(self) -> None:
        """No more calls; one that runs is waited for."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _work(method: weakref.WeakMethod[Callable[[], Any]], over: threading.Event, every: float) -> None:
    failed = False
    while not over.wait(every):
        save = method()
        if save is None:
            return
        try:
            save()
            failed = False
        except Exception as wrong:  # a full disk above all: serving goes on
            if not failed:
                _log.warning("a bill was not written: %s", getattr(wrong, "strerror", None) or without_words(wrong))
            failed = True
        del save
