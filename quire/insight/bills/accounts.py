"""Accounts: who is billed apart, by number; never more than a fixed number of them. Knows no pages."""

from __future__ import annotations

from quire.core.records.request import Request
from quire.insight.bills.bill import NOBODY, OTHERS, Who

NOBODYS, OTHERS_NUMBER = 0, 1  # accounts that are always there
MOST_ACCOUNTS = 1024
LONGEST_NAME = 200  # of an adapter or a session; more of it is cut


class Accounts:
    """Accounts by number, in the order in which they came.

    A tenant has one of its own, and more for its adapters and sessions, which take half of the places at most: behind
    that they are billed to the tenant. Tenants that come when all places are taken are billed together, as others.
    """

    def __init__(self, most: int = MOST_ACCOUNTS, sessions: bool = False) -> None:
        self.who: list[Who] = [NOBODY, OTHERS]
        self._numbers: dict[Who, int] = {}
        self._most, self._sessions, self._num_parts = most, sessions, 0

    def __len__(self) -> int:
        return len(self.who)

    def number_of(self, request: Request) -> int:
        """The account that a request is billed to."""
        tenant = Who(request.tenant)
        adapter = request.scope.lora
        part = Who(request.tenant, None if adapter is None else _name(adapter),
                   _name(request.session) if self._sessions and request.session is not None else None)  # fmt: skip
        found = self._numbers.get(part)
        if found is not None:
            return found
        if part == tenant:
            return self._open(tenant) if len(self.who) < self._most else OTHERS_NUMBER
        if len(self.who) + (tenant not in self._numbers) < self._most and self._num_parts < self._most // 2:
            if tenant not in self._numbers:
                self._open(tenant)
            self._num_parts += 1
            return self._open(part)
        return self._numbers[tenant] if tenant in self._numbers else self._tenant(tenant)

    def _tenant(self, tenant: Who) -> int:
        return self._open(tenant) if len(self.who) < self._most else OTHERS_NUMBER

    def _open(self, who: Who) -> int:
        self._numbers[who] = number = len(self.who)
        self.who.append(who)
        return number


def _name(value: int | str | bytes) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
