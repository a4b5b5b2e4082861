"""Where branches are: every move by its rule, one place at a time, and nobody else who can change them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from quire.core.records.request import Request
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.step.queues import Queues
from quire.engine.step.runs.branch import NO_DRAFTS, Branch, Run

from ..steps import finish, open_engine, plain, step, words


def branch_of(number: int, tenant: Run | None = None, priority: int = 0) -> Branch:
    """A branch of a run of its own; with the tenant of another one, if told so."""
    request = Request((number, -1), np.arange(8, dtype=np.int32))
    run = Run(request, Sampling(priority=priority), 0, None, 0.0)
    run.arrival = number
    run.tenant = run.tenant if tenant is None else tenant.tenant
    run.branches.append(Branch(run, 0, request.id, request.tokens))
    return run.branches[0]


@pytest.fixture
def engine() -> Engine:
    return open_engine("llama", 40)


@pytest.fixture
def queues(engine: Engine) -> Queues:
    return engine.scheduler.queues


def test_who_waits_stands_in_order_and_is_counted(queues: Queues) -> None:
    first, second = branch_of(1), branch_of(2)
    urgent = branch_of(3, priority=-1)
    for branch in (second, urgent, first):
        queues.wait(branch)
    assert list(queues.waiting) == [urgent, first, second] and first.run.tenant.num_waiting == 1
    queues.seat(first)
    assert list(queues.waiting) == [urgent, second] and list(queues.prompts) == [first]
    assert not first.run.tenant.num_waiting and queues.holders == [first]
    queues.remove(urgent)
    assert list(queues.waiting) == [second] and not urgent.run.tenant.num_waiting
    queues.remove(urgent)  # again: it is nowhere
    assert list(queues.waiting) == [second] and not urgent.run.tenant.num_waiting


def test_a_tenant_begins_to_wait_once(engine: Engine, queues: Queues) -> None:
    """With the present round, unless it waits already or has a prompt under way."""
    engine.scheduler.rounds.now = 1000.0
    first = branch_of(1)
    queues.wait(first)
    tenant, begun = first.run.tenant, first.run.tenant.time
    assert begun == 960 and tenant.since == 1  # rounds of 64 tokens
    engine.scheduler.rounds.now = 2000.0
    queues.wait(branch_of(2, first.run))
    assert tenant.time == begun and tenant.since == 1
    for branch in list(queues.waiting):
        queues.seat(branch)
    queues.expect(branch_of(3, first.run))
    assert tenant.time == begun and not tenant.num_waiting
    for branch in list(queues.prompts):
        queues.remove(branch)
    queues.expect(branch_of(4, first.run))
    assert tenant.time == 1984 and tenant.since == 4


def test_moves_with_pages(engine: Engine, queues: Queues) -> None:
    run = engine.submit(words(0, 20), plain(8))
    (branch,) = run.branches
    assert list(queues.waiting) == [branch]
    step(engine)
    assert list(queues.ready) == [branch] and queues.holders == [branch]
    queues.compute_again(branch)
    assert list(queues.prompts) == [branch] and not queues.ready
    queues.leave_step(branch)
    assert not queues.holders and branch.sequence is not None
    queues.go_on(branch)
    assert list(queues.ready) == [branch]
    queues.leave_step(branch)
    queues.hold(branch)
    assert list(queues.held) == [branch] == queues.holders
    queues.end_hold(branch)
    queues.go_on(branch)
    branch.drafts, branch.prepared = np.ones(2, np.int32), engine.cache.prepare(branch.request())
    queues.preempt(branch)
    assert list(queues.waiting) == [branch] and not queues.holders and branch.sequence is None
    assert branch.drafts is NO_DRAFTS and branch.prepared is None and queues.num_preemptions == run.num_preemptions == 1
    assert not engine.cache.num_sequences
    finish(engine)
    assert len(run.answers[0].tokens) == 8


def test_without_pages_who_goes_on_waits(queues: Queues) -> None:
    branch = branch_of(1)
    queues.go_on(branch)
    assert list(queues.waiting) == [branch] and not queues.ready


def test_a_beam_that_has_delivered_does_not_wait_for_pages(engine: Engine, queues: Queues) -> None:
    run = engine.submit(words(0, 20), plain(8))
    (branch,) = run.branches
    step(engine)
    queues.leave_step(branch)
    queues.hold(branch)
    queues.preempt(branch)
    assert not queues.waiting and not queues.holders and queues.num_preemptions == 1
    queues.go_on(branch)
    finish(engine)


def test_places_are_for_reading(queues: Queues) -> None:
    for place in (queues.prompts, queues.ready, queues.unread, queues.held):
        assert not hasattr(place, "pop") and not hasattr(place, "__setitem__")
    assert repr(queues) == "Queues(0 wait, 0 prompts, 0 ready, 0 unread, 0 held)"
