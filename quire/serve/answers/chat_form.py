"""ChatForm: answers of /v1/chat/completions, with calls of tools where the request has some. Nothing but shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.engine.loop.feed import Piece
from quire.engine.step.runs.branch import Answer
from quire.serve.answers.form import Shown, finish_reason, quoted
from quire.serve.answers.logprob_shapes import chat_logprobs
from quire.serve.http.exchange import encoded
from quire.serve.inputs.tools import AnswerReader, ToolCallDelta, ToolPlan

CALLS = "tool_calls"


class ChatForm:
    """Messages of an assistant."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, shown: Shown, plan: ToolPlan) -> None:
        self._shown, self._plan = shown, plan
        self._readers: dict[int, AnswerReader | None] = {}

    def opening(self, choice: int, prompt: Sequence[int]) -> str:
        """Who speaks."""
        self._readers[choice] = self._plan.reader()
        chunk: dict[str, Any] = {"index": choice, "delta": {"role": "assistant", "content": ""}}
        if self._shown.token_ids:
            chunk["prompt_token_ids"] = list(prompt)
        return encoded({**chunk, "logprobs": None, "finish_reason": None}).decode()

    def piece(self, choice: int, piece: Piece) -> list[str]:
        """What is new of the message."""
        reader = self._readers[choice]
        finish = finish_reason(piece.finish)
        if reader is None and not (self._shown.logprobs or self._shown.token_ids):
            return _plain(choice, piece.text, finish)
        deltas = [ToolCallDelta(piece.text)] if reader is None else reader.read(piece.text, finish is not None)
        chunks: list[dict[str, Any]] = [{"index": choice, "delta": _delta(one)} for one in deltas]
        if not chunks and (finish or self._shown.logprobs or self._shown.token_ids):
            chunks = [{"index": choice, "delta": {}}]
        for one in chunks:
            one |= {"logprobs": None, "finish_reason": None}
        if chunks:
            self._complete(chunks[-1], piece)
            chunks[-1]["finish_reason"] = _finish(finish, reader)
        return [encoded(one).decode() for one in chunks]

    def _complete(self, chunk: dict[str, Any], piece: Piece) -> None:
        if self._shown.logprobs and piece.logprobs:
            chunk["logprobs"] = chat_logprobs(piece.logprobs, self._shown.words)
        if self._shown.token_ids:
            chunk["token_ids"] = list(piece.tokens)

    def answer(self, choice: int, text: str, answer: Answer, prompt: Sequence[int]) -> dict[str, Any]:
        """The whole message."""
        finish, reader = finish_reason(answer.finish), self._plan.reader()
        deltas = [ToolCallDelta(text)] if reader is None else reader.read(text, True)
        calls = [_whole(one.call) for one in deltas if one.call is not None]
        content = "".join(one.content for one in deltas)
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        message["refusal"] = None
        if calls:
            message[CALLS] = calls
        reply = {"index": choice, "message": message, "logprobs": None, "finish_reason": _finish(finish, reader)}
        if self._shown.logprobs:
            reply["logprobs"] = chat_logprobs(answer.logprobs, self._shown.words)
        if self._shown.token_ids:
            reply |= {"prompt_token_ids": list(prompt), "token_ids": list(answer.tokens)}
        return reply


def _plain(choice: int, text: str, finish: str | None) -> list[str]:
    """The usual case, put together by hand: it is made for every token of every answer."""
    if not text and finish is None:
        return []
    delta = f'{{"content":{quoted(text)}}}' if text else "{}"
    end = "null" if finish is None else f'"{finish}"'
    return [f'{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":{end}}}']


def _delta(one: ToolCallDelta) -> dict[str, Any]:
    return {"content": one.content} if one.call is None else {CALLS: [one.call]}


def _whole(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "index"}


def _finish(finish: str | None, reader: AnswerReader | None) -> str | None:
    return CALLS if finish == "stop" and reader is not None and reader.called else finish
