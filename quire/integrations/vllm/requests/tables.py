"""Tables: vLLM's blocks of a request, as its scheduler gives them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NULL = 0  # vLLM's block for places that a window has passed
Tables = Sequence[list[int]]  # blocks of a request, by group
Named = dict[int, Collection[int]]  # by group: some blocks of its text
