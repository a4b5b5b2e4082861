"""Names in place of tokens: equal where the tokens were, in their order, watched alike; and nothing else is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quire import Cache, CacheConfig, Media, Request, Scope, Span, TierConfig
from quire.incidents import IncidentPlayer, Incidents, load
from quire.incidents.files.naming import MASK32, TextEnd, TokenNames, packed, unpacked
from tests.incidents.lives import state_of

SIZE = 4


def named(texts: list[list[int]], slots: int = 100) -> list[list[int]]:
    names = TokenNames(SIZE, slots)
    found = [names.read(names.begin(b"one"), np.array(text, np.int32)) for text in texts]
    names.settle()
    return [unpacked(names.taken(one)).tolist() for one in found]


def test_a_text_by_itself_says_nothing() -> None:
    assert named([[70, 3, 99, 3]]) == [[0, 0, 0, 0]]


def test_texts_part_where_they_parted_and_keep_their_order() -> None:
    found = named([[5, 9, 7, 1], [5, 2, 7, 3], [5, 9, 8], [4, 9, 7], [5, 9, 7, 1]])
    assert found == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0, 0]]


def test_negative_tokens_and_words_have_their_order() -> None:
    names = TokenNames(SIZE, 10)
    words = np.array([[1, 5, 0], [1, 4, 0], [0, 0, 0]], np.uint64)
    found = [names.read(names.begin(b"one"), np.array([3], np.int32), words[n : n + 1]) for n in range(3)]
    found.append(names.read(names.begin(b"one"), np.array([-7], np.int32)))
    names.settle()
    assert [unpacked(names.taken(one)).tolist() for one in found] == [[3], [2], [1], [0]]


def test_scopes_are_apart() -> None:
    names = TokenNames(SIZE, 10)
    found = [names.read(names.begin(scope), np.array([token], np.int32)) for scope, token in ((b"a", 1), (b"b", 9))]
    names.settle()
    assert [unpacked(names.taken(one)).tolist() for one in found] == [[0], [0]]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_block_is_watched_by_its_names_if_it_was_by_its_tokens(one_by_one: bool) -> None:
    slots, tokens = 1 << 16, np.random.default_rng(3).integers(0, 50_000, (300, 2 * SIZE), dtype=np.int32)
    tokens[:, 0] %= 5
    names, found = TokenNames(SIZE, slots), []
    for text in tokens:
        place = names.begin(b"one")
        first = names.read(place, text[: SIZE - 1])
        rest = [names.read_each([place], text[nth : nth + 1]) for nth in range(SIZE - 1, 2 * SIZE)] if one_by_one else [
            names.read(place, text[SIZE - 1 :])
        ]  # fmt: skip
        found.append([first, *rest])
    names.settle()
    again = np.array([np.concatenate([unpacked(names.taken(one)) for one in some]) for some in found])
    limit = MASK32
    while slots * (limit + 1) >> 32 > 2048:
        limit >>= 1
    assert (watched(tokens, limit) == watched(again, limit)).all()
    assert 0 < watched(tokens, limit).sum() < watched(tokens, limit).size


def watched(tokens: NDArray[np.int32], limit: int) -> NDArray[np.int64]:
    blocks = tokens.reshape(len(tokens), -1, SIZE).astype(object)
    found: NDArray[np.int64] = (
        (blocks[:, :, 0] * 0x9E3779B1 + blocks[:, :, -1] * 0x85EBCA77) & MASK32 <= limit
    ).astype(np.int64)
    return found


def test_a_text_that_was_cut_goes_on_otherwise() -> None:
    names = TokenNames(SIZE, 10)
    place = names.begin(b"one")
    whole = names.read(place, np.array([1, 2, 3, 4, 5], np.int32))
    other = place.copy()
    place.cut(2, SIZE)
    ends = [names.read(place, np.array([9], np.int32)), names.read(other, np.array([6], np.int32))]
    names.settle()
    assert [unpacked(names.taken(one)).tolist() for one in (whole, *ends)] == [[0, 0, 0, 0, 0], [1], [0]]


def test_runs_of_zeros_are_short() -> None:
    numbers = np.array([0, 0, 0, 4, 0, 7, 0, 0], np.int32)
    assert packed(numbers) == [-3, 4, -1, 7, -2]
    assert (unpacked(packed(numbers)) == numbers).all() and TextEnd(3).length == 0


LARGE = 1_913_573_500  # whose digits no time has by chance


def test_no_text_and_no_name_is_in_a_file(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path, thread=False, apart=False)
    cache = Cache(CacheConfig([TierConfig("device", 40)], SIZE, max_length=64, receipts=True), watchers=[incidents])
    tokens = np.array([LARGE + n for n in range(1, 7)], np.int32)
    image = Media(b"picture-of-the-king-of-nowhere", [Span(1, 3)])
    scope = Scope(lora="poet-77", salt="secret-salt", epoch=LARGE)
    request = Request("alice@example.org", tokens, scope, media=[image], tenant="tenant-77", session="session-77")
    batch = cache.add_sequence_batch([request])
    cache.commit(batch.sequences)
    cache.grow(batch.sequences, np.array([LARGE + 9], np.int32))
    cache.hint(tokens, "soon", scope)
    cache.release(batch.sequences[0])
    cache.truncate(Request("bob", tokens, scope), 4)
    cache.forget(Scope(salt="secret-salt"))
    path = incidents.save()
    data = gzip.decompress(path.read_bytes())
    for secret in (b"%d" % (LARGE // 100), b"king", b"secret", b"poet", b"alice", b"bob", b"tenant-", b"session-"):
        assert secret not in data
    for digest in (scope.digest, image.digest):
        assert digest.hex().encode() not in data
    assert json.loads(data.splitlines()[0])["config"]["block_size"] == SIZE
    player = IncidentPlayer(load(path))
    player.run()
    assert state_of(player.cache) == state_of(cache)
