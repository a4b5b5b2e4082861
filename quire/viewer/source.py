"""CacheSource: where the page's facts come from that the cache does not keep: who waits, steps, receipts, misses.

An engine of one's own reports them (`admitted`, `stepped`); a server overrides the questions. Owns what is kept of
them, which is bounded. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, get_args

from quire.core.admission.batch import Batch
from quire.core.cache import Cache
from quire.core.maps import claimed_ids, live_ids
from quire.core.records.reports.receipt import Cause, Receipt
from quire.core.records.request import Int32, Request

MOST_STEPS = 240  # kept
MOST_WAITING = 10_000  # looked at


class QueuedRequest(NamedTuple):
    """A request without pages."""

    id: Hashable
    tokens: int  # of its prompt
    found: int = -1  # of them in the cache and held for it; -1: not looked up
    seconds: float = 0.0  # since it came


class ViewedStep(NamedTuple):
    """One step of an engine."""

    time: float  # when it ended, by the cache's clock
    tokens: int  # computed
    seconds: Mapping[str, float]  # by part


class MissCounts:
    """Prompt tokens that were reused, and by cause those that were not, since the beginning."""

    def __init__(self) -> None:
        self.requests = self.tokens = self.reused = 0
        self.missed: dict[str, int] = dict.fromkeys(get_args(Cause), 0)

    def add(self, receipt: Receipt) -> None:
        """One more request."""
        self.requests += 1
        self.tokens += receipt.length
        self.reused += receipt.reused
        for miss in receipt.misses:
            cause = "new" if miss.cause == "other_scope" else miss.cause  # that another scope has it is not shown
            self.missed[cause] += miss.num_tokens


class ReportToTell(Protocol):
    """A RegretReport."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        ...


class RegretWatch(Protocol):
    """A Regret (quire.insight), as far as the page asks it."""

    @property
    def latest(self) -> ReportToTell | None:
        """What its thread has made last."""
        ...


class CacheSource:
    """The facts of a cache with an engine of one's own."""

    def __init__(
        self, cache: Cache, waiting: Callable[[], Iterable[Request]] | None = None, name: str = "",
        regret: RegretWatch | None = None,
    ) -> None:  # fmt: skip
        self.cache, self.name, self._regret = cache, name, regret
        self.tally = MissCounts()
        self.steps: deque[ViewedStep] = deque(maxlen=MOST_STEPS)
        self._waiting = waiting
        self._receipts: dict[Hashable, Receipt] = {}

    def admitted(self, batch: Batch) -> None:
        """Keep the receipts of a batch, as long as its sequences live."""
        if not self.cache.config.receipts:
            return
        for sequence, receipt in zip(batch.sequences, batch.receipts, strict=True):
            self.tally.add(receipt)
            self._receipts[sequence.id] = receipt
        if len(self._receipts) > 2 * self.cache.config.max_sequences:
            live = set(live_ids(self.cache))
            self._receipts = {id: receipt for id, receipt in self._receipts.items() if id in live}

    def stepped(self, num_tokens: int, seconds: float | Mapping[str, float]) -> None:
        """A step has been computed."""
        parts = seconds if isinstance(seconds, Mapping) else {"step": float(seconds)}
        self.steps.append(ViewedStep(self.now(), int(num_tokens), dict(parts)))

    def now(self) -> float:
        """Seconds by a clock that only goes forward."""
        return time.monotonic()

    # -- what a server knows better ----------------------------------------------------------------------------------

    def waiting(self) -> list[QueuedRequest]:
        """Who has no pages yet, in order."""
        claimed = claimed_ids(self.cache)
        found = [QueuedRequest(id, tokens, start) for id, tokens, start in claimed]
        if self._waiting is not None:
            known = {id for id, _, _ in claimed}
            asked = [request for request in self._waiting() if request.id not in known]
            found += [QueuedRequest(request.id, len(request.tokens)) for request in asked[:MOST_WAITING]]
        return found

    def receipt(self, id: Hashable) -> Receipt | None:
        """That of a live sequence, if there is one."""
        return self._receipts.get(id)

    def tokens(self, id: Hashable) -> Int32 | None:
        """The prompt of a live sequence."""
        return self.cache.sequence(id).request.tokens if id in live_ids(self.cache) else None

    def regret(self) -> dict[str, Any] | None:
        """What could have been reused, where regret is watched; of the curve nothing is shown."""
        report = None if self._regret is None else self._regret.latest
        return None if report is None else {**report.to_json(), "curve": []}

    def text(self, tokens: Int32) -> str | None:
        """Tokens in words, where there is a tokenizer."""
        return None
