"""Usage: tokens of prompts and answers, and how many of the prompts' were cached. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.serve.answers.answer_stream import AnswerStream


def usage_of(streams: Sequence[AnswerStream], num_answered: int) -> dict[str, Any]:
    """Of all prompts of a request together; what was cached is known once a prompt has been admitted."""
    prompt, cached = sum(len(stream.prompt) for stream in streams), sum(stream.reused for stream in streams)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": num_answered,
        "total_tokens": prompt + num_answered,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
