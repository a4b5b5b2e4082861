"""Token masks: which tokens may come next, decided anew behind every token. The one hook for structured output.

Knows no grammar. A run with a mask takes no drafts: what may follow a draft is not known before it is accepted.
"""

from __future__ import annotations

from typing import Protocol

from quire.core.records.request import Int32


class TokenMask(Protocol):
    """What may follow one answer so far; every answer has its own. Nothing of it may raise: `error` is for that."""

    def words(self) -> Int32:
        """Bits of the tokens that may come next, 32 to a number, the lowest first; none is set after an error."""
        ...

    def accept(self, token: int) -> None:
        """The answer goes on with it."""
        ...

    def copy(self) -> TokenMask:
        """For another answer that begins with the same tokens."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing can be added to the answer."""
        ...

    @property
    def error(self) -> str:
        """Why there is no next token; empty while there is one."""
        ...
