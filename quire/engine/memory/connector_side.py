"""The engine's side of a connector: what it brings, and the pages it still reads. Without one it does nothing.

Knows no scheduler and no model.
"""

from __future__ import annotations

import logging
from functools import partial
from queue import SimpleQueue

from quire.core.cache import Cache
from quire.core.records.hint_words import Back
from quire.core.records.span import Span
from quire.core.state.sequence import Sequence
from quire.engine.memory.connector import Connector

_log = logging.getLogger("quire.engine")


class ConnectorSide:
    """A connector, or none. Recurrent models are not asked: a state is known at one position only."""

    def __init__(self, cache: Cache, connector: Connector | None, recurrent: bool) -> None:
        self._cache, self.connector = cache, connector
        self.brings = connector is not None and not recurrent
        self.last_error: Exception | None = None  # of the connector; it costs reuse, and nothing else
        self._lingering: set[Sequence] = set()  # finished, and the connector still reads their pages
        self._freed: SimpleQueue[tuple[Sequence, bool, Back | None]] = SimpleQueue()

    @property
    def num_lingering(self) -> int:
        """Finished sequences whose pages are kept for the connector."""
        return len(self._lingering)

    def bring(self, sequence: Sequence, span: Span) -> int:
        """Leading tokens of `span` whose KV has come from outside; the last token of a prompt is always computed."""
        if self.connector is None or not self.brings:
            return 0
        most = min(span.end, sequence.prompt_end - 1) - span.start
        try:
            num_tokens = min(self.connector.matched(sequence.request, span.start), most)
            if num_tokens <= 0:
                return 0
            came = min(self.connector.allocated(sequence, Span(span.start, span.start + num_tokens)), num_tokens)
        except Exception as error:  # its network, its bug: what does not come is computed
            self._failed(error)
            return 0
        if came > 0:
            self._cache.commit(sequence, span.start + came)
        return max(came, 0)

    def _failed(self, error: Exception) -> None:
        self.last_error = error
        _log.warning("the connector failed, so tokens are computed that it could have brought: %s", error)

    def release(self, sequence: Sequence, store: bool, back: Back | None = None) -> None:
        """Give up its pages, now or when the connector has read them; `back`: when its text is asked for again."""
        if self.connector is not None:
            self._lingering.add(sequence)
            try:
                may_go = self.connector.finished(sequence, partial(self._freed.put, (sequence, store, back)))
            except Exception as error:
                self._failed(error)
                may_go = True
            if not may_go:
                return
            self._lingering.remove(sequence)
        self._cache.release(sequence, store=store, back=back)

    def free(self) -> None:
        """Release what the connector has done with; a second report does nothing."""
        while not self._freed.empty():
            sequence, store, back = self._freed.get()
            if sequence in self._lingering:
                self._lingering.remove(sequence)
                self._cache.release(sequence, store=store, back=back)
