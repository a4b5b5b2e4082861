"""Errors as OpenAI's clients know them: a status, and {"error": {"message", "type", "param", "code"}}. Knows no HTTP.

A message is ours: ask, fact and cure. It never has a key, and of a prompt at most the few characters that were wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from quire.core.records.errors import InputError, MissingExtra, QuireError, StateError
from quire.engine.loop.stream import RunFailed
from quire.engine.setup.submission import EngineBusy, TooLate

BOUND = "x-ttft-bound-ms"  # in replies: when a first token comes at the latest, or would
RETRY_AFTER = {"retry-after": "1"}
TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
    429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error",
}  # fmt: skip
_SAMPLING = re.compile(r"^(?:token ids of |sampling(?: with beams \d+)?: (?:a stop string|a string of )?)(\w*)")


class ApiError(QuireError):
    """What a client is as_api_error. `headers` go with it."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """As it is sent."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception, names: Mapping[str, str] = MappingProxyType({})) -> ApiError:
    """Any error as a client gets it; `names` are those that fields of Sampling have in the request."""
    match error:
        case ApiError():
            return error
        case TooLate(bound=bound, retry_after=seconds):
            headers = {"retry-after": str(seconds), BOUND: f"{1000 * bound:.0f}"}
            return ApiError(429, str(error), param="ttft_ms", code="too_late", headers=headers)
        case EngineBusy():
            return ApiError(429, str(error), code="engine_full", headers=RETRY_AFTER)
        case RunFailed():
            return ApiError(500, str(error), code="run_failed")
        case InputError() | MissingExtra():
            return ApiError(400, str(error), param=_param(str(error), names))
        case StateError():
            return ApiError(503, str(error), code="engine_closed", headers=RETRY_AFTER)
    return ApiError(500, f"the server has failed at this request: {type(error).__name__}", code="internal_error")


def _param(message: str, names: Mapping[str, str]) -> str | None:
    """Which field a Sampling has refused."""
    if message.startswith("structured outputs"):
        return names.get("structured_outputs")
    match = _SAMPLING.match(message)
    if match is None:
        return None
    return names.get(match[1] or "stop", match[1] or "stop")
