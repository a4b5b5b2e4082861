"""The core's state machine, heard over the wire: the index and a plain consumer know exactly the tree."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fuzzing.driver import Driver
from fuzzing.subject import Subject, available_stores
from quire import EventBatch, Stored
from quire.events.follow.index import Index
from quire.events.follow.stream_state import Status
from quire.events.publish.archive import Archive
from quire.events.publish.payloads import PayloadMaker
from quire.events.wire.names import Names

from ..effort import cases
from .consumer import Consumer

WORLDS = int(os.environ.get("QUIRE_EVENT_WORLDS", cases("5", "140")))
OPERATIONS = 200


class Listener:
    """Stands where the fuzzer's mirror does: what it is told goes over both encodings to an index and consumers."""

    def __init__(self, subject: Subject) -> None:
        config = subject.cache.config
        self.names = Names.from_config(config)
        self.makers = [PayloadMaker(self.names, encoding, Archive(8, 1 << 20)) for encoding in ("map", "array")]
        self.index = Index()
        self.consumers = [Consumer(config.block_size) for _ in self.makers]
        self.whole: set[int] = set()  # hashes of whole blocks
        for number in range(len(self.makers)):
            self.index.add(number)

    def replay(self, batch: EventBatch) -> None:
        """A flush."""
        for event in batch:
            if isinstance(event, Stored) and event.tokens_per_block == self.names.block_size:
                self.whole |= set(event.hashes)
        for number, (maker, consumer) in enumerate(zip(self.makers, self.consumers, strict=True)):
            seq, payload = maker.make(batch)
            consumer.hear(payload)
            request = self.index.hear(number, seq, payload)
            if request is not None:  # the first one: this publisher did not begin with the whole state
                assert seq == 0 and request.start is None
                found = maker.snapshot()
                assert found is not None
                self.index.hear(number, *found, asked=True)
            assert self.index.status(number) is Status.EXACT
        self.compare()

    def compare(self) -> None:
        for group, known in enumerate(self.groups):
            media = {name: self.names.media[tier] for name, (tier, _) in known.items() if name in self.whole}
            assert [consumer.media(group) for consumer in self.consumers] == [media] * len(self.consumers)

    @property
    def groups(self) -> list[dict[int, tuple[int, int]]]:
        """Per group what the index knows; the trial compares it with the oracle's tree."""
        ones, others = ([self.index.pages(n, group) for group in range(len(self.names.groups))] for n in (0, 1))
        assert ones == others
        return ones


@pytest.mark.long
@pytest.mark.parametrize("mix", ["full", "mixed"])
def test_what_is_heard_is_the_tree(mix: str) -> None:
    """Per group, tier and priority, after every flush of random lives; both stores, both encodings."""
    heard = 0
    for world in range(WORLDS):
        driver = Driver(f"events/{world}", available_stores(), mix=mix)
        listeners: list[Any] = [Listener(subject) for subject in driver.trial.subjects]
        for subject, listener in zip(driver.trial.subjects, listeners, strict=True):
            subject.mirror = listener
        driver.run(OPERATIONS)
        driver.trial.flush()
        heard += sum(listener.makers[0].next for listener in listeners)
    assert heard > 2 * WORLDS


@pytest.mark.long
def test_the_whole_state_tells_what_all_events_told() -> None:
    """Told at once, in either store, it is the same arrays and gives the same pages."""
    for world in range(WORLDS // 2):
        driver = Driver(f"whole/{world}", available_stores(), mix="any")
        driver.run(OPERATIONS)
        driver.trial.flush()
        batches = [subject.cache.take_events(whole=True) for subject in driver.trial.subjects]
        for subject, batch in zip(driver.trial.subjects, batches, strict=True):
            assert batch.whole and batch.records.tolist() == batches[0].records.tolist()
            assert batch.details.tolist() == batches[0].details.tolist()
            assert batch.tokens.tolist() == batches[0].tokens.tolist()
            told = {group: dict(known) for group, known in enumerate(subject.mirror.groups)}
            for known in subject.mirror.groups:
                known.clear()
            again: dict[int, dict[int, tuple[int, int]]] = {group: {} for group in told}
            for event in batch:
                if isinstance(event, Stored):
                    pages = zip(event.hashes, event.priorities, strict=True)
                    again[event.group] |= {name: (event.tier, priority) for name, priority in pages}
            assert again == told
