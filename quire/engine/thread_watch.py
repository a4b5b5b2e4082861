"""Watch: whether the threads of an LLM are at work. Owns which there are, and which of them serving depends on; each
part says itself how it is.

All of them go on after an error of one request, one batch or one page. What is reported here is a thread that does not:
docs/deploy.md says of each what it is for, what watches it and how it comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.records.errors import without_words

if TYPE_CHECKING:
    from quire.engine.llm import LLM

ENDED = "its thread has ended"


def troubles(llm: LLM) -> dict[str, str]:
    """By part what is wrong with its threads, as far as requests depend on it; empty: all are at work."""
    return {part: why for part, why in _serving(llm).items() if why}


def side_troubles(llm: LLM) -> dict[str, str]:
    """Likewise of what only looks on: requests are served without it."""
    return {part: why for part, why in _looking_on(llm).items() if why}


def parts(llm: LLM) -> list[str]:
    """All that there are here."""
    return [*_serving(llm), *_looking_on(llm)]


def _serving(llm: LLM) -> dict[str, str]:
    mover, publisher = llm.loop.engine.pages.mover, llm.publisher
    found = {"engine": llm.loop.error or "", "mover": ENDED if mover.stopped else ""}
    if mover.failure is not None:
        found["mover"] = f"it has failed with {without_words(mover.failure)}"
    if publisher is not None:
        found["publisher"] = ENDED if publisher.stopped else ""
        if publisher.failure is not None and not publisher.stopped:
            found["publisher"] = f"it has failed with {without_words(publisher.failure)}, and tries again"
    if llm.shared is not None:
        found["store"] = f"{llm.shared.stopped} of its threads have ended" if llm.shared.stopped else ""
    if llm.disk is not None:
        found["disk"] = llm.disk.stopped
    return found


def _looking_on(llm: LLM) -> dict[str, str]:
    engine = llm.loop.engine
    scrubber = None if llm.disk is None else llm.disk.scrubber
    all_of_them = {
        "trace": engine.recorder, "regret": llm.watched, "incidents": engine.incidents, "bills": engine.bills,
        "scrub": scrubber,
    }  # fmt: skip
    return {part: one.stopped for part, one in all_of_them.items() if one is not None}
