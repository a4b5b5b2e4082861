"""Queues: where every branch is, and the only moves from one place to another. Decides nothing; knows no model.

    wait -> waiting --seat--> prompts --leave_step--> its logits are read --go_on--> ready --leave_step--> ...
               ^                 ^                         '--hold--> held             |
               |                 '------------------ compute_again --------------------|
               '----- lose_pages, preempt: from prompts, ready and held ---------------'

A branch is in one place at most, and in none while its logits are read. Others look at the four places; only the
methods here change them.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import KeysView, Sequence

from quire.core.cache import Cache
from quire.engine.step.fairness.tenant_rounds import Rounds
from quire.engine.step.runs.branch import NO_DRAFTS, Branch

_log = logging.getLogger("quire.engine")


class Queues:
    """Branches by what they wait for."""

    def __init__(self, cache: Cache, rounds: Rounds) -> None:
        self._cache, self._rounds = cache, rounds
        self._waiting: list[Branch] = []
        self._prompts: dict[Branch, None] = {}
        self._ready: dict[Branch, None] = {}
        self._held: dict[Branch, None] = {}
        self.waiting: Sequence[Branch] = self._waiting  # no pages; those of a tenant in its own order
        self.prompts: KeysView[Branch] = self._prompts.keys()  # pages, and prompt tokens to compute
        self.ready: KeysView[Branch] = self._ready.keys()  # pages, and one new token to compute
        self.held: KeysView[Branch] = self._held.keys()  # pages; a beam whose mates are not as far
        self.num_preemptions = 0

    def __repr__(self) -> str:
        places = (self.waiting, self.prompts, self.ready, self.held)
        return "Queues({} wait, {} prompts, {} ready, {} held)".format(*map(len, places))

    @property
    def holders(self) -> list[Branch]:
        """Branches with pages."""
        return [*self._held, *self._prompts, *self._ready]

    # -- without pages -----------------------------------------------------------------------------------------------

    def expect(self, branch: Branch) -> None:
        """Its tenant waits for something from now on, if it did not before."""
        tenant = branch.run.tenant
        if not tenant.num_waiting and not any(one.run.tenant is tenant for one in self._prompts):
            self._rounds.begin_to_wait(branch)

    def wait(self, branch: Branch) -> None:
        """It waits for pages."""
        branch.prepared = None
        self.expect(branch)
        branch.run.tenant.num_waiting += 1
        insort(self._waiting, branch, key=lambda one: one.age)

    def _end_wait(self, branch: Branch) -> None:
        self._waiting.remove(branch)
        branch.run.tenant.num_waiting -= 1

    # -- with pages --------------------------------------------------------------------------------------------------

    def seat(self, branch: Branch) -> None:
        """It has pages, and its prompt is computed."""
        self._end_wait(branch)
        self._prompts[branch] = None

    def leave_step(self, branch: Branch) -> None:
        """Its logits are here: where it goes next depends on them."""
        self._prompts.pop(branch, None)
        self._ready.pop(branch, None)

    def go_on(self, branch: Branch) -> None:
        """It has a new token, which the next step computes; without pages it waits for some."""
        if branch.sequence is not None:
            self._ready[branch] = None
        else:
            self.wait(branch)

    def hold(self, beam: Branch) -> None:
        """A beam has its scores, and waits for those of its mates."""
        self._held[beam] = None

    def end_hold(self, beam: Branch) -> None:
        """All beams of its search are as far."""
        self._held.pop(beam, None)

    def compute_again(self, branch: Branch) -> None:
        """It has lost some of what it had computed, and its pages are there."""
        self._ready.pop(branch, None)
        self._prompts[branch] = None

    # -- pages that go -----------------------------------------------------------------------------------------------

    def preempt(self, branch: Branch) -> None:
        """Take its pages; what it has computed stays findable, and it waits its turn again."""
        assert branch.sequence is not None
        _log.info("preempted a request at %d tokens; it waits for pages again", branch.length)
        self._cache.suspend(branch.sequence)
        branch.run.num_preemptions += 1
        self.num_preemptions += 1
        self.lose_pages(branch)

    def lose_pages(self, branch: Branch) -> None:
        """Its pages are gone; unless it has just delivered, it waits for new ones."""
        branch.sequence, branch.drafts = None, NO_DRAFTS
        delivered = branch in self._held
        for place in (self._held, self._prompts, self._ready):
            place.pop(branch, None)
        if not delivered:
            self.wait(branch)

    def remove(self, branch: Branch) -> None:
        """It wants nothing any more."""
        branch.end_prefetch()
        for place in (self._prompts, self._ready, self._held):
            place.pop(branch, None)
        if branch.sequence is None and branch in self._waiting:
            self._end_wait(branch)
