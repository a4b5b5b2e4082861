"""Resume points: which pages of a window go first, because nobody begins where they are read. Rows `resume`."""

from __future__ import annotations

from typing import Any

import pytest

from quire import Cache, LayerGroup, Request, RetainRange, Retention, Writer, check
from quire.core.records.request import Int32
from quire.core.store import StoreName

from ..conftest import build, run, start_of, tokens
from .test_windows import FULL, prefill, window

STATE = LayerGroup("state", snapshot_every=16)


def serve(cache: Cache, name: str, text: Int32, *, checked: bool = False, **more: Any) -> int:
    """A prompt in as many steps as it takes, computed and released; where it began."""
    batch = cache.add_sequence_batch([Request(name, text, **more)])
    (sequence,) = batch.sequences
    while sequence.computed < sequence.prompt_end:
        assert not cache.finish(batch.plan).setbacks
        cache.commit(sequence)
        if sequence.computed < sequence.prompt_end:
            batch = cache.add_sequence_batch([], continuing=[sequence])
        if checked:
            check(cache)
    cache.release(sequence)
    return sequence.start


def talk(number: int, length: int = 256) -> Int32:
    return tokens(range(1_000 * number, 1_000 * number + length))


def resumed(store: StoreName, slots: int, eviction: str) -> int:
    """Of ten conversations of 64 pages each, served in chunks of 16: how many go on where they ended."""
    groups, tail = (FULL, window(33)), 8
    cache = build(
        store, (800, slots), groups=groups, max_chunk=64, max_sequences=2, eviction=eviction, partial_reuse=False
    )
    assert groups[1].tail(4) == tail
    for number in range(10):
        assert serve(cache, str(number), talk(number)) == 0
    check(cache)
    return sum(start_of(cache, tokens(talk(number), -1)) == 256 for number in range(10))


def test_the_tails_of_ten_conversations_stay(store: StoreName) -> None:
    """resume-01: ten tails of 8 pages and a prompt under way take 104 pages; in the order of release 584."""
    assert [resumed(store, 104, order) for order in ("lru", "adaptive", "release_order")] == [10, 10, 2]
    assert [resumed(store, slots, "release_order") for slots in (584, 583)] == [10, 9]
    assert [resumed(store, slots, "lru") for slots in (96, 95)] == [10, 9]


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_pages_in_the_middle_go_first_and_the_end_stays(store: StoreName, eviction: str) -> None:
    """resume-02: 8 blocks, of which a window of 9 reads the last 2; 6 others take the slots of the first 6."""
    cache = build(store, (32, 8), groups=(FULL, window(9)), eviction=eviction, partial_reuse=False)
    serve(cache, "a", tokens(range(32)), checked=True)
    run(cache, Request("b", tokens(range(100, 124))))
    assert start_of(cache, tokens(range(32), 99)) == 32
    assert start_of(cache, tokens(range(24), 99)) == 0


def test_where_two_prompts_part_a_third_begins(store: StoreName) -> None:
    """resume-03: two prompts share 4 blocks, the second parts there; what a window reads before that stays."""
    cache = build(store, (64, 12), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8)
    serve(cache, "a", tokens(range(32)), checked=True)
    assert serve(cache, "b", tokens(range(16), range(100, 116)), checked=True) == 16
    serve(cache, "other", tokens(range(200, 248)), checked=True)
    assert start_of(cache, tokens(range(16), 300)) == 16
    assert [start_of(cache, tokens(range(n), 300)) for n in (12, 20, 24, 28)] == [0, 16, 16, 16]


def test_a_prompt_asked_for_again_is_a_resume_point(store: StoreName) -> None:
    """resume-04: a prompt of 17 tokens with an answer of 23, again with the same answer: then its end stays too."""
    cache = build(store, (64, 8), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8, eviction="lru")
    text = tokens(range(40))

    def turn(name: str) -> int:
        (sequence, _) = prefill(cache, Request(name, text[:17]))
        for token in text[17:]:
            assert cache.grow(sequence, tokens(int(token))) is not None
            cache.commit(sequence)
        cache.release(sequence)
        check(cache)
        return sequence.start

    first = turn("once")
    serve(cache, "other", tokens(range(100, 116)), checked=True)
    second = turn("twice")
    serve(cache, "another", tokens(range(200, 216)), checked=True)
    assert (first, second, start_of(cache, text[:17])) == (0, 0, 16)


def test_where_states_are_kept_their_snapshots_decide(store: StoreName) -> None:
    """resume-05: full, window, state; 12 blocks with snapshots after 4, 8, 11 and 12: the windows there stay."""
    starts = []
    for eviction in ("lru", "release_order"):
        cache = build(store, (64, 10, 8), groups=(FULL, window(9), STATE), max_chunk=8, eviction=eviction)
        serve(cache, "a", tokens(range(48)), checked=True)
        serve(cache, "b", tokens(range(100, 116)), checked=True)
        starts.append([start_of(cache, tokens(range(n), 300)) for n in (16, 32, 44, 48)])
    assert starts == [[16, 32, 44, 48], [0, 32, 44, 48]]


def test_what_is_always_read_is_never_passed(store: StoreName) -> None:
    """resume-06: a window of 5 with 8 sinks, 8 slots; 4 blocks take those between; a fifth takes the partial end."""
    starts = []
    for length in (16, 18):
        cache = build(store, (32, 8), groups=(FULL, window(5, sinks=8)))
        serve(cache, "a", tokens(range(30)), checked=True)
        serve(cache, "b", tokens(range(100, 100 + length)), checked=True)
        starts.append(start_of(cache, tokens(range(30), 99)))
    assert starts == [30, 28]


def test_a_passed_page_displaces_none_that_is_not(store: StoreName) -> None:
    """resume-07: 6 + 4 slots; two prompts of 6 blocks: of the first the host keeps the 2 that its end reads."""
    cache = build(store, (32, 6), (32, 4), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8)
    for name in range(6):
        serve(cache, str(name), talk(name, 24), checked=True)
    assert [start_of(cache, tokens(talk(name, 24), -1)) for name in range(6)] == [0, 0, 24, 24, 24, 24]


def test_priorities_come_before(store: StoreName) -> None:
    """resume-08: pages in the middle of a prompt kept at 80 go after the end of one at 35."""
    cache = build(store, (32, 8), groups=(FULL, window(9)), partial_reuse=False)
    serve(cache, "a", tokens(range(16)), checked=True, retention=Retention((RetainRange(0, None, 80),)))
    serve(cache, "b", tokens(range(100, 116)), checked=True)
    run(cache, Request("c", tokens(range(200, 216))))
    assert [start_of(cache, tokens(range(n), 99)) for n in (8, 12, 16)] == [8, 12, 16]
    assert start_of(cache, tokens(range(100, 116), 99)) == 0


def test_a_writer_that_goes_on_leaves_its_last_end_behind(store: StoreName) -> None:
    """resume-09: 16 blocks are written by four: of what is passed then, others take all; only the last end stays."""
    cache = build(store, (64, 18), groups=(FULL, window(9)), partial_reuse=False)
    serve(cache, "old", tokens(range(200, 208)), checked=True)
    writer = cache.writer(Request("w", tokens(range(64))), tier=0)
    assert isinstance(writer, Writer)
    for end in (16, 32, 48, 64):
        writer.written(end)
        check(cache)
    writer.close()
    serve(cache, "b", tokens(range(100, 156)), checked=True)
    found = [start_of(cache, tokens(range(n), 99)) for n in (16, 32, 48, 64)]
    assert found == [0, 0, 0, 64]
    assert start_of(cache, tokens(range(200, 208), 99)) == 8


@pytest.mark.parametrize(
    ("eviction", "starts"), [("lru", [29, 29, 29]), ("adaptive", [29, 29, 29]), ("release_order", [0, 29, 29])]
)
def test_snapshots_that_a_later_one_overtakes_go_first(store: StoreName, eviction: str, starts: list[int]) -> None:
    """resume-10: three talks of 29 tokens, each with states at 8, 16, 24, 28 and 29; 6 slots keep all ends."""
    cache = build(store, (64, 6), groups=(FULL, LayerGroup("state", snapshot_every=8)), eviction=eviction)
    for number in range(3):
        assert serve(cache, str(number), talk(number, 29), checked=True) == 0
    assert [start_of(cache, tokens(talk(number, 29), -1)) for number in range(3)] == starts


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_snapshot_where_texts_part_is_not_overtaken(store: StoreName, eviction: str) -> None:
    """resume-11: two texts that part at 16 behind a common state there: it stays, those on the way to it go first."""
    groups = (FULL, LayerGroup("state", snapshot_every=8, snapshot_at_end=False))
    cache = build(store, (64, 6), groups=groups, eviction=eviction, partial_reuse=False)
    common = talk(9, 16)
    serve(cache, "a", tokens(common, range(100, 108)))
    assert serve(cache, "b", tokens(common, range(200, 208))) == 16
    for number in range(2):  # each takes a state to compute with, and leaves one at 8 and one at 16
        serve(cache, f"other {number}", talk(number, 17))
    assert start_of(cache, tokens(common[:8], -1, -1)) == 0
    assert start_of(cache, tokens(common, 300, 301)) == 16


def asked_twice(cache: Cache, number: int, **more: Any) -> int:
    """A document of 10 blocks with a question of 3, 14 other blocks, another question: where that begins."""
    document, question = talk(number, 40), range(1_000 * number + 500, 1_000 * number + 512)
    assert serve(cache, f"{number}a", tokens(document, question), checked=True, **more) == 0
    serve(cache, f"{number}b", talk(number + 100, 56))
    return serve(cache, f"{number}c", tokens(document, range(900, 912)), checked=True, **more)


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_named_end_is_a_resume_point_before_anybody_resumes_there(store: StoreName, eviction: str) -> None:
    """resume-12: named at 40, or at 43, a second question begins at 40; not named, or elsewhere, at 0."""
    for points, start in (([40], 40), ([43], 40), ([], 0), ([20], 20), ([20, 40], 40)):
        cache = build(store, (200, 16), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8, eviction=eviction)
        assert asked_twice(cache, 1, resume_points=points) == start


def test_what_was_resumed_at_is_expected_again(store: StoreName) -> None:
    """resume-13: after one second question those about other documents begin at 40; nothing guessed: all at 0."""
    for every, starts in ((1024, [0, 40, 40]), (0, [0, 0, 0])):
        cache = build(
            store, (400, 16), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8, eviction="lru",
            resume_every=every,
        )  # fmt: skip
        assert [asked_twice(cache, number) for number in (1, 2, 3)] == starts


def test_guesses_that_nobody_resumes_at_end(store: StoreName) -> None:
    """resume-14: one second question, 30 texts with none: of the next text nothing but its end is kept."""
    cache = build(store, (2_000, 16), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8, eviction="lru")
    assert [asked_twice(cache, number) for number in (1, 2)] == [0, 40]
    for number in range(10, 40):
        serve(cache, str(number), talk(number, 60))
    assert asked_twice(cache, 3) == 0


def test_names_are_believed_until_they_have_cost_a_fourth_of_the_slots(store: StoreName) -> None:
    """resume-15: names at 8 and 32 that are never used, of one text or of 20: then one at 40 counts, or not."""
    for texts, start in ((1, 40), (20, 0)):
        cache = build(
            store, (2_000, 40), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8, eviction="lru",
            resume_every=0,
        )  # fmt: skip
        for number in range(10, 10 + texts):
            serve(cache, str(number), talk(number, 60), resume_points=[8, 32])
        document = talk(1, 40)
        serve(cache, "a", tokens(document, range(500, 512)), resume_points=[40])
        for number in range(3):
            run(cache, Request(f"others {number}", talk(100 + number, 40)))
        assert start_of(cache, tokens(document, 99)) == start


def test_eviction_takes_what_points_keep(store: StoreName) -> None:
    """resume-16: all blocks of three texts are named, and a fourth takes every slot of the window."""
    cache = build(store, (100, 10), groups=(FULL, window(9)), partial_reuse=False, eviction="lru")
    for number in range(4):
        every = list(range(4, 41, 4))
        assert serve(cache, str(number), talk(number, 40), checked=True, resume_points=every) == 0
    run(cache, Request("whole", talk(9, 40)))
    assert [start_of(cache, tokens(talk(number, 40), -1)) for number in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("eviction", ["lru", "adaptive"])
def test_a_named_snapshot_is_not_overtaken(store: StoreName, eviction: str) -> None:
    """resume-17: states at 16, named, at 28 and at its end; another text takes slots: a question begins at 16."""
    for points, start in (([17], 16), ([], 0)):
        cache = build(
            store, (64, 6), groups=(FULL, LayerGroup("state", snapshot_every=8)), max_sequences=2, eviction=eviction
        )
        serve(cache, "a", talk(1, 29), checked=True, resume_points=points)
        serve(cache, "b", talk(2, 17), checked=True)
        assert serve(cache, "c", tokens(talk(1, 16), range(500, 509)), checked=True) == start


def test_what_a_writer_brings_has_points_too(store: StoreName) -> None:
    """resume-18: a document of 10 blocks with a question of 3 is written, named at 40, or not; 14 other blocks."""
    for points, start in (([40], 40), ([], 0)):
        cache = build(store, (200, 16), groups=(FULL, window(9)), partial_reuse=False, max_chunk=8)
        text = tokens(talk(1, 40), range(500, 512))
        writer = cache.writer(Request("w", text, resume_points=points), tier=0)
        assert isinstance(writer, Writer)
        for end in (20, 52):
            writer.written(end)
            check(cache)
        writer.close()
        serve(cache, "other", talk(2, 56), checked=True)
        assert start_of(cache, tokens(talk(1, 40), 99)) == start


def test_a_kind_gains_what_no_other_point_would_have_given(store: StoreName) -> None:
    """resume-19: texts part after 4 blocks, then at 10 of 13: 3 to 4 blocks before an end gain 4, then 10 - 4."""
    cache = build(store, (200, 60), groups=(FULL, window(9)), partial_reuse=False, eviction="lru")

    def account() -> tuple[list[int], list[int]]:
        kinds = cache._setup.store.dump().kinds
        assert kinds is not None
        return kinds.cost, kinds.gain

    serve(cache, "a", tokens(talk(1, 16), range(500, 513)), checked=True)  # its last edge is at 7
    assert account()[1] == [0] * 10
    serve(cache, "b", tokens(talk(1, 40), range(600, 613)), checked=True)  # parts at 4, ends at 13
    assert account()[1] == [0, 0, 0, 4, 0, 0, 0, 0, 0, 0]
    serve(cache, "c", tokens(talk(1, 40), range(700, 713)), checked=True)
    cost, gain = account()
    assert gain == [0, 0, 0, 10, 0, 0, 0, 0, 0, 0]
    assert cost == [0, 0, 6, 4, 6, 0, 0, 0, 6, 0], "a page for each near block, a window of 2 for each end"
