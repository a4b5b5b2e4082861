"""Log-probabilities in both shapes that OpenAI's clients know: of chat, and of completions. Nothing but shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.engine.sampling.token_logprobs import TokenLogprobs
from quire.serve.answers.token_words import TokenWords

LEAST = -9999.0  # JSON has no minus infinity


def chat_logprobs(tokens: Sequence[TokenLogprobs], words: TokenWords) -> dict[str, Any]:
    """Token by token, with the most likely ones of each place."""
    content = []
    for one in tokens:
        top = [_entry(token, logprob, words) for token, logprob in one.top]
        content.append({**_entry(one.token, one.logprob, words), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprobs], words: TokenWords, offset: int) -> dict[str, Any]:
    """List by list; `offset` is where the first token's text begins in the answer."""
    texts = [words.text(one.token) for one in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    top: list[dict[str, float]] = []
    for one, text in zip(tokens, texts, strict=True):
        likely = {words.text(token): _finite(logprob) for token, logprob in one.top}
        top.append({text: _finite(one.logprob)} | likely)  # the chosen one is always among them
    return {
        "tokens": texts,
        "token_logprobs": [_finite(one.logprob) for one in tokens],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def _entry(token: int, logprob: float, words: TokenWords) -> dict[str, Any]:
    text, raw = words.text_and_bytes(token)
    return {"token": text, "logprob": _finite(logprob), "bytes": raw}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
