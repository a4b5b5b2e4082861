"""Fork beams: branches split, as the beams of a search do at every token, and answers once their prompt is computed.

    beam 0 --- beam 0        who goes on in several ways is forked: they share its pages
          \\-- beam 1
    beam 1 --- (no beam)     one that does not go on gives its row and its pages up first: a fork may need them

Owns forks; scores are those of `beam`. Moves no branch, ends no answer, and runs no model.
"""

from __future__ import annotations

from itertools import count

import torch

from quire.core.cache import Cache
from quire.engine.step.plan_runner import PlanRunner
from quire.engine.step.runs.beam import NextBeam
from quire.engine.step.runs.branch import Branch, Run


class Forks:
    """Makes branches of branches. Those that share pages and those that must wait to reuse them are counted."""

    def __init__(self, cache: Cache, plans: PlanRunner) -> None:
        self._cache, self._plans = cache, plans
        self.num_forks = self.num_copies = 0
        self._serial = count()

    def fork(self, branch: Branch, indices: list[int]) -> list[Branch]:
        """More branches with the same tokens. They share its pages or, without room for that, wait to reuse them."""
        run = branch.run
        twins = [Branch(run, index, (run.id, next(self._serial)), branch.tokens) for index in indices]
        for twin in twins:
            twin.mask = branch.mask and branch.mask.copy()
        forked = None if branch.sequence is None else self._cache.fork(branch.sequence, [twin.id for twin in twins])
        if forked is None:
            self.num_copies += len(twins)
            return twins
        self.num_forks += len(twins)
        sequences, plan = forked
        self._plans.carry(plan)
        for twin, sequence in zip(twins, sequences, strict=True):
            twin.sequence = sequence
        return twins

    def fork_beams(self, run: Run, chosen: list[NextBeam]) -> None:
        """A beam for each chosen one, in their order, with its parent's tokens and one more."""
        children: dict[int, list[int]] = {}
        for place, one in enumerate(chosen):
            children.setdefault(one.parent, []).append(place)
        beams: dict[int, Branch] = {}
        for parent, places in children.items():
            first = run.branches[parent]
            first.index = places[0]
            beams.update(zip(places, [first, *self.fork(first, places[1:])], strict=True))
        run.branches = [beams[place] for place in range(len(chosen))]
        for beam, one in zip(run.branches, chosen, strict=True):
            beam.append([one.token])


def choose_beams(run: Run) -> list[NextBeam]:
    """How its beams go on, now that all of them have their scores; none when the search is done."""
    assert run.beams is not None
    table = torch.stack([beam.log_probs for beam in run.branches if beam.log_probs is not None])
    for beam in run.branches:
        beam.log_probs = None
    return run.beams.advance(table)


def given_up(run: Run, chosen: list[NextBeam]) -> list[Branch]:
    """Beams with pages that no answer continues."""
    parents = {one.parent for one in chosen}
    return [beam for nth, beam in enumerate(run.branches) if nth not in parents and beam.sequence is not None]
