"""RequestRecording: requests that vLLM serves, for a TraceRecorder: times, lengths, keyed ids, how they ended.

No token leaves the process. What was answered nothing, such as a request that was aborted in the queue, is left out.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Protocol

import numpy as np

from quire.core.records.hint_words import Back
from quire.core.records.identity import Scope
from quire.core.records.request import Int32, Request
from quire.integrations.vllm.common.request_hints import finish_of, session_of
from quire.integrations.vllm.common.request_identity import EngineRequest, media_of
from quire.trace.record.recorder import ArrivedRequest, TraceRecorder

log = logging.getLogger(__name__)


class SharedText(Protocol):
    """Tokens of a request, and who may share them."""

    @property
    def scope(self) -> Scope: ...

    def tokens(self) -> Int32:
        """All that are known."""


class RequestRecording:
    """One file; `path` has a time in it when there was such a file already."""

    def __init__(self, path: str, block_size: int) -> None:
        place = Path(path)
        if place.exists():  # of an engine before: a restart must not fail, and nothing is replaced
            kind = "".join(place.suffixes[-2:]) if place.suffix == ".gz" else place.suffix
            stamp = time.strftime("%Y%m%dT%H%M%S")
            place = place.with_name(f"{place.name.removesuffix(kind)}-{stamp}{kind}")
        self.recorder = TraceRecorder(place, block_size)
        self._open: dict[str, ArrivedRequest] = {}
        log.info("Quire records requests in %s", place)

    def arrived(self, request: EngineRequest) -> None:
        """It has come."""
        self._open[request.request_id] = self.recorder.arrive()

    def ended(self, request: EngineRequest, text: SharedText | None, back: Back | None) -> None:
        """It is over; `text` is what it shared with others, None for what shares nothing."""
        arrived, prompt = self._open.pop(request.request_id, None), request.num_prompt_tokens
        if arrived is None:
            return
        if not 0 < prompt < request.num_tokens:
            self.recorder.forget(arrived)
            return
        if text is None:
            tokens, scope = np.array(request.all_token_ids[:prompt], np.int32), Scope(space=arrived.number)
        else:
            tokens, scope = text.tokens()[:prompt].copy(), text.scope
        words = Request("", tokens, media=media_of(request, prompt)).words()
        self.recorder.add(
            arrived, tokens, request.num_tokens - prompt, scope, words, session=session_of(request),
            finish=finish_of(request), back=back,
        )  # fmt: skip

    def close(self) -> None:
        """Write what waits; the file gets its name."""
        self.recorder.close()
