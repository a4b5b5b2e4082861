"""Rounds: which tenant computes first. Owns tenants and their virtual time; knows no pages and no sequences.

    virtual time of a tenant     tokens computed for it; in which round it is: one round is `quantum` tokens
    now                          the virtual time of the engine: where a tenant begins that waited for nothing

The tenant in the earliest round goes first. `now` moves on with every token, by the share of each tenant inside, and is
never behind all tenants that wait. So a tenant that comes, or comes back, begins beside the others: it saves no credit
while it is idle. And `now` passes every tenant that waits, after which all that come are behind it. No tenant is
further than `REACH` rounds from `now`, either way: neither credit nor debt grows beyond that.

A request without a tenant is a tenant of its own, or shares one with the other prompts of its call (`Together`).
With `fair=False` all requests are of one tenant: first come, first served within a priority. `tenant_seats.py` has
how many sequences a tenant may have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType

from quire.engine.step.runs.branch import Branch, Run
from quire.engine.step.runs.step_work import Work
from quire.engine.step.runs.tenant import Tenant, Together, TokenKey

REACH = 8  # rounds: the most that a tenant may be ahead of the others, or behind them
NO_TOKENS: Mapping[Tenant, int] = MappingProxyType({})
MOST_DEBTS = 1024  # tenants remembered that left while they were ahead


class Rounds:
    """Tenants inside the engine, and the order among them."""

    def __init__(self, quantum: int, granted: Mapping[str, int], *, fair: bool = True) -> None:
        self.quantum, self._granted, self._fair = quantum, dict(granted), fair
        self.now = 0.0
        self.inside: dict[Hashable, Tenant] = {}
        self._debts: dict[str, float] = {}  # oldest first

    def __repr__(self) -> str:
        return f"Rounds({len(self.inside)} tenants inside, {len(self._debts)} remembered, at {self.now:.0f})"

    def enter(self, run: Run, tenant: str | Together | None) -> None:
        """A run has come: it takes its turns as this tenant."""
        key, granted = self._key_of(run, tenant)
        if key not in self.inside:
            debt = self._debts.pop(key, 0.0) if isinstance(key, str) else 0.0
            self.inside[key] = Tenant(key, granted, debt)
        run.tenant = self.inside[key]
        run.tenant.num_runs += 1

    def preview(self, run: Run, tenant: str | Together | None) -> tuple[Tenant | None, TokenKey]:
        """Whose turns a run would take, if that tenant is inside, and its key. Changes nothing."""
        key, granted = self._key_of(run, tenant)
        inside = self.inside.get(key)
        debt = self._debts.get(key, 0.0) if isinstance(key, str) else 0.0
        time, since = (debt, run.arrival) if inside is None else (inside.time, inside.since)
        if inside is None or not inside.num_waiting:
            time, since = max(time, self.now // self.quantum * self.quantum), run.arrival
        time = min(time, self.now + REACH * self.quantum)
        return inside, (granted, int(time // self.quantum), run.deadline, since)

    def _key_of(self, run: Run, tenant: str | Together | None) -> tuple[Hashable, int]:
        """Without a tenant it is the operator's own, or the operator lets clients choose: its priority is granted."""
        if not self._fair:
            return None, 0
        if isinstance(tenant, str):
            return tenant, self._granted.get(tenant, 0)
        priority = run.sampling.priority
        return (tenant or run.id, priority), priority

    def leave(self, run: Run) -> None:
        """A run is over. Of a tenant with none left only how far it was ahead of the others is remembered."""
        tenant = run.tenant
        tenant.num_runs -= 1
        if tenant.num_runs:
            return
        del self.inside[tenant.key]
        if isinstance(tenant.key, str) and tenant.time > self.now:
            self._debts[tenant.key] = tenant.time
            if len(self._debts) > MOST_DEBTS:
                self._debts = {name: time for name, time in self._debts.items() if time > self.now}
            if len(self._debts) > MOST_DEBTS:
                del self._debts[next(iter(self._debts))]

    def begin_to_wait(self, branch: Branch) -> None:
        """A tenant that waited for nothing has something to wait for: it begins with the present round."""
        tenant = branch.run.tenant
        tenant.time = max(tenant.time, self.now // self.quantum * self.quantum)
        tenant.since = branch.run.arrival

    def spend(self, works: Iterable[Work], tokens: Mapping[Tenant, int] = NO_TOKENS) -> None:
        """A step has computed these, and so many tokens of tenants."""
        total = sum(tokens.values())
        for tenant, count in tokens.items():
            tenant.time += count
        for work in works:
            count = len(work.span)
            work.branch.run.tenant.time += count
            total += count
        self.now += total / max(1, len(self.inside))

    def catch_up(self, prompts: Iterable[Branch]) -> None:
        """`now` is not behind all who wait for tokens or pages."""
        times = [tenant.time for tenant in self.inside.values() if tenant.num_waiting]
        times += [branch.run.tenant.time for branch in prompts]
        self.now = max(self.now, min(times, default=0.0))

    def token_key(self, run: Run) -> TokenKey:
        """Who computes first: by granted priority, round, deadline, and by who began to wait first."""
        tenant, reach = run.tenant, REACH * self.quantum
        if abs(tenant.time - self.now) > reach:
            tenant.time = min(max(tenant.time, self.now - reach), self.now + reach)
        return tenant.granted, int(tenant.time // self.quantum), run.deadline, tenant.since
