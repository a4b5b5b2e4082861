"""One cache whose pages are in the memory of several ranks, and a store: a page is there with every part, or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, LayerGroup, Request, Scope, TierConfig, check
from quire.core.records.request import PLAIN
from quire.tiers import ArenaTier, Bytes, TierError
from quire.tiers.shared import (
    Fetch,
    FolderStore,
    LocalSharedRank,
    SharedCache,
    SharedConfig,
    StoreClient,
    StoreMiss,
    open_store,
)
from quire.tiers.shared.audit import PageAudit
from quire.tiers.shared.needs import needed_blocks
from quire.tiers.shared.rank_parts import Answers, Place, Ranks, TiersRank
from tests.tiers.shared.machine import FULL, PATIENT, SIZE, WINDOW, Int32, content, text
from tests.tiers.shared.rank_worker import RemoteRank
from tests.tiers.shared.store_suite import name, page, soon

PRINTS = tuple(bytes([nth]) * 32 for nth in range(3))


class Ends(Exception):
    """What a wire says when the process behind it is gone."""


class Wire:
    """A rank behind a wire that can be cut: at once, or before one of its calls."""

    def __init__(self, rank: LocalSharedRank) -> None:
        self.rank, self.cut_at, self.closed, self.batches = rank, "", False, set[int]()

    def _meet(self, call: str) -> None:
        if self.cut_at in (call, "all"):
            raise Ends(call)

    def page_bytes(self) -> tuple[int, ...]:
        return self.rank.page_bytes()

    def get(self, number: int, names: Sequence[bytes], groups: Sequence[int], seconds: float) -> Answers:
        self._meet("get")
        self.batches.add(number)
        return self.rank.get(number, names, groups, seconds)

    def place(self, number: int, nth: Sequence[int], places: Sequence[Place]) -> None:
        self._meet("place")
        self.rank.place(number, nth, places)

    def copy(self, number: int, places: Sequence[Place]) -> list[bool]:
        self._meet("copy")
        self.batches.add(number)
        return self.rank.copy(number, places)

    def put(self, number: int, nth: Sequence[int], names: Sequence[bytes], seconds: float) -> Answers:
        self._meet("put")
        return self.rank.put(number, nth, names, seconds)

    def drop(self, number: int) -> None:
        self.batches.discard(number)
        self.rank.drop(number)

    def close(self) -> None:
        self.closed = True
        self.rank.close()


class Worlds:
    """An engine of several ranks: one cache, and a host's memory on each rank with its part of every page."""

    numbers = iter(range(1 << 30))

    def __init__(self, place: str, *groups: LayerGroup, ranks: int = 2, **settings: object) -> None:
        self.groups = groups or (FULL,)
        tiers = (TierConfig("device", 0), TierConfig("host", 64))
        self.cache = Cache(CacheConfig(tiers, block_size=SIZE, groups=self.groups, max_length=128))
        self.parts = [group.page_bytes // ranks for group in self.groups]
        slots = [64] * len(self.groups)
        self.hosts = [ArenaTier("host", slots, self.parts) for _ in range(ranks)]
        config = SharedConfig(place, wait=PATIENT, **settings)  # type: ignore[arg-type]
        self.wires = []
        for host in self.hosts:
            device = ArenaTier("device", [0] * len(self.groups), self.parts)
            self.wires.append(Wire(LocalSharedRank([device, host], config)))
        self.shared = SharedCache(self.cache, [], config, PRINTS[:ranks], ranks=self.wires)

    def request(self, tokens: Int32, scope: Scope = PLAIN) -> Request:
        return Request(next(self.numbers), tokens, scope)

    def _part(self, rank: int, scope: Scope, tokens: Int32, block: int, group: int) -> np.ndarray:
        whole = content(scope, tokens, block, group, self.groups[group].page_bytes)
        return whole[rank * self.parts[group] : (rank + 1) * self.parts[group]]

    def store(self, tokens: Int32, scope: Scope = PLAIN) -> None:
        """Every rank has computed its part."""
        writer = self.cache.writer(self.request(tokens, scope), tier=1)
        with writer:  # type: ignore[union-attr]
            for group in range(len(self.groups)):
                for block, slot in zip(writer.blocks(group), writer.slots(group), strict=True):  # type: ignore[union-attr]
                    for rank, host in enumerate(self.hosts):
                        host.view(group)[slot] = self._part(rank, scope, tokens, int(block), group)
            writer.written(len(tokens) // SIZE * SIZE)  # type: ignore[union-attr]

    def publish(self, tokens: Int32, scope: Scope = PLAIN) -> None:
        self.shared.publish(self.request(tokens, scope))
        assert self.shared.wait_until_idle(PATIENT)

    def fetch(self, tokens: Int32, scope: Scope = PLAIN) -> Fetch:
        fetch = self.shared.fetch(self.request(tokens, scope))
        assert self.shared.wait_until_idle(PATIENT)
        return fetch

    def has(self, tokens: Int32, scope: Scope = PLAIN) -> int:
        """Tokens that could be reused; the bytes of every part are checked."""
        with self.cache.find(self.request(tokens, scope)) as found:
            for group in range(len(self.groups)):
                for block, slot in zip(found.blocks(group), found.slots(group), strict=True):
                    for rank, host in enumerate(self.hosts):
                        right = self._part(rank, scope, tokens, int(block), group)
                        assert np.array_equal(host.view(group)[slot], right), (rank, block, group)
            return found.end

    def brought(self, tokens: Int32, scope: Scope = PLAIN) -> tuple[int, str]:
        """How far a fetch gets, and why not further; what it brought is findable and right, and nothing else."""
        with self.fetch(tokens, scope) as fetch:
            assert self.has(tokens, scope) >= fetch.tokens
            return self.has(tokens, scope), fetch.why

    def close(self) -> None:
        assert self.shared.close() and all(wire.closed for wire in self.wires)
        assert not any(wire.batches for wire in self.wires), "a rank keeps bytes that nobody will ask for"
        assert not any(wire.rank._batches for wire in self.wires)
        assert not self.cache.open_finds() and not self.cache.open_writers()
        check(self.cache)


def pair(closing: ExitStack, place: str, *groups: LayerGroup, ranks: int = 2, **settings: object) -> list[Worlds]:
    made = [Worlds(place, *groups, ranks=ranks, **settings) for _ in range(2)]
    for one in made:
        closing.callback(one.close)
    return made


@pytest.mark.parametrize(("ranks", "groups"), [(2, (FULL,)), (2, (FULL, WINDOW)), (3, (FULL,))])
def test_what_ranks_have_computed_others_need_not(
    place: str, closing: ExitStack, ranks: int, groups: tuple[LayerGroup, ...]
) -> None:
    one, other = pair(closing, place, *groups, ranks=ranks)
    one.store(text(1))
    one.publish(text(1))
    assert other.brought(text(1)) == (24, "")
    counts, came = one.shared.counts(), other.shared.counts()
    needs = [(len(needed_blocks(group, 6, SIZE)), group.page_bytes) for group in groups]
    assert counts.sent == came.hits == sum(pages for pages, _ in needs)
    assert counts.bytes_out == came.bytes_in == sum(pages * size for pages, size in needs)
    assert other.brought(text(1, 2, length=32)) == (8 if len(groups) == 1 else 0, "absent")
    one.publish(text(1))
    assert one.shared.counts().sent == counts.sent, "what is there with all parts goes out once"


def test_every_part_has_its_own_name_and_a_page_needs_all(tmp_path: Path, closing: ExitStack) -> None:
    place = str(tmp_path / "pages")
    one, other = pair(closing, place)
    one.store(text(1))
    one.publish(text(1))
    files = sorted((tmp_path / "pages").rglob("*"), key=lambda path: path.stat().st_mtime_ns)
    pages = [path for path in files if path.is_file()]
    assert len(pages) == 2 * 6
    request = one.request(text(1))
    names = [digests.page(3, 0) for digests in one.shared._ground.digests(request, 6)]
    store = open_store(SharedConfig(place))
    assert len(set(names)) == 2 and store.exists_many(names, 1e18) == [True, True]
    os.unlink(next(path for path in pages if names[1][16:].hex()[:12] in str(path).replace("/", "")))
    assert store.exists_many(names, 1e18) == [True, False]
    assert other.brought(text(1)) == (12, "")
    one.shared._ground.known.clear()
    one.publish(text(1))
    assert one.shared.counts().sent == 7 and store.exists_many(names, 1e18) == [True, True]
    assert other.brought(text(1)) == (24, "")
    store.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_part_ends_the_page_on_every_rank(tmp_path: Path, closing: ExitStack, rank: int) -> None:
    place = str(tmp_path / "pages")
    one, other = pair(closing, place)
    one.store(text(1))
    one.publish(text(1))
    name = one.shared._ground.digests(one.request(text(1)), 6)[rank].page(2, 0)
    for path in (tmp_path / "pages").rglob("*"):
        if path.is_file() and name[16:].hex()[:12] in str(path).replace("/", ""):
            raw = bytearray(path.read_bytes())
            raw[-1] ^= 1
            path.write_bytes(raw)
    assert other.brought(text(1)) == (8, "damaged")
    assert other.shared.counts().misses == {"damaged": 1} and other.shared.counts().hits == 5
    other.store(text(1))  # it computes the rest
    other.publish(text(1))
    third = Worlds(place)
    closing.callback(third.close)
    assert other.shared.counts().sent == 1 and third.brought(text(1)) == (24, "")


@pytest.mark.parametrize("call", ["get", "place", "copy", "put", "all"])
def test_a_rank_that_is_gone_costs_its_pages_and_nothing_else(place: str, closing: ExitStack, call: str) -> None:
    one, other = pair(closing, place)
    one.wires[1].cut_at = call
    one.store(text(1))
    one.publish(text(1))
    if call in ("copy", "put", "all"):
        assert one.shared.counts().sent == 0
        assert one.shared.counts().drops == {"failed" if call == "put" else "busy": 6}
        assert other.brought(text(1)) == (0, "absent")
    one.wires[1].cut_at = ""
    one.publish(text(1))
    assert one.shared.counts().sent == 6
    other.wires[0].cut_at = call
    end, why = other.brought(text(1))
    assert (end, why) == ((24, "") if call in ("copy", "put") else (0, "failed" if call != "place" else "place"))
    other.wires[0].cut_at = ""
    assert other.brought(text(1)) == (24, "")


class Worn(ArenaTier):
    """Memory with slots that cannot be read."""

    bad: frozenset[int] = frozenset()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        super().read(group, slots, out)
        if failed := {slot: "worn" for slot in slots if slot in self.bad}:
            raise TierError("host", group, failed)


def test_a_part_that_cannot_be_read_keeps_its_page_at_home(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    one.store(text(1))
    with one.cache.find(one.request(text(1))) as found:
        bad = int(found.slots()[4])
    worn = Worn("host", [64], one.parts)
    worn.view(0)[:], worn.bad = one.hosts[1].view(0), frozenset({bad})
    one.wires[1].rank._tiers[1] = worn
    one.publish(text(1))
    assert one.shared.counts().sent == 5 and one.shared.counts().drops == {"busy": 1}
    assert other.brought(text(1)) == (16, "")


def test_forget_takes_the_parts_of_all_ranks(place: str, closing: ExitStack) -> None:
    one, other = pair(closing, place)
    mine = Scope(salt="a")
    for scope in (mine, PLAIN):
        one.store(text(1), scope)
        one.publish(text(1), scope)
    assert one.shared.forget(mine) == (6, 12)
    assert other.brought(text(1), mine) == (0, "absent") and other.brought(text(1)) == (24, "")


def test_ranks_and_caches_of_their_own_do_not_meet(place: str, closing: ExitStack) -> None:
    """Two ranks and three have other parts, and so other names."""
    two, three = Worlds(place), Worlds(place, ranks=3)
    for one in (two, three):
        closing.callback(one.close)
    two.store(text(1))
    two.publish(text(1))
    assert three.brought(text(1)) == (0, "absent")


def test_what_does_not_fit_is_refused(tmp_path: Path, closing: ExitStack) -> None:
    made = Worlds(str(tmp_path / "pages"))
    closing.callback(made.close)
    config = made.shared.config
    tier = ArenaTier("device", [4], [FULL.page_bytes])
    wide = LocalSharedRank([tier, ArenaTier("host", [4], [FULL.page_bytes])], config)
    closing.callback(wide.close)
    for tiers, prints, ranks, why in (
        ([tier], PRINTS[:2], made.wires, "give tiers to the ranks"),
        ([], PRINTS[:1], made.wires, "give one for each of two ranks or more"),
        ([], PRINTS[:1] * 2, made.wires, "1 of them different"),
        ([], PRINTS[:1], made.wires[:1], "two ranks or more"),
        ([], PRINTS[:2], [made.wires[0], wide], "bytes of all ranks' parts together"),
    ):
        with pytest.raises(InputError, match=why):
            SharedCache(made.cache, tiers, config, prints, ranks=ranks)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no memory"):
        LocalSharedRank([], config)


def test_answers_are_of_whole_pages() -> None:
    class Said:
        def __init__(self, *answers: StoreMiss | None) -> None:
            self.answers = answers

        def get(self, *_: object) -> Answers:
            if StoreMiss.CLOSED in self.answers:
                raise Ends
            return list(self.answers)

    late, none = StoreMiss.LATE, None
    ranks = Ranks([Said(none, none, late), Said(none, StoreMiss.DAMAGED, none)])  # type: ignore[list-item]
    assert ranks.get(1, [[], []], [0, 0, 0], 1.0) == [None, "damaged", "late"]
    gone = Ranks([Said(none, late), Said(StoreMiss.CLOSED)])  # type: ignore[list-item]
    assert gone.get(1, [[], []], [0, 0], 1.0) == ["failed", "late"]


# -- ranks in processes of their own ---------------------------------------------------------------------------------


def test_a_process_for_each_rank_and_one_that_is_killed(tmp_path: Path, closing: ExitStack) -> None:
    """Bytes come into processes of their own by the store alone; one that dies makes misses, and ends nobody else."""
    place = str(tmp_path / "pages")
    one, tokens = Worlds(place), text(1)
    closing.callback(one.close)
    one.store(tokens)
    one.publish(tokens)
    tiers = (TierConfig("device", 0), TierConfig("host", 64))
    cache = Cache(CacheConfig(tiers, block_size=SIZE, groups=(FULL,), max_length=128))
    ranks = [RemoteRank(place, FULL.page_bytes // 2) for _ in range(2)]
    shared = SharedCache(cache, [], SharedConfig(place, wait=PATIENT), PRINTS[:2], ranks=ranks)
    closing.callback(shared.close)
    with shared.fetch(Request("f", tokens[:12])) as fetch:
        assert shared.wait_until_idle(PATIENT) and fetch.tokens == 12
        with cache.find(Request("g", tokens)) as found:
            for block, slot in zip(found.blocks(), found.slots(), strict=True):
                parts = [rank.peek(int(slot)) for rank in ranks]
                assert np.array_equal(np.concatenate(parts), content(PLAIN, tokens, int(block), 0, FULL.page_bytes))
    ranks[1].process.kill()
    with shared.fetch(Request("h", tokens)) as fetch:
        assert shared.wait_until_idle(PATIENT) and (fetch.tokens, fetch.why) == (0, "failed")
    with cache.find(Request("i", tokens)) as found:
        assert found.end == 12, "what the rank that lives has got is no page"
    assert shared.counts().misses == {"failed": 3} and not cache.open_writers()
    check(cache)


def test_a_page_that_came_goes_out_with_the_same_bytes_only(tmp_path: Path) -> None:
    """The audit knows what came as it knows what was computed here."""
    arena, client, audit = ArenaTier("host", [2], [96]), StoreClient(FolderStore(tmp_path)), PageAudit()
    rank = TiersRank([arena], client, audit)
    assert client.put_many([name(1)], [page(1, 96)], soon()) == [None]
    assert rank.get(1, [name(1), name(2)], [0, 0], PATIENT) == [None, StoreMiss.ABSENT]
    rank.place(1, [0], [(0, 0, 0)])
    assert rank.copy(2, [(0, 0, 0)]) == [True] and rank.put(2, [0], [name(1)], PATIENT) == [None]
    arena.view(0)[0] = page(2, 96)  # somebody else writes there
    assert rank.copy(3, [(0, 0, 0)]) == [True] and rank.put(3, [0], [name(1)], PATIENT) == [StoreMiss.FAILED]
    assert rank.put(3, [0], [name(2)], PATIENT) == [None]  # what never came may have any bytes
    assert repr(audit) == "PageAudit(1 right, 1 unknown, 1 wrong)"
    client.close()
