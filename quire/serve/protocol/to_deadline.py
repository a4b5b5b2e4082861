"""From a request to when its first token is wanted: its field, its header, or what its tenant has."""

from __future__ import annotations

import re

from quire.core.records.errors import say, shown
from quire.engine.deadlines.first_token import LONGEST
from quire.serve.http.api_errors import ApiError
from quire.serve.protocol.bodies import GenerationBody

HEADER = "x-ttft-ms"
NUMBER = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")


def ttft_of(asked: GenerationBody, header: bytes, own: float | None) -> float | None:
    """Seconds, or None. The field comes before the header, and that before the tenant's own."""
    if asked.ttft_ms is not None:
        return asked.ttft_ms / 1000
    given = header.decode("latin-1")
    if not given:
        return own
    milliseconds = float(given) if NUMBER.fullmatch(given) else 0.0
    if not 0 < milliseconds <= 1000 * LONGEST:
        fact, cure = f"it is {shown(given[:32])}", "give milliseconds above 0, up to an hour"
        raise ApiError(400, say(HEADER, fact, cure), param=HEADER)
    return milliseconds / 1000
