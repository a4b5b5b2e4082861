"""PageFutures: what is known of the future of stored pages, told to the cache: when a request is over, and when the
next one of its session has come. Moves nothing, holds nothing.

A hint speaks of a session's own text: what others had stored before it, such as a system prompt, is theirs too.
"""

from __future__ import annotations

from quire.core.cache import Cache
from quire.integrations.vllm.common.request_hints import session_of
from quire.integrations.vllm.reports.connector_counts import ConnectorCounts
from quire.integrations.vllm.requests.session_ends import SessionEnd, SessionEnds, SessionKey, num_equal
from quire.integrations.vllm.requests.stay import Stay


class PageFutures:
    """Of one engine."""

    def __init__(self, cache: Cache, counts: ConnectorCounts) -> None:
        self._cache, self._counts, self.ends = cache, counts, SessionEnds()

    def arrived(self, stay: Stay) -> None:
        """A request has come: what its session's last one stored, and it does not go on from, goes first."""
        key = _key(stay)
        last = None if key is None else self.ends.take(key)
        if last is None:
            return
        shared = num_equal(last.tokens, stay.text.tokens())
        if shared > last.begun:
            stay.begun = last.begun
        if shared < len(last.tokens):
            left = self._cache.hint(last.tokens, "never", stay.scope, max(shared, last.begun))
            self._counts.add("superseded_pages", left)

    def ended(self, stay: Stay) -> None:
        """A request is over, and all of it that is stored can be found."""
        sent = stay.stores.sent
        if not sent or stay.request.mm_features:  # of images only those know the blocks who have their digests
            return
        begun = stay.loads.there if stay.begun is None else min(stay.begun, stay.loads.there)
        tokens = stay.text.tokens()[:sent]
        if stay.back is not None and begun < sent:
            self._counts.add("hinted_pages", self._cache.hint(tokens, stay.back, stay.scope, begun))
        key = _key(stay)
        if key is not None and stay.back != "never":
            self.ends.put(key, SessionEnd(tokens.copy(), min(begun, sent)))

    def forget(self) -> None:
        """Nothing that was stored is there any more."""
        self.ends.clear()


def _key(stay: Stay) -> SessionKey | None:
    session = session_of(stay.request)
    return None if session is None else (stay.scope.key, session)
