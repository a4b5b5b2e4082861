"""TokenTotals: requests and tokens of all accounts together, from the sequences themselves: what lines must add up to.

Counted apart from lines and marks, so that a fault there shows. Whose tokens they are is not known here; nor whether a
page was used before, so both kinds of reuse are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from quire.core.state.sequence import Sequence, running_of
from quire.insight.bills.bill import BillLine


@dataclass(slots=True)
class TokenTotals:
    """As on a line; `reused` is both kinds."""

    requests: int = 0
    computed: int = 0
    reused: int = 0
    received: int = 0
    answers: int = 0
    late: int = 0

    def add_prompt(self, sequence: Sequence, received: bool) -> None:
        """What a sequence that was admitted has by now. `received`: a transfer brings its prompt."""
        end, computed, found = running_of(sequence).prepared.end, sequence.computed, sequence.start
        self.reused += found
        new = max(0, min(computed, end) - found)
        self.received, self.computed = self.received + new * received, self.computed + new * (not received)
        self.answers += max(0, computed - end)

    def add_fork(self, sequence: Sequence, first: int) -> None:
        """What one has by now that was forked when so many tokens were there."""
        self.answers += max(0, sequence.computed - first)

    def with_those(self, other: TokenTotals) -> TokenTotals:
        """Both together."""
        return TokenTotals(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(TokenTotals)))


def total_of(lines: Iterable[BillLine]) -> TokenTotals:
    """Of lines."""
    total = TokenTotals()
    for line in lines:
        reused = line.reused_own + line.reused_shared
        more = TokenTotals(line.requests, line.computed, reused, line.received, line.answers, line.late)
        total = total.with_those(more)
    return total
