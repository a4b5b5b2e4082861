"""A find sees pages that an open plan is to bring. When a move of that plan fails, their slots have other bytes: what
the store's thread has read there must not go out. The threads are brought into this order on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from quire import LayerGroup
from quire.core.records.plan import Kind, Plan
from quire.tiers import ArenaTier
from quire.tiers.base import Bytes
from quire.tiers.shared import FolderStore
from tests.tiers.shared.machine import FULL, PATIENT, POOLED, SIZE, WINDOW, Machine, text


class AskedStore(FolderStore):
    """A folder that tells when it was asked: after that a publisher looks for the pages, and copies them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked = Event()

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        there = super().exists_many(names, deadline)
        self.asked.set()
        return there


def until_found(machine: Machine, store: AskedStore) -> None:
    """Until the publisher's thread holds pages to copy them."""
    assert store.asked.wait(PATIENT)
    end = time.monotonic() + PATIENT
    while not machine.cache.open_finds():
        assert time.monotonic() < end
        time.sleep(0.001)


def plan_up(machine: Machine, length: int) -> Plan:
    """A step's plan that brings a text up to the device, where other bytes are now; it is not run."""
    tokens = text(1, 2, length=length)
    machine.store(tokens)
    for group in range(len(machine.groups)):
        machine.tiers[0].view(group)[:] = 0xEE
    batch = machine.cache.add_sequence_batch([machine.request(tokens)])
    machine.shared.publish(machine.request(tokens))
    assert batch.plan.count(Kind.ONBOARD)
    return batch.plan


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW), POOLED], ids=["full", "window", "pool"])
@pytest.mark.parametrize("bad", ["all", "first", "last"])
def test_what_a_failed_move_was_to_bring_does_not_go_out(
    groups: tuple[LayerGroup, ...], bad: str, tmp_path: Path, closing: ExitStack
) -> None:
    store = AskedStore(tmp_path)
    one, other = Machine(store, *groups, worn=1), Machine(FolderStore(tmp_path), *groups)
    closing.callback(one.close)
    closing.callback(other.close)
    plan = plan_up(one, 25)
    until_found(one, store)
    failed = {"all": list(range(len(plan))), "first": [0], "last": [len(plan) - 1]}[bad]
    for move, (_, group, src_tier, src, tier, slot, *_) in enumerate(plan.moves.tolist()):
        if move not in failed:
            one.tiers[tier].view(group)[slot] = one.tiers[src_tier].view(group)[src]
    setbacks = one.cache.finish(plan, failed).setbacks
    assert setbacks
    one.settle()
    counts = one.shared.counts()
    assert counts.sent == len(plan) - len(failed) and counts.drops["busy"] == len(failed)
    with other.fetch(text(1, 2, length=25)) as fetch:
        assert fetch.tokens % SIZE == 0 and other.has(text(1, 2, length=25)) == fetch.tokens


def test_a_page_that_is_lost_while_it_is_copied_does_not_go_out(
    tmp_path: Path, closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who asks after it has read knows: here the page is reported as bad in the middle of the copy."""
    one, other = Machine(FolderStore(tmp_path), FULL), Machine(FolderStore(tmp_path), FULL)
    closing.callback(one.close)
    closing.callback(other.close)
    tokens = text(1, 2, length=25)
    one.store(tokens)
    reading = ArenaTier.read

    def lose_and_read(tier: ArenaTier, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        monkeypatch.setattr(ArenaTier, "read", reading)
        one.cache.lose(group, [slots[-1]], 1)
        one.tiers[1].view(group)[slots[-1]] = 0xEE
        reading(tier, group, slots, out)

    monkeypatch.setattr(ArenaTier, "read", lose_and_read)
    one.shared.publish(one.request(tokens))
    one.settle()
    counts = one.shared.counts()
    assert counts.sent == 25 // SIZE - 1 and counts.drops["busy"] == 1
    with other.fetch(tokens) as fetch:
        assert fetch.tokens == other.has(tokens) == (25 // SIZE - 1) * SIZE
