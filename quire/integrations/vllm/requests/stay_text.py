"""StayText: the tokens of a stay, and the requests that it makes of them to the cache. Holds nothing there."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.cache import Cache
from quire.core.records.groups import LayerGroup
from quire.core.records.identity import Scope
from quire.core.records.request import Int32, Request
from quire.core.state.prepared import Prepared
from quire.integrations.vllm.common.request_identity import EngineRequest, media_of, points_of, retention_of
from quire.integrations.vllm.common.request_tokens import RequestTokens


def loads_all(groups: Iterable[LayerGroup]) -> bool:
    """Whether a prompt's last token may be loaded too, though vLLM computes it again. Behind a window that token reads
    one token more than the next one would, and a recurrent state cannot go back by a token."""
    return not any(group.bounded for group in groups)


class StayText:
    """`number` distinguishes this stay from others of the same request; `tokens` are those of all its stays.

    `redo_blocks` at the end of what is found are computed all the same.
    """

    __slots__ = ("_loads_all", "_prepared", "_redo_blocks", "_tokens", "_whole", "number", "request", "scope")

    def __init__(
        self, request: EngineRequest, tokens: RequestTokens, number: int, scope: Scope, *, loads_all: bool,
        redo_blocks: int,
    ) -> None:  # fmt: skip
        self.request, self._tokens, self.number, self.scope = request, tokens, number, scope
        self._loads_all, self._redo_blocks = loads_all, redo_blocks
        self._whole: Request | None = None
        self._prepared: Prepared | None = None

    def tokens(self) -> Int32:
        """All that are known; only those that came since are read."""
        return self._tokens.known(self.request)

    def whole(self) -> Request:
        """All tokens that are known. The last one vLLM computes in any case; where its KV may be loaded all the same
        (`loads_all`), vLLM computes that token alone behind a hit of whole blocks, and not a whole block."""
        tokens = self.tokens()
        if self._whole is None or len(self._whole.tokens) != len(tokens):
            limit = None if self._loads_all else len(tokens) - 1
            self._whole = self._asked(tokens, reuse_limit=limit, redo_blocks=self._redo_blocks)
        return self._whole

    def prepared(self, cache: Cache) -> Prepared:
        """The same ready to be looked up, as often as vLLM asks."""
        whole = self.whole()
        if self._prepared is None or self._prepared.request is not whole:
            self._prepared = cache.prepare(whole, keys=False)
        return self._prepared

    def prompt(self, cache: Cache) -> Prepared:
        """Its prompt alone, ready to be written."""
        length, ready = self.request.num_prompt_tokens, self._prepared
        if ready is None or len(ready.request.tokens) != length:
            ready = cache.prepare(self._asked(self.tokens()[:length].copy()), keys=False)
        return ready

    def first(self, length: int) -> Request:
        """So many of its tokens."""
        return self._asked(self.tokens()[:length])

    def _asked(self, tokens: Int32, reuse_limit: int | None = None, redo_blocks: int = 0) -> Request:
        request = self.request
        prompt = min(len(tokens), request.num_prompt_tokens)
        return Request(
            (request.request_id, self.number), tokens, self.scope, media=media_of(request, prompt),
            retention=retention_of(request), reuse_limit=reuse_limit, redo_blocks=redo_blocks,
            resume_points=points_of(request, prompt),
        )  # fmt: skip
