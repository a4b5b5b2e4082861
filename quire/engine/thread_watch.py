"""Watch: whether the threads that serve an LLM are at work. Owns which there are; each part says itself how it is.

All of them go on after an error of one request, one batch or one page. What is reported here is a thread that does not:
docs/deploy.md says of each what it is for, what watches it and how it comes back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quire.core.records.errors import without_words

if TYPE_CHECKING:
    from quire.engine.llm import LLM

KEEPER = "quire-keeper"  # the thread of a disk's keeper: whatever the disk does, it is there


def troubles(llm: LLM) -> dict[str, str]:
    """By part what is wrong with its threads, as far as requests depend on it; empty: all are at work."""
    errors: dict[str, str | None] = {"engine": llm.loop.error, "mover": None, "publisher": None, "store": None}
    mover = llm.loop.engine.pages.mover.failure
    if mover is not None:
        errors["mover"] = f"it has failed with {without_words(mover)}"
    if llm.publisher is not None and llm.publisher.failure is not None:
        errors["publisher"] = f"it has failed with {without_words(llm.publisher.failure)}, and tries again"
    if llm.shared is not None and llm.shared.stopped:
        errors["store"] = f"{llm.shared.stopped} of its threads have ended"
    if llm.disk is not None and not any(thread.name == KEEPER for thread in threading.enumerate()):
        errors["disk"] = "its thread has ended"
    return {part: why for part, why in errors.items() if why is not None}


def parts(llm: LLM) -> list[str]:
    """Those that `troubles` looks at."""
    others = {"publisher": llm.publisher, "store": llm.shared, "disk": llm.disk}
    return ["engine", "mover", *(name for name, part in others.items() if part is not None)]
