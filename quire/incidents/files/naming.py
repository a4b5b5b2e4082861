"""Naming: numbers in place of tokens, scopes, encoders, sessions and tenants. What was equal has equal names.

A token's name is its place among the tokens that came behind the same text: 0 where only one did, so a text by itself
says nothing. Names have the order of the tokens (blocks beside each other are kept in order, and slots are freed in
it), and blocks that the adaptive order watches are watched by their names too (`learned/rival` chooses by first and
last token). Knows texts as rows of numbers; no calls, no cache.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.records.identity import Media, digest_of, token_words
from quire.core.records.span import Span
from quire.core.store.reuse import MOST_WATCHED

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]
FIRST_FACTOR, LAST_FACTOR, MASK32 = 0x9E3779B1, 0x85EBCA77, 0xFFFFFFFF  # as in learned/rival
PART = 16  # bytes of each of the four digests of a scope
NO_VALUE = digest_of(b"nnnn")


class TextEnd:
    """A text as far as it was read: what stands for each part of it from the start, as one number."""

    __slots__ = ("begun", "blocks", "more")

    def __init__(self, start: int) -> None:
        self.begun: UInt64 = np.array([start], np.uint64)  # what stands before its tokens, and behind the last ...
        self.more: list[int] = []  # ... and behind each of those that came one by one
        self.blocks: list[int] = []  # where the first token of each block is, among all that were read

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.begun) - 1 + len(self.more)

    @property
    def print(self) -> int:
        """What stands for all of it."""
        return self.more[-1] if self.more else int(self.begun[-1])

    def add(self, prints: UInt64) -> None:
        """More tokens: what stands for the text with each of them."""
        if len(prints) == 1:
            self.more.append(int(prints[0]))
        else:
            self.begun = np.concatenate([self.begun, np.array(self.more, np.uint64), prints])
            self.more = []

    def cut(self, length: int, size: int) -> None:
        """Keep the first tokens."""
        self.begun = np.concatenate([self.begun, np.array(self.more, np.uint64)])[: length + 1]
        self.more = []
        del self.blocks[-(-length // size) :]

    def copy(self) -> TextEnd:
        """Another text that begins like it."""
        other = TextEnd(0)
        other.begun, other.more, other.blocks = self.begun, list(self.more), list(self.blocks)
        return other


class TokenNames:
    """TokenNames of everything in one file. First all texts are read, in order; then `settle`; then they are taken."""

    def __init__(self, block_size: int, most_slots: int) -> None:
        self._size = block_size
        self._halvings = 0  # a block is watched if its number has so many leading zeros
        while most_slots * ((MASK32 >> self._halvings) + 1) >> 32 > MOST_WATCHED:
            self._halvings += 1
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)
        self._before: list[UInt64] = []  # of each token that was read: the print before it, ...
        self._tokens: list[Int64] = []  # the token, ...
        self._words: list[Int64] = []  # which words it has, ...
        self._places: list[Int64] = []  # its place in its text, ...
        self._firsts: list[Int64] = []  # and where the first token of its block is, if anybody asks
        self._num_read = 0
        self._triples: dict[bytes, int] = {bytes(24): 0}
        self._roots: dict[tuple[bytes, bytes | None], int] = {}
        self._numbers: dict[str, dict[Any, int]] = {}
        self._names: NDArray[np.int32] = np.empty(0, np.int32)

    # -- texts -------------------------------------------------------------------------------------------------------

    def begin(self, scope: bytes, encoder: bytes | None = None) -> TextEnd:
        """An empty text of a scope, by its digest."""
        number = self._roots.setdefault((scope, encoder), len(self._roots))
        return TextEnd(int(_mix(np.array([number], np.uint64) ^ self._secret[1])[0]))

    def read(self, place: TextEnd, tokens: NDArray[np.int32], words: UInt64 | None = None) -> slice:
        """Some tokens behind a text; where their names will be."""
        count, first = len(tokens), place.length
        if count:
            where = np.arange(first, first + count, dtype=np.int64)
            kinds = np.zeros(count, np.int64) if words is None else self._kinds(words)
            ends = np.uint64(place.print) + np.cumsum(self._mixed(tokens, where, kinds))
            self._note(np.concatenate([[np.uint64(place.print)], ends[:-1]]), tokens, kinds, where)
            place.add(ends)
            if self._halvings:
                place.blocks += (self._num_read + np.flatnonzero(where % self._size == 0)).tolist()
                self._firsts.append(np.array(place.blocks, np.int64)[where // self._size])
        self._num_read += count
        return slice(self._num_read - count, self._num_read)

    def read_each(self, places: list[TextEnd], tokens: NDArray[np.int32]) -> slice:
        """One more token behind each of some texts."""
        where = np.array([place.length for place in places], np.int64)
        before = np.array([place.print for place in places], np.uint64)
        kinds = np.zeros(len(places), np.int64)
        self._note(before, tokens, kinds, where)
        for place, end in zip(places, (before + self._mixed(tokens, where, kinds)).tolist(), strict=True):
            place.more.append(end)
        if self._halvings:
            for nth in np.flatnonzero(where % self._size == 0).tolist():
                places[nth].blocks.append(self._num_read + nth)
            self._firsts.append(np.array([place.blocks[-1] for place in places], np.int64))
        self._num_read += len(places)
        return slice(self._num_read - len(places), self._num_read)

    def _note(self, before: UInt64, tokens: NDArray[np.int32], kinds: Int64, where: Int64) -> None:
        self._before.append(before)
        self._tokens.append(tokens.astype(np.int64))
        self._words.append(kinds)
        self._places.append(where)

    def _mixed(self, tokens: NDArray[np.int32], where: Int64, kinds: Int64) -> UInt64:
        """What each token adds to what stands for its text."""
        plain = (tokens.astype(np.int64).view(np.uint64) & np.uint64(MASK32)) ^ (where.view(np.uint64) << np.uint64(32))
        return _mix(plain ^ self._secret[0] ^ _mix(kinds.view(np.uint64)))

    def _kinds(self, words: UInt64) -> Int64:
        rows = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 24)
        return np.array([self._triples.setdefault(row.tobytes(), len(self._triples)) for row in rows], np.int64)

    def settle(self) -> None:
        """All was read: give the names."""
        if not self._num_read:
            return
        before, tokens = np.concatenate(self._before), np.concatenate(self._tokens)
        words, places = np.concatenate(self._words), np.concatenate(self._places)
        order = sorted(self._triples, key=lambda triple: tuple(np.frombuffer(triple, np.uint64).tolist()))
        ranks = np.empty(len(order), np.int64)
        ranks[[self._triples[triple] for triple in order]] = np.arange(len(order))
        idents = (tokens << 31) | ranks[words]
        sorting = np.lexsort((idents, before))
        prints, sorted_idents = before[sorting], idents[sorting]
        new_group = np.concatenate([[True], prints[1:] != prints[:-1]])
        new = new_group | np.concatenate([[True], sorted_idents[1:] != sorted_idents[:-1]])
        unique = np.cumsum(new) - 1  # by place in the order: which token behind which text
        firsts = np.maximum.accumulate(np.where(new_group, unique, 0))
        ranked = (unique - firsts)[new].astype(np.int64)
        which = np.empty(len(before), np.int64)
        which[sorting] = unique
        names = ranked
        if self._halvings:
            names = self._watched(ranked, which, (tokens, places), sorting[new])
        self._names = names[which].astype(np.int32)

    def _watched(self, ranked: Int64, which: Int64, read: tuple[Int64, Int64], example: Int64) -> Int64:
        """TokenNames of last tokens of blocks, such that a block is watched by its names if it is by its tokens."""
        tokens, places = read
        names, size = ranked.copy(), self._size
        last = places[example] % size == size - 1
        at = np.flatnonzero(last)
        if not len(at):
            return names
        firsts = np.concatenate(self._firsts)[example[at]]
        wanted = self._zeros(tokens[firsts], tokens[example[at]])
        begun = names[which[firsts]] if size > 1 else None
        for rank in range(int(ranked[at].max()) + 1):  # the next one of the same text has a larger name
            mine = np.flatnonzero(ranked[at] == rank)
            tried = names[at[mine] - 1] + 1 if rank else np.zeros(len(mine), np.int64)
            left = np.arange(len(mine))
            while len(left):
                first = tried[left] if begun is None else begun[mine[left]]
                wrong = self._zeros(first, tried[left]) != wanted[mine[left]]
                left = left[wrong]
                tried[left] += 1
            names[at[mine]] = tried
        return names

    def _zeros(self, first: Int64, last: Int64) -> Int64:
        """Leading zeros of a block's number, as far as they matter."""
        with np.errstate(over="ignore"):
            mixed = (first * np.int64(FIRST_FACTOR) + last * np.int64(LAST_FACTOR)) & np.int64(MASK32)
        found = np.zeros(len(mixed), np.int64)
        for halvings in range(1, self._halvings + 1):
            found += mixed <= MASK32 >> halvings
        return found

    def taken(self, found: slice) -> list[int]:
        """The names of some tokens, runs of zeros as one number below zero."""
        return packed(self._names[found])

    # -- others ------------------------------------------------------------------------------------------------------

    def scope(self, digest: bytes) -> list[int | None]:
        """LoRA, salt, epoch and space of a scope by number."""
        parts = (digest[at : at + PART] for at in range(0, len(digest), PART))
        return [
            self.number(str(nth), None if part == NO_VALUE[PART * nth : PART * (nth + 1)] else part)
            for nth, part in enumerate(parts)
        ]

    def number(self, kind: str, value: Any) -> int | None:
        """Of a tenant, a session or a part of a scope."""
        known = self._numbers.setdefault(kind, {})
        return None if value is None else known.setdefault(value, len(known))


def packed(names: NDArray[np.int32]) -> list[int]:
    """Numbers of at least 0 as a list in which n zeros are -n."""
    values = names.tolist()
    out: list[int] = []
    zeros = 0
    for value in values:
        if value == 0:
            zeros += 1
        else:
            if zeros:
                out.append(-zeros)
                zeros = 0
            out.append(value)
    return [*out, -zeros] if zeros else out


def unpacked(names: list[int]) -> NDArray[np.int32]:
    """The numbers again."""
    parts = np.array(names, np.int64).reshape(-1)
    counts = np.where(parts < 0, -parts, 1)
    return np.repeat(np.maximum(parts, 0), counts).astype(np.int32)


def in_rows(columns: list[list[int]], counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Names of several texts at once, by row again, from all firsts, all seconds, ...; -1 behind so many of a row."""
    table = np.full((len(counts), max(1, len(columns))), -1, np.int32)
    for nth, column in enumerate(columns):
        table[counts > nth, nth] = unpacked(column)
    return table


def encoder_digests(names: list[tuple[int, bytes]]) -> dict[bytes, bytes]:
    """Made-up digests for encoders' inputs, by their own, whose pages lie in the same order."""
    found: dict[bytes, bytes] = {}
    ordered = sorted(names, key=lambda one: _first_words(one[1]))
    for nth, (length, name) in enumerate(ordered):
        tries = 0
        while True:
            digest = blake2b(b"%d/%d" % (nth, tries), digest_size=16, person=b"quire-incident").digest()
            made = blake2b(length.to_bytes(8, "little") + b"d" + digest, digest_size=32, person=b"quire-encoder")
            if _first_words(made.digest()) * len(ordered) >> 64 == nth:
                found[name] = digest
                break
            tries += 1
    return found


def _first_words(name: bytes) -> int:
    """What orders the pages of encoders' inputs: the first words of their tokens."""
    words = token_words(1, None, (Media(name, (Span(0, 1),)),))
    assert words is not None
    return int(words[0, 0])


def _mix(numbers: UInt64) -> UInt64:
    """Every bit of each depends on every bit (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
