"""UseStack: tokens by the request that used them last, the latest on top. Owns sums; knows no blocks.

    a request uses blocks again that request 3 used last      since(3): tokens that requests 4, 5, ... used last,
                                                              which an LRU cache keeps in preference to those blocks

A Fenwick tree over requests, in which a request is a slot: a sum or a change takes steps by the logarithm.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray


class UseStack:
    """Tokens per slot; the last slot is the request that is being read."""

    def __init__(self) -> None:
        self._tokens = array("q")
        self._tree = array("q", [0])  # [n]: tokens of the last (n & -n) slots of the first n
        self._total = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def push(self) -> int:
        """A slot above all others, empty; which one."""
        number = len(self._tree)
        self._tree.append(self._up_to(number - 1) - self._up_to(number & (number - 1)))
        self._tokens.append(0)
        return number - 1

    def add(self, slot: int, tokens: int) -> None:
        """More tokens in a slot, or fewer."""
        self._tokens[slot] += tokens
        self._total += tokens
        number, size = slot + 1, len(self._tree)
        while number < size:
            self._tree[number] += tokens
            number += number & -number

    def since(self, slot: int) -> int:
        """Tokens of all slots above this one."""
        return self._total - self._up_to(slot + 1)

    def _up_to(self, number: int) -> int:
        """Tokens of the first slots."""
        tokens = 0
        while number:
            tokens += self._tree[number]
            number &= number - 1
        return tokens

    def squeeze(self, used: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keep the slots that are asked about, and the last; where each of `used` is now.

        What others hold goes to the next one above that is kept: `since` of those that are kept stays what it is.
        """
        kept = np.unique(np.append(used, len(self) - 1))
        tokens = np.zeros(len(kept), np.int64)
        np.add.at(tokens, np.searchsorted(kept, np.arange(len(self))), np.asarray(self._tokens))
        self._fill(tokens)
        return np.searchsorted(kept, used)

    def add_all(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """As `add` for each of many, at once."""
        sums = np.array(self._tokens)
        np.add.at(sums, slots, tokens)
        self._fill(sums)

    def _fill(self, tokens: NDArray[np.int64]) -> None:
        """These tokens, in place of all before."""
        sums = np.append(0, np.cumsum(tokens))
        numbers = np.arange(len(tokens) + 1)
        self._tokens = array("q", tokens.tobytes())
        self._tree = array("q", (sums - sums[numbers & (numbers - 1)] * (numbers > 0)).tobytes())
        self._total = int(sums[-1])
