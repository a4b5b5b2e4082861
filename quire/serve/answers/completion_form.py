"""CompletionForm: answers of /v1/completions. Nothing but shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.engine.loop.feed import Piece
from quire.engine.step.runs.branch import Answer
from quire.serve.answers.form import Shown, finish_reason, quoted
from quire.serve.answers.logprob_shapes import completion_logprobs
from quire.serve.http.exchange import encoded


class CompletionForm:
    """Texts; with `echo`, the texts of the prompts, their own first."""

    kind = chunk_kind = "text_completion"

    def __init__(self, shown: Shown, echo: Sequence[str] | None, answers_per_prompt: int) -> None:
        self._shown, self._echo, self._n = shown, echo, answers_per_prompt
        self._offsets: dict[int, int] = {}  # where the next token's text begins, by choice

    def opening(self, choice: int, prompt: Sequence[int]) -> str:
        """The prompt, where it is wanted."""
        if self._echo is None and not self._shown.token_ids:
            return ""
        chunk: dict[str, Any] = {"index": choice, "text": self._prompt_text(choice)}
        if self._shown.token_ids:
            chunk["prompt_token_ids"] = list(prompt)
        return encoded({**chunk, "logprobs": None, "finish_reason": None}).decode()

    def _prompt_text(self, choice: int) -> str:
        return "" if self._echo is None else self._echo[choice // self._n]

    def piece(self, choice: int, piece: Piece) -> list[str]:
        """What is new of the text."""
        finish = finish_reason(piece.finish)
        shown = self._shown
        if not (piece.text or finish or shown.logprobs or shown.token_ids):
            return []
        if not (shown.logprobs or shown.token_ids):
            end = "null" if finish is None else f'"{finish}"'
            return [f'{{"index":{choice},"text":{quoted(piece.text)},"logprobs":null,"finish_reason":{end}}}']
        chunk: dict[str, Any] = {"index": choice, "text": piece.text, "logprobs": None, "finish_reason": finish}
        if shown.logprobs and piece.logprobs:
            offset = self._offsets.get(choice, 0)
            chunk["logprobs"] = completion_logprobs(piece.logprobs, shown.words, offset)
            self._offsets[choice] = offset + sum(len(shown.words.text(one.token)) for one in piece.logprobs)
        if shown.token_ids:
            chunk["token_ids"] = list(piece.tokens)
        return [encoded(chunk).decode()]

    def answer(self, choice: int, text: str, answer: Answer, prompt: Sequence[int]) -> dict[str, Any]:
        """The whole text."""
        reply: dict[str, Any] = {"index": choice, "text": self._prompt_text(choice) + text, "logprobs": None}
        reply["finish_reason"] = finish_reason(answer.finish)
        if self._shown.logprobs:
            reply["logprobs"] = completion_logprobs(answer.logprobs, self._shown.words, 0)
        if self._shown.token_ids:
            reply |= {"prompt_token_ids": list(prompt), "token_ids": list(answer.tokens)}
        return reply
