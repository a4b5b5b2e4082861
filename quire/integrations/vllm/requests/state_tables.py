"""StateTables: vLLM's tables of a request with those blocks of recurrent states that can be stored. Holds nothing.

    blocks of a text          0   1   2   3   4
    vLLM's table              -   a   -   b   c       a: found   b: named by vLLM, the state behind block 3
    here                      -   a   -   b   -       c: the state that runs, somewhere inside block 4

A table does not say what a state's block holds: vLLM writes it in place, and may keep there a state from the middle of
a block. So vLLM names what is done, by its tokens: only those are shown, and what it found itself before it computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.records.groups import LayerGroup
from quire.integrations.vllm.requests.tables import NULL, Tables

StateOffer = tuple[int, int, int]  # group, vLLM's block, tokens behind which it is the state


class StateTables:
    """Of one engine; `size` are the tokens of a block."""

    def __init__(self, groups: Sequence[LayerGroup], size: int) -> None:
        self._groups, self._size = [nth for nth, group in enumerate(groups) if group.current], size

    def shown(self, tables: Tables, offers: Sequence[StateOffer], found: int) -> Tables:
        """The tables of a step; `found` blocks were there before the request computed anything."""
        if not self._groups:
            return tables
        made = list(tables)
        for group in self._groups:
            table = tables[group]
            made[group] = table[:found] + [NULL] * (len(table) - found)
        for group, block, tokens in offers:
            nth, inside = divmod(tokens, self._size)
            if group in self._groups and not inside and 0 < nth <= len(made[group]):
                made[group][nth - 1] = block
        return made
