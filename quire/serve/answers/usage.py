"""Usage: tokens of prompts and answers, and how many of the prompts' were cached. Knows runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.engine.front.stream import Stream


def usage_of(streams: Sequence[Stream], num_answered: int) -> dict[str, Any]:
    """Of all prompts of a request together; what was cached is known once a prompt has been admitted."""
    runs = [stream.run for stream in streams if stream.run is not None]
    prompt, cached = sum(len(run.prompt) for run in runs), sum(run.reused for run in runs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": num_answered,
        "total_tokens": prompt + num_answered,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
