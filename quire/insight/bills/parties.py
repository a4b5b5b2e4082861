"""Parties: the sets of accounts that share pages, by number. A page has one; what it costs is split among its members.

Owns that there are never more than so many: those that no page has any more make room. Knows no pages.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_PARTIES = 4096


class Parties:
    """Sets of accounts as bits of one number. `sweep` names the parties that some page still has."""

    def __init__(self, most_accounts: int, sweep: Callable[[], set[int]], most: int = MOST_PARTIES) -> None:
        self.masks: list[int] = [1 << number for number in range(most_accounts)]
        self._numbers = {mask: number for number, mask in enumerate(self.masks)}
        self._free: list[int] = []
        self._alone, self._most, self._sweep = most_accounts, most_accounts + most, sweep

    def __len__(self) -> int:
        return len(self.masks)

    def members(self, party: int) -> list[int]:
        """Its accounts, ascending."""
        mask, found = self.masks[party], []
        while mask:
            low = mask & -mask
            found.append(low.bit_length() - 1)
            mask ^= low
        return found

    def has(self, party: int, account: int) -> bool:
        """Whether an account is one of them."""
        return bool(self.masks[party] >> account & 1)

    def joined(self, party: int, account: int) -> int:
        """The party with one more account. Without room for another set it stays as it is: who came pays nothing."""
        mask = self.masks[party] | 1 << account if party else 1 << account  # `nobody` is not one of them any more
        found = self._numbers.get(mask)
        if found is not None:
            return found
        if not self._free and len(self.masks) >= self._most:
            self._forget_unused(party)
        if self._free:
            number = self._free.pop()
            self.masks[number] = mask
        elif len(self.masks) < self._most:
            number = len(self.masks)
            self.masks.append(mask)
        else:
            return party
        self._numbers[mask] = number
        return number

    def _forget_unused(self, asking: int) -> None:
        used = self._sweep() | {asking}
        for number in range(self._alone, len(self.masks)):
            if number not in used:
                del self._numbers[self.masks[number]]
                self.masks[number] = 0
                self._free.append(number)
