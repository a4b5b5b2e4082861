"""Fork beams: branches split, as the beams of a search do at every token, and answers once their prompt is computed.

    beam 0 --- beam 0        who goes on in several ways is forked: they share its pages
          \\-- beam 1
    beam 1 --- (nobody)      who does not go on gives its row and its pages up first: a fork may need them

Owns forks and where beams stand in the scheduler; scores are those of `beam`. Ends no answers, and runs no model.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch

from quire.core.cache import Cache
from quire.core.records.plan import Plan
from quire.engine.step.runs.beam import NextBeam
from quire.engine.step.runs.branch import Branch, Run
from quire.engine.step.schedule import Scheduler

LetGo = Callable[[Branch, bool], None]  # give up a branch's pages; whether what it computed stays findable


class Forks:
    """Makes branches of branches. Those that share pages and those that must wait to reuse them are counted."""

    def __init__(self, cache: Cache, scheduler: Scheduler, *, carry: Callable[[Plan], None], let_go: LetGo) -> None:
        self._cache, self._scheduler, self._carry, self._let_go = cache, scheduler, carry, let_go
        self.num_forks = self.num_copies = 0
        self._serial = count()

    def fork(self, branch: Branch, indices: list[int]) -> list[Branch]:
        """More branches with the same tokens. They share its pages or, without room for that, wait to reuse them."""
        run = branch.run
        twins = [Branch(run, index, (run.id, next(self._serial)), branch.tokens) for index in indices]
        for twin in twins:
            twin.mask = branch.mask and branch.mask.copy()
        made = None if branch.sequence is None else self._cache.fork(branch.sequence, [twin.id for twin in twins])
        if made is None:
            self.num_copies += len(twins)
            return twins
        self.num_forks += len(twins)
        sequences, plan = made
        self._carry(plan)
        for twin, sequence in zip(twins, sequences, strict=True):
            twin.sequence = sequence
        return twins

    def hold_beam(self, beam: Branch, scores: torch.Tensor) -> bool:
        """A beam waits with its scores; whether all beams of its search are as far now."""
        beam.log_probs = scores
        self._scheduler.held[beam] = None
        return all(other.log_probs is not None for other in beam.run.branches)

    def advance_beams(self, run: Run) -> bool:
        """All beams of a search go on by a token; False when it is done, and nothing has been forked."""
        assert run.beams is not None
        table = torch.stack([beam.log_probs for beam in run.branches if beam.log_probs is not None])
        for beam in run.branches:
            beam.log_probs = None
            self._scheduler.held.pop(beam, None)
        chosen = run.beams.advance(table)
        if run.beams.done:
            return False
        run.branches = self._fork_beams(run.branches, chosen)
        for beam, one in zip(run.branches, chosen, strict=True):
            beam.append([one.token])
            if beam.sequence is not None:
                self._scheduler.ready[beam] = None
            else:
                self._scheduler.put(beam)
        return True

    def _fork_beams(self, parents: list[Branch], chosen: list[NextBeam]) -> list[Branch]:
        """A beam for each chosen one, in their order, with its parent's tokens."""
        children: dict[int, list[int]] = {}
        for place, one in enumerate(chosen):
            children.setdefault(one.parent, []).append(place)
        for nth, beam in enumerate(parents):
            if nth not in children and beam.sequence is not None:
                self._let_go(beam, True)  # first of all: a fork needs its row and its pages
        beams: dict[int, Branch] = {}
        for parent, places in children.items():
            parents[parent].index = places[0]
            line = [parents[parent], *self.fork(parents[parent], places[1:])]
            beams.update(zip(places, line, strict=True))
        return [beams[place] for place in range(len(chosen))]
