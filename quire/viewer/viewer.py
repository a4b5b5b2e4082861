"""Viewer: a cache as a live page in a browser, for an engine of one's own. Changes nothing in the cache.

viewer = quire.Viewer(cache)       # http://127.0.0.1:PORT/
viewer.admitted(batch)             # after an admission: its receipts, hit rate and misses by cause
viewer.stepped(tokens, seconds)    # after a step: the timeline
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from quire.core.admission.batch import Batch
from quire.core.cache import Cache
from quire.core.records.errors import InputError, say
from quire.core.records.request import Request
from quire.net.address import joined
from quire.net.hosts import LOOPBACK, is_loopback
from quire.viewer.page_routes import PageRoutes, checked_key
from quire.viewer.page_server import PageServer
from quire.viewer.source import CacheSource, RegretWatch


class Viewer:
    """Serves the page until it is closed, from threads of its own; nothing is computed without a reader.

    Only this machine may look, unless `host` says otherwise; then a `key` is required. With a key the page asks for it,
    and shows receipts as an operator may read them. `waiting` gives the requests that wait outside of the cache.
    `regret` is a quire.insight.Regret of the cache: the page shows what it found. Prompts are shown with `show_tokens`
    only, and salts never.
    """

    def __init__(
        self, cache: Cache, *, host: str = "127.0.0.1", port: int = 0, key: str | None = None,
        show_tokens: bool = False, waiting: Callable[[], Iterable[Request]] | None = None, name: str = "",
        regret: RegretWatch | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(cache, Cache):
            raise InputError(say(f"a viewer of a {type(cache).__name__}", "it is not a Cache", "pass a Cache"))
        local = is_loopback(host)
        if key is not None:
            checked_key(key)
        elif not local:
            fact = "others than this machine could look into the cache"
            raise InputError(say(f"a viewer at {host}", fact, "give it a key, or leave the host out"))
        self._source = CacheSource(cache, waiting, name, regret)
        self._routes = PageRoutes(self._source, key, show_tokens)
        hosts = (*LOOPBACK, host) if local else None
        self._server = PageServer(host, port, self._routes.answer, hosts)
        self._server.start()
        self._closed = False

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self._server.server_address[:2]
        return f"http://{joined(str(host), port)}/"

    def admitted(self, batch: Batch) -> None:
        """Show the receipts of a batch, if the cache makes them."""
        self._source.admitted(batch)

    def stepped(self, num_tokens: int, seconds: float | Mapping[str, float]) -> None:
        """Show a step: tokens it computed, and how long it took, in all or by part."""
        self._source.stepped(num_tokens, seconds)

    def close(self) -> None:
        """Stop serving the page; closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._server.stop()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Viewer({'closed' if self._closed else self.url})"
