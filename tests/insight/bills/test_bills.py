"""Who pays for what, by hand: tokens, time, evictions, reads; and that no bill harms a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fuzzing.subject import available_stores
from quire import (
    BrokenInvariant,
    Cache,
    CacheConfig,
    LayerGroup,
    QuireError,
    Request,
    Scope,
    Span,
    StateError,
    TierConfig,
    check,
)
from quire.core.state.sequence import Sequence
from quire.insight.bills import Bill, BillLine, Bills, Who
from quire.insight.bills.bill import NOBODY, OTHERS
from quire.insight.bills.evictions import Evictions

BYTES = 100  # of a page
TEXT = np.arange(16, dtype=np.int32)  # four blocks
ALICE, BOB, CAROL = Who("alice"), Who("bob"), Who("carol")


@dataclass
class Billed:
    """A cache with a bill, on a clock of its own, and short ways to say things."""

    store: Any
    slots: tuple[int, ...] = (8,)
    time: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bills = Bills(clock=lambda: self.time, **self.options)
        tiers = [TierConfig(name, slots) for name, slots in zip(("device", "host"), self.slots, strict=False)]
        fields: dict[str, Any] = {"eviction": "lru", "max_length": 64, **self.config}
        fields["groups"] = [LayerGroup(page_bytes=BYTES)]
        self.cache = Cache(CacheConfig(tiers, 4, **fields), watchers=[self.bills], store=self.store)

    def begin(self, tenant: str | None, tokens: Any = TEXT, **more: Any) -> Sequence:
        request = Request((tenant, self.time, len(self.bills._live)), tokens, tenant=tenant, **more)
        batch = self.cache.add_sequence_batch([request])
        self.cache.finish(batch.plan)
        return batch.sequences[0]

    def serve(self, tenant: str | None, tokens: Any = TEXT, **more: Any) -> None:
        """Admitted, computed and released, in no time."""
        sequence = self.begin(tenant, tokens, **more)
        self.cache.commit(sequence)
        self.cache.release(sequence)

    def bill(self) -> Bill:
        check(self.cache)
        return self.bills.bill()

    def line(self, who: Who) -> BillLine:
        return self.bill().lines.get(who, BillLine())


@pytest.fixture(params=available_stores())
def store(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_page_is_split_among_those_who_used_it_from_when_they_did(store: Any) -> None:
    one = Billed(store)
    one.serve("alice")
    one.time += 10
    one.serve("bob", np.append(TEXT[:8], TEXT[15:]))  # two of her blocks, and a page of his own
    one.time += 10
    assert one.line(ALICE).held == {"device": 10 * 4 * BYTES + 10 * (2 + 1) * BYTES}
    assert one.line(BOB).held == {"device": 10 * (1 + 1) * BYTES}
    one.serve("carol", np.append(TEXT[:8], TEXT[14:15]))
    one.time += 1
    thirds = [one.line(who).held["device"] for who in (ALICE, BOB, CAROL)]
    before = [10 * 4 * BYTES + 10 * 3 * BYTES, 10 * 2 * BYTES, 0]
    assert [now - then for now, then in zip(thirds, before, strict=True)] == [67 + 200, 67 + 100, 66 + 100]


def test_tokens_are_computed_reused_from_own_pages_or_from_others(store: Any) -> None:
    one = Billed(store)
    one.serve("alice")
    one.serve("alice")
    one.serve("bob")
    one.serve("bob", np.append(TEXT[:12], TEXT[:4]))
    alice, bob = one.line(ALICE), one.line(BOB)
    assert (alice.requests, alice.computed, alice.reused_own, alice.reused_shared) == (2, 17, 15, 0)
    assert (bob.requests, bob.computed, bob.reused_own, bob.reused_shared) == (2, 1 + 4, 12, 15)


def test_evictions_are_billed_to_those_who_needed_the_room(store: Any) -> None:
    one = Billed(store, slots=(4,))
    one.serve("alice")
    one.serve("bob", TEXT[:8] + 100)
    assert one.line(ALICE).evicted_by == {BOB: 2 * BYTES} and one.line(BOB).evicted_by == {}
    one.serve("carol", TEXT + 200)
    bill = one.bill()
    assert bill.lines[ALICE].evicted_by == {BOB: 2 * BYTES, CAROL: 2 * BYTES}
    assert bill.lines[BOB].evicted_by == {CAROL: 2 * BYTES} and bill.evicted_for(CAROL) == 4 * BYTES
    batch = one.cache.add_sequence_batch(
        [Request(9, TEXT[:4] + 300, tenant="alice"), Request(8, TEXT + 400, tenant="bob")]
    )
    assert len(batch.sequences) == 1  # what did not fit has taken nothing
    assert one.line(CAROL).evicted_by == {ALICE: BYTES}


def test_what_comes_up_is_billed_to_who_asked_and_to_where_it_lay(store: Any) -> None:
    one = Billed(store, slots=(4, 8), config={"offload_min_priority": 0})
    one.serve("alice")
    one.serve("bob", TEXT + 100)  # hers go down
    assert one.bill().total.evicted == 0
    one.time += 5
    assert one.line(ALICE).held == {"host": 5 * 4 * BYTES}
    one.serve("alice", TEXT)
    assert one.line(ALICE).loaded == {"host": 4 * BYTES} and one.line(BOB).loaded == {}


def test_answers_forks_and_suspended_requests(store: Any) -> None:
    one = Billed(store, slots=(16,))
    first = one.begin("alice", TEXT[:6])
    one.cache.commit(first)
    forked = one.cache.fork(first, ["twin"])
    assert forked is not None
    one.cache.finish(forked[1])
    for number in range(3):
        plan = one.cache.grow([first, *forked[0]], np.array([number, number], np.int32))
        assert plan is not None
        one.cache.finish(plan)
        one.cache.commit([first, *forked[0]])
    assert (one.line(ALICE).requests, one.line(ALICE).computed, one.line(ALICE).answers) == (1, 6, 6)
    again = one.cache.suspend(first)
    one.cache.release(forked[0])
    batch = one.cache.add_sequence_batch([again])
    one.cache.finish(batch.plan)
    line = one.line(ALICE)
    assert (line.requests, line.computed, line.reused_own, line.answers) == (2, 6, batch.sequences[0].start, 6)
    one.cache.commit(batch.sequences)
    assert one.line(ALICE).computed == 6 + again.tokens.size - batch.sequences[0].start


def test_tokens_of_a_failed_read_are_computed_after_all(store: Any) -> None:
    one = Billed(store, slots=(4, 8), config={"offload_min_priority": 0})
    one.serve("alice")
    one.serve("bob", TEXT + 100)
    batch = one.cache.add_sequence_batch([Request("again", TEXT, tenant="alice")])
    (sequence,) = batch.sequences
    one.cache.finish(batch.plan, failed=[len(batch.plan) - 1])
    assert sequence.live and 0 < sequence.start < 15
    one.cache.commit(sequence, 16)
    line = one.line(ALICE)
    assert (line.reused_own, line.computed) == (sequence.start, 16 + 16 - sequence.start)


def test_pages_from_and_for_outside(store: Any) -> None:
    """A writer's pages are its request's; who finds them, uses them."""
    one = Billed(store, slots=(8, 8))
    writer: Any = one.cache.writer(Request("w", TEXT, tenant="alice"), tier=1)
    one.time += 7
    assert one.line(ALICE).held == {"host": 7 * 4 * BYTES}
    writer.written(16)
    writer.close()
    with one.cache.find(Request("f", TEXT, tenant="bob")):
        one.time += 2
    assert one.line(BOB).held == {"host": 2 * 4 * BYTES // 2}
    one.cache.clear()
    one.time += 100
    assert one.bill().total.held == {"host": 9 * 4 * BYTES}


def test_what_a_transfer_brings_is_not_computed(store: Any) -> None:
    one = Billed(store)
    with one.cache.claim([Request("d", TEXT, tenant="alice")], "decode") as claims:
        (sequence,) = one.cache.admit(claims).sequences
    one.cache.commit(sequence, 16)
    assert (one.line(ALICE).received, one.line(ALICE).computed) == (16, 0)


def test_adapters_and_sessions_are_apart_if_wanted(store: Any) -> None:
    one = Billed(store, options={"sessions": True})
    one.serve("alice", scope=Scope(lora="sql"), session="s1")
    one.serve("alice")
    assert set(one.bill().lines) == {Who("alice", "sql", "s1"), ALICE}
    plain = Billed(store)
    plain.serve("alice", session="s1")
    assert set(plain.bill().lines) == {ALICE}


def test_names_without_end_take_no_memory_without_end(store: Any) -> None:
    """The first tenants keep accounts of their own; the others share one, and no sum changes."""
    one = Billed(store, slots=(6,), options={"most_accounts": 6, "sessions": True})
    one.serve("alice", session="a")
    for number in range(60):
        one.serve("alice", TEXT[:6] + number, session=f"s{number}")
        one.serve(f"t{number}", TEXT[:6] + 1000 + number)
        one.time += 3
    bill = one.bill()
    assert set(bill.lines) >= {ALICE, Who("alice", None, "a"), OTHERS} and len(bill.lines) <= 6
    assert bill.total.requests == 121 and bill.lines[OTHERS].requests >= 57
    assert len(one.bills._book.parties) <= 6 + 4096


def test_a_broken_clock_harms_no_call(store: Any) -> None:
    one = Billed(store)
    one.serve("alice")
    one.bills._clock = lambda: 1 // 0
    one.time += 10
    one.serve("bob")
    assert one.bills.error == "seating: ZeroDivisionError at test_bills.py:" + one.bills.error.rpartition(":")[2]
    assert one.bills.bill().note == one.bills.error
    with pytest.raises(BrokenInvariant, match="bills are broken"):
        check(one.cache)


def test_a_clock_that_goes_back_stands_still_and_one_that_leaps_is_no_matter(store: Any) -> None:
    one = Billed(store)
    one.serve("alice")
    one.time = -5
    one.serve("bob", TEXT + 50)
    one.time = 10**19  # three hundred years
    one.cache.release(one.begin("carol", TEXT[:2]))
    one.time += 1  # one page less: what was not computed is gone
    assert one.bill().total.held["device"] == 10**19 * 8 * BYTES + 7 * BYTES


def test_without_bills_a_store_notes_nothing(store: Any) -> None:
    cache = Cache(CacheConfig([TierConfig("device", 8)], 4), store=store)
    with pytest.raises(ValueError, match="not noted"):
        cache._setup.store.take_tenure(0)
    one = Billed(store)
    with pytest.raises(StateError, match="another cache's"):
        Cache(one.cache.config, watchers=[one.bills], store=store)
    with pytest.raises(QuireError, match="two of them hear of its pages"):
        Cache(one.cache.config, watchers=[Bills(), Bills()], store=store)
    sequence = one.begin("alice")
    one.cache.commit(sequence)
    with pytest.raises(ValueError, match="from the first page on"):
        one.cache._setup.store.note_tenure()
    held = one.cache.hold(sequence, Span(0, 8))
    one.cache.release(sequence)
    assert held is not None and one.bill().lines.get(NOBODY) is None


def test_a_page_that_is_taken_over_is_nobody_elses(store: Any) -> None:
    one = Billed(store)
    one.serve("alice", TEXT[:6])
    one.begin("bob", np.append(TEXT[:5], TEXT[14:]))  # the page of her last two tokens becomes his
    one.time += 10
    assert (one.line(ALICE).held, one.line(BOB).held) == ({"device": 10 * BYTES // 2}, {"device": 10 * BYTES * 3 // 2})
    assert one.line(BOB).reused_shared == 5


def test_evictions_of_one_call_are_dealt_out_whole() -> None:
    evictions = Evictions()
    evictions.add(np.array([0, 0, 5, 4]), np.array([0, 0, 0, 0, 6, 0, 3]))
    assert evictions.take() == [(2, 4, 5), (3, 4, 1), (3, 6, 3)] and evictions.take() == []


@pytest.mark.parametrize("change", [
    lambda line: setattr(line, "requests", line.requests + 7),
    lambda line: setattr(line, "computed", line.computed + 12_345),
    lambda line: setattr(line, "reused_own", line.reused_own + 99),
    lambda line: setattr(line, "reused_shared", line.reused_shared - 1),
    lambda line: setattr(line, "received", line.received + 1),
    lambda line: setattr(line, "answers", line.answers + 1),
    lambda line: setattr(line, "late", line.late + 1),
    lambda line: line.held.update(device=1),
    lambda line: line.loaded.update(host=1),
    lambda line: line.evicted_by.update({ALICE: 1}),
])  # fmt: skip
def test_a_line_that_is_not_right_is_a_broken_invariant(change: Any) -> None:
    one = Billed("twin", (8, 8))
    for tenant in ("alice", "bob"):
        one.serve(tenant)
    one.serve("bob", TEXT + 50)
    one.bills.count_late(Request("late", TEXT, tenant="bob"))
    check(one.cache)
    change(one.bills._book.lines[-1])
    with pytest.raises(BrokenInvariant, match="billed"):
        check(one.cache)


def test_sequences_that_bills_have_not_heard_of_are_a_broken_invariant() -> None:
    one = Billed("twin")
    sequence = one.begin("alice")
    check(one.cache)
    heard = one.bills._live.pop(sequence.row)
    with pytest.raises(BrokenInvariant, match="others live"):
        check(one.cache)
    one.bills._live[sequence.row] = heard
    check(one.cache)


def test_forks_and_setbacks_add_up(store: Any) -> None:
    """What is computed twice is billed once; what a fork goes on from is the first one's."""
    one = Billed(store, (16,))
    first = one.begin("alice", np.arange(10, dtype=np.int32))
    one.cache.commit(first)
    made = one.cache.fork(first, ["fork"])
    assert made is not None
    both = [first, *made[0]]
    one.cache.finish(made[1])
    plan = one.cache.grow(both, np.array([70, 80], np.int32))
    assert plan is not None
    one.cache.finish(plan)
    one.cache.commit(both)
    one.cache.lose(0, [first.slots()[1]])
    for sequence in both:
        if sequence.live:
            one.cache.release(sequence)
    line = one.line(ALICE)
    assert (line.requests, line.computed, line.answers) == (1, 4, 0) and one.bills._ended.computed == 4
