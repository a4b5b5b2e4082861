"""Queues: where every branch is, and the only moves from one place to another. Decides nothing; knows no model.

    wait -> waiting --seat--> prompts --launch--> unread --leave_step--> its token is here --go_on--> ready --launch->
               ^                 ^          '--> ready, ahead of its token     '--hold--> held
               |                 '------------------ compute_again: from ready and unread
               '----- lose_pages, preempt: from prompts, ready, unread and held

A branch is in one place at most, and in none while its logits are looked at. Others look at the five places; only the
methods here change them.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import KeysView, Sequence

from quire.core.cache import Cache
from quire.engine.model.packing import Int64
from quire.engine.step.fairness.tenant_rounds import Rounds
from quire.engine.step.plain_rows import PlainBatch, PlainRows
from quire.engine.step.runs.branch import NO_DRAFTS, Branch

_log = logging.getLogger("quire.engine")


class Queues:
    """Branches by what they wait for."""

    def __init__(self, cache: Cache, rounds: Rounds) -> None:
        self._cache, self._rounds = cache, rounds
        self._waiting: list[Branch] = []
        self._prompts: dict[Branch, None] = {}
        self._ready: dict[Branch, None] = {}
        self._unread: dict[Branch, None] = {}
        self._held: dict[Branch, None] = {}
        self._special: dict[Branch, None] = {}
        self.plain = PlainRows(cache, cache.config.max_sequences)  # what is ready and plain, by row
        self.waiting: Sequence[Branch] = self._waiting  # no pages; those of a tenant in its own order
        self.prompts: KeysView[Branch] = self._prompts.keys()  # pages, and prompt tokens to compute
        self.ready: KeysView[Branch] = self._ready.keys()  # pages, and one new token to compute
        self.special: KeysView[Branch] = self._special.keys()  # those of them that are not plain
        self.unread: KeysView[Branch] = self._unread.keys()  # pages; a step in flight makes the token it waits for
        self.held: KeysView[Branch] = self._held.keys()  # pages; a beam whose mates are not as far
        self.num_preemptions = 0

    def __repr__(self) -> str:
        places = (self.waiting, self.prompts, self.ready, self.unread, self.held)
        return "Queues({} wait, {} prompts, {} ready, {} unread, {} held)".format(*map(len, places))

    @property
    def holders(self) -> list[Branch]:
        """Branches with pages."""
        return [*self._held, *self._prompts, *self._ready, *self._unread]

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

    def launch(self, branch: Branch) -> None:
        """A step that is on its way makes its next token. It goes on ahead of it, or waits until that is read."""
        self.leave_step(branch)
        self.go_on(branch)

    def launch_plain(self, batch: PlainBatch, starts: Int64) -> int:
        """The same for all rows of a batch: only those that have no room for one more wait. Returns how many do."""
        full = self.plain.at_end(batch, starts)
        for branch in full:
            self.leave_step(branch)
            self._unread[branch] = None
        return len(full)

    def leave_step(self, branch: Branch) -> None:
        """Its logits are here: where it goes next depends on them."""
        self._prompts.pop(branch, None)
        if branch in self._ready:
            del self._ready[branch]
            self._special.pop(branch, None)
            self.plain.leave(branch)
        self._unread.pop(branch, None)

    def go_on(self, branch: Branch) -> None:
        """It has a new token, which the next step computes; without pages it waits for some."""
        if branch.sequence is None:
            self.wait(branch)
            return
        ready = branch.may_go_on
        (self._ready if ready else self._unread)[branch] = None
        if branch.is_plain:
            self.plain.write(branch, ready)
        elif ready:
            self._special[branch] = None

    def hold(self, beam: Branch) -> None:
        """A beam has its scores, and waits for those of its mates."""
        self._held[beam] = None

    def end_hold(self, beam: Branch) -> None:
        """All beams of its search are as far."""
        self._held.pop(beam, None)

    def compute_again(self, branch: Branch) -> None:
        """It has lost some of what it had computed, and its pages are there."""
        self.leave_step(branch)
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
        self.plain.forget(branch)
        delivered = branch in self._held
        self._held.pop(branch, None)
        self.leave_step(branch)
        if not delivered:
            self.wait(branch)

    def remove(self, branch: Branch) -> None:
        """It wants nothing any more."""
        branch.end_prefetch()
        self._held.pop(branch, None)
        self.leave_step(branch)
        self.plain.forget(branch)
        if branch.sequence is None and branch in self._waiting:
            self._end_wait(branch)
