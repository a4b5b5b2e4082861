"""AnswerForm: what an endpoint's answers look like. Owns what all forms share: the head, and names of finishes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quire.core.records.errors import say
from quire.engine.loop.feed import Piece
from quire.engine.step.runs.branch import Answer
from quire.serve.answers.token_words import TokenWords
from quire.serve.http.api_errors import ApiError

FINISHES = {"eos": "stop", "stop": "stop", "length": "length"}
quoted = json.encoder.encode_basestring  # a string as JSON, without needless escapes


@dataclass(frozen=True, slots=True)
class Shown:
    """What a client wants to see besides the text."""

    head: AnswerHead
    words: TokenWords
    logprobs: bool = False
    token_ids: bool = False


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every reply of a request begins with."""

    id: str
    created: int
    model: str

    def chunk(self, kind: str) -> str:
        """The beginning of an event, up to its choices."""
        head = f'"id":{quoted(self.id)},"object":"{kind}","created":{self.created},"model":{quoted(self.model)}'
        return f'data: {{{head},"choices":['

    def whole(self, kind: str) -> dict[str, Any]:
        """The beginning of a reply."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class AnswerForm(Protocol):
    """Of one request. Choices are counted over all prompts and their answers."""

    kind: str  # of a whole reply
    chunk_kind: str

    def opening(self, choice: int, prompt: Sequence[int]) -> str:
        """A choice of an event before its first piece; empty: there is none."""
        ...

    def piece(self, choice: int, piece: Piece) -> list[str]:
        """Choices of events, as JSON; none: there is nothing to send yet."""
        ...

    def answer(self, choice: int, text: str, answer: Answer, prompt: Sequence[int]) -> dict[str, Any]:
        """A choice of a whole reply."""
        ...


def finish_reason(finish: str | None) -> str | None:
    """As clients know it; None for an answer that was cut."""
    if finish is None:
        return None
    if finish not in FINISHES:
        fact, cure = "it was ended before it was complete: the server shuts down", "ask again"
        raise ApiError(503, say("the answer", fact, cure), code="shutting_down")
    return FINISHES[finish]
