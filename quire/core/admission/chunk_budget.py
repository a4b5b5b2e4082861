"""Step: the token budget of one step, handed out first come first served, in exact lengths. Knows no pages.

With a budget of 0 nothing new is computed: unfinished prompts wait, requests are refused for tokens. A claim that has
nothing to compute (`purpose="decode"`) is admitted.
"""

from __future__ import annotations

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, say, shown
from quire.core.state.prepared import ReadyRequest


class Step:
    """The budgets of one step."""

    __slots__ = ("all_or_nothing", "budget", "left", "limited", "max_chunk")

    def __init__(
        self, token_budget: int | None, max_chunk: int | None, all_or_nothing: bool, config: CacheConfig
    ) -> None:
        if token_budget is not None and (type(token_budget) is not int or token_budget < 0):
            fact = "it is not a number of tokens"
            raise InputError(say(f"token_budget {shown(token_budget)}", fact, "pass an int of at least 0, or None"))
        if max_chunk is not None and (type(max_chunk) is not int or max_chunk < 1):
            fact = "no part of a prompt fits into it"
            raise InputError(say(f"max_chunk {shown(max_chunk)}", fact, "pass an int of at least 1, or None"))
        if not isinstance(all_or_nothing, bool):
            fact = f"it is a {type(all_or_nothing).__name__}"
            raise InputError(say("all_or_nothing", fact, "pass True or False"))
        longest = config.max_chunk
        if longest is not None and (max_chunk is None or max_chunk > longest):
            max_chunk = longest  # slots are only reserved for chunks up to that
        self.budget = self.left = token_budget
        self.max_chunk = max_chunk  # longest part of a prompt per step; None: a prompt is computed whole
        self.limited = max_chunk is not None or token_budget is not None
        self.all_or_nothing = all_or_nothing

    def end(self, start: int, end: int, prepared: ReadyRequest) -> int | None:
        """Where to stop: at the end, or for a chunk where the budget ends or the prompt may be cut; None: nowhere."""
        limit = end - start
        if self.max_chunk is not None:
            limit = min(limit, self.max_chunk, limit if self.left is None else self.left)
            if limit < end - start:
                limit = prepared.cut_before(start + limit) - start
                if limit <= 0:
                    return None
        if self.left is not None:
            if limit > self.left:
                return None
            self.left -= limit
        return start + limit

    def never_whole(self, num_tokens: int) -> bool:
        """It is more than the whole budget, and prompts are not computed in parts: no later step has room for it.

        A budget of 0 says nothing of later steps: this one computes nothing new.
        """
        return self.max_chunk is None and self.budget is not None and 0 < self.budget < num_tokens

    def lack(self, start: int, num_tokens: int, left: int | None, prepared: ReadyRequest) -> tuple[int, int]:
        """What a request that got no part needs and what there was: of one in parts, the uncut span it begins in."""
        span = next((one for one in prepared.request.uncut if one.start <= start < one.end), None)
        if self.max_chunk is None or span is None or left == 0:
            return num_tokens, left or 0
        return span.end - start, self.max_chunk if left is None else min(self.max_chunk, left)
