"""Caches that share a store: what one has computed the other has, and nothing wrong, whatever the groups and ranks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from quire import InputError, Request, Scope, StateError
from quire.tiers.shared import Fetch, FolderStore, Quota, SharedStore, StoreMiss
from quire.tiers.shared.needs import needed_blocks, reach, useful_pages
from tests.tiers.shared.machine import FINGERPRINT, FULL, SIZE, STATE, WINDOW, Machine, text


def pair(closing: ExitStack, place: SharedStore | str, *groups: object, **settings: object) -> tuple[Machine, Machine]:
    machines = Machine(place, *groups, **settings), Machine(place, *groups, **settings)  # type: ignore[arg-type]
    for one in machines:
        closing.callback(one.close)
    return machines


def test_what_one_has_computed_the_other_need_not(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    assert one.serve(text(1)) == 0
    one.settle()
    assert other.serve(text(1)) == 20  # the last token is always computed
    assert other.serve(text(1, 2, length=32)) == 8
    assert other.has(text(1)) == 24 and not other.wrong


def test_only_what_is_missing_comes(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    one.serve(text(1, 2, 3))
    one.settle()
    other.serve(text(1, 2, length=16))
    before = other.shared.counts()
    assert before.hits == 4
    with other.fetch(text(1, 2, 3)) as fetch:
        assert (fetch.tokens, fetch.why) == (8, "")
    assert other.shared.counts().hits == 6 and other.has(text(1, 2, 3)) == 24
    with other.fetch(text(1, 2, 3)) as fetch:
        assert fetch.tokens == 0
    assert other.shared.counts().hits == 6


def test_pages_go_out_once(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    for machine in (one, one, other):
        machine.serve(text(1))
        machine.settle()
    assert (one.shared.counts().sent, other.shared.counts().sent) == (6, 0)


def test_scopes_fingerprints_and_ranks_share_nothing(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    one.serve(text(1), Scope(salt="a"))
    one.settle()
    for scope in (Scope(), Scope(salt="b"), Scope(lora="a"), Scope(salt="a", epoch=1)):
        assert other.serve(text(1), scope, publish=False) == 0
    assert other.serve(text(1), Scope(salt="a")) == 20
    stranger = Machine(place, fingerprint=bytes(32))
    closing.callback(stranger.close)
    assert stranger.serve(text(1), Scope(salt="a")) == 0


def test_extra_ids_are_part_of_a_text(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    ids = np.zeros(24, np.int64)
    ids[9] = 5
    one.serve(text(1))
    one.settle()
    with other.shared.fetch(Request("with", text(1), extra_ids=ids)) as fetch:
        other.settle()
        assert fetch.tokens == 8


def test_a_page_counts_only_if_every_rank_has_its_part(place: str, closing: ExitStack) -> None:
    prints = (FINGERPRINT, bytes(32))
    ranks = [[Machine(place, fingerprint=prints, rank=rank) for rank in (0, 1)] for _ in range(2)]
    for machine in (*ranks[0], *ranks[1]):
        closing.callback(machine.close)
    (first, second), readers = ranks
    first.store(text(1))
    first.publish(text(1))
    assert [reader.fetch(text(1)).tokens for reader in readers] == [0, 0]
    second.store(text(1), edge=16)
    second.publish(text(1))
    fetches = [reader.fetch(text(1)) for reader in readers]
    assert [fetch.tokens for fetch in fetches] == [16, 16]
    assert [reader.has(text(1)) for reader in readers] == [16, 16]
    for fetch in fetches:
        fetch.close()


# -- windows and states ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [(FULL, WINDOW), (FULL, STATE), (WINDOW,), (STATE,), (FULL, WINDOW, STATE)])
def test_of_windows_and_states_only_what_is_needed_travels(
    place: str, closing: ExitStack, groups: tuple[object, ...]
) -> None:
    one, other = pair(closing, place, *groups)
    long = text(1, length=48)
    one.store(long)
    one.publish(long)
    need = sum(len(needed_blocks(layer, 12, SIZE)) for layer in one.groups)
    assert one.shared.counts().sent == need
    with other.fetch(long) as fetch:
        assert fetch.tokens == 48 and other.has(long) == 48
    assert other.shared.counts().hits == need


def test_others_go_on_where_a_prompt_ended(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place, FULL, WINDOW)
    one.store(text(1, 2, length=40), edge=16)
    one.store(text(1, 2, length=40))
    one.publish(text(1, 2, length=40), edges=(18,))
    with other.fetch(text(1, 2, 5, length=40)) as fetch:
        assert fetch.tokens == 16 and other.has(text(1, 2, 5, length=40)) == 16


def test_a_resume_point_may_rest_on_pages_of_both_sides(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place, FULL, WINDOW)
    one.store(text(1, length=32))
    one.publish(text(1, length=32))
    other.store(text(1, length=32), edge=28)
    with other.fetch(text(1, length=32)) as fetch:
        assert fetch.tokens == 4 and other.has(text(1, length=32)) == 32
    assert other.shared.counts().hits == 2  # the last page of each group: the window's first one was here


def test_how_far_pages_reach() -> None:
    full, window, state = np.ones(8, bool), np.ones(8, bool), np.zeros(8, bool)
    state[[1, 3, 5]] = True
    groups = [FULL, WINDOW, STATE]
    assert reach(groups, [full, window, state], 0, 8, SIZE) == 6
    window[4] = False
    assert reach(groups, [full, window, state], 0, 8, SIZE) == 4
    assert reach(groups, [full, window, state], 5, 8, SIZE) == 5
    full[3] = False
    assert reach(groups, [full, window, state], 0, 8, SIZE) == 2
    assert (7, 2) in useful_pages(groups, 5, 8, SIZE) and (4, 1) in useful_pages(groups, 5, 8, SIZE)
    assert (4, 0) not in useful_pages(groups, 5, 8, SIZE)


# -- policy ------------------------------------------------------------------------------------------------------------


def test_a_block_goes_out_after_so_many_uses(place: str, closing: ExitStack) -> None:
    one, _ = pair(closing, place, min_uses=2)
    one.serve(text(1, 2, 3))
    one.settle()
    assert one.shared.counts().sent == 0
    one.serve(text(1, 2, 4))
    one.settle()
    assert one.shared.counts().sent == 4
    never = Machine(place, min_uses=0)
    closing.callback(never.close)
    never.serve(text(7))
    never.settle()
    assert never.shared.counts().sent == 0


def test_a_quota_bounds_what_a_label_sends(place: str, closing: ExitStack) -> None:
    quotas = {"small": Quota(300, seconds=1e9), "*": Quota(10_000, seconds=1e9)}
    one, _ = pair(closing, place, quotas=quotas, label=lambda scope: str(scope.salt), batch_bytes=96)
    for label in ("small", "large"):
        one.serve(text(1), Scope(salt=label))
        one.settle()
    counts = one.shared.counts()
    assert counts.sent == 3 + 6 and counts.drops == {"quota": 3}


def test_pages_that_came_are_held_until_the_fetch_is_closed(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place, host=16)
    one.serve(text(1))
    one.settle()
    fetch = other.fetch(text(1))
    for number in range(10, 16):
        other.store(text(number, length=8))
    assert other.has(text(1)) == 24
    fetch.close()
    for number in range(20, 28):
        other.store(text(number, length=8))
    assert other.has(text(1)) < 24


def test_all_fetches_together_hold_a_share_of_the_host(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place, host=16)  # half of them: 8
    for number in (1, 2, 3):
        one.serve(text(number))
        one.settle()
    first, second = other.fetch(text(1)), other.fetch(text(2))
    assert (first.tokens, second.tokens, second.why) == (24, 4, "no room in the host's memory")
    third = other.fetch(text(3))
    first.close()
    again = other.fetch(text(3))
    assert (third.tokens, again.tokens) == (4, 20)
    for fetch in (second, third, again):
        fetch.close()


def test_forgetting_reaches_the_store_under_every_adapter_that_is_known(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    mine = [Scope(salt="t"), Scope(salt="t", lora="x"), Scope(salt="t", lora="y")]
    for scope in (*mine, Scope(salt="u")):
        one.serve(text(1), scope)
    one.settle()
    other.serve(text(2), Scope(salt="t"))  # written by another machine, in a scope that is known here
    other.settle()
    gone = one.shared.forget(Scope(salt="t"))
    assert gone.store == 24 and gone.here == 18
    third = Machine(place)
    closing.callback(third.close)
    assert [third.serve(text(1), scope, publish=False) for scope in mine] == [0, 0, 0]
    assert third.serve(text(2), Scope(salt="t"), publish=False) == 0
    assert third.serve(text(1), Scope(salt="u"), publish=False) == 20
    with pytest.raises(InputError, match="clear"):
        one.shared.forget(Scope())


class LateStore(FolderStore):
    """A folder that does something of the test's between a question and its answer."""

    during: object = None

    def get_many(self, names, into, deadline):  # type: ignore[no-untyped-def]
        answers = super().get_many(names, into, deadline)
        if callable(self.during):
            self.during()
        return answers


def test_what_is_forgotten_while_it_comes_stays_away(tmp_path: Path, closing: ExitStack) -> None:
    store = LateStore(tmp_path)
    one, other = pair(closing, store)
    one.serve(text(1), Scope(salt="t"))
    one.settle()
    store.during = lambda: other.shared.forget(Scope(salt="t"))
    with other.fetch(text(1), Scope(salt="t")) as fetch:
        assert fetch.tokens == 0
    store.during = None
    assert other.has(text(1), Scope(salt="t")) == 0


def test_a_fetch_that_is_closed_while_its_pages_come_brings_none(tmp_path: Path, closing: ExitStack) -> None:
    store = LateStore(tmp_path)
    one, other = pair(closing, store, batch_bytes=96)
    one.serve(text(1))
    one.settle()
    fetches: list[Fetch] = []
    store.during = lambda: list(map(Fetch.close, fetches))
    fetches.append(other.shared.fetch(other.request(text(1))))
    other.settle()
    assert fetches[0].done and fetches[0].tokens <= 4
    assert not other.cache.open_finds() and not other.cache.open_writers()


def test_a_damaged_page_ends_what_comes_and_is_told(tmp_path: Path, closing: ExitStack) -> None:
    store = FolderStore(tmp_path)
    one, other = pair(closing, store)
    one.serve(text(1))
    one.settle()
    name = one.shared._ground.digests(one.request(text(1)), 6)[0].page(3, 0)
    path = store._path(name)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with other.fetch(text(1)) as fetch:
        assert (fetch.tokens, fetch.why) == (12, "damaged")
    assert other.shared.counts().misses == {"damaged": 1} and other.has(text(1)) == 12


def test_what_cannot_be_shared_is_left_alone(place: str, closing: ExitStack) -> None:
    one, _ = pair(closing, place)
    with one.shared.fetch(Request("short", text(1, length=3))) as fetch:
        assert fetch.done and fetch.why == StoreMiss.ABSENT
    with one.shared.fetch(Request("alone", text(1), reuse=False)) as fetch:
        assert fetch.done
    assert not one.shared.publish(Request("alone", text(1), reuse=False))


def test_a_closed_shared_cache_refuses_and_says_so(place: str) -> None:
    one = Machine(place)
    one.close()
    for act in (lambda: one.shared.fetch(one.request(text(1))), lambda: one.shared.publish(one.request(text(1)))):
        with pytest.raises(StateError, match="closed"):
            act()


def test_wrong_parts_are_refused(tmp_path: Path) -> None:
    for wrong in ({"fingerprint": b"short"}, {"rank": 1}):
        with pytest.raises(InputError):
            Machine(str(tmp_path), **wrong)
