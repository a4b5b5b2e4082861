"""Objects of any size as pages of one: LMCache's objects differ in size by model and layer group, and a disk's pages
do not. Owns their names and how they are cut; knows no place and no LMCache.

    object ─► [ piece 0 ][ piece 1 ] ... [ last, filled up with zeros ]     in place but for a last one that is not full

A name is a digest of all of LMCache's key and of the object's form, so neither texts nor salts can be read from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from quire.tiers.base import Bytes

ID_BYTES = 32
Form = tuple[tuple[tuple[int, ...], str], ...]  # shapes and dtypes, as an object has them


def object_id(chunk_hash: bytes, model: str, rank: int, group: int, salt: str, form: Form) -> bytes:
    """The name of an object: equal for equal keys and forms alone."""
    facts = json.dumps([chunk_hash.hex(), model, rank, group, salt, form])
    return blake2b(facts.encode(), digest_size=ID_BYTES, person=b"quire-object").digest()


def piece_keys(name: bytes, count: int) -> list[bytes]:
    """Of all pieces of an object, from its start."""
    return [name + nth.to_bytes(4, "little") + count.to_bytes(4, "little") for nth in range(count)]


def beside(key: bytes) -> list[bytes]:
    """All pieces of the object of this one: it is of no use without them."""
    return piece_keys(key[:ID_BYTES], int.from_bytes(key[-4:], "little"))


def num_pieces(size: int, piece: int) -> int:
    """How many an object of that size has."""
    return -(-size // piece)


@dataclass(slots=True)
class Cut:
    """Objects of a task, cut: their keys and pages piece by piece."""

    names: tuple[bytes, ...]
    counts: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    pages: list[Bytes] = field(default_factory=list)
    tails: list[tuple[int, Bytes, Bytes]] = field(default_factory=list)  # of an object: where its last bytes are, copy

    def whole(self, good: Sequence[bytes]) -> list[bool]:
        """Of each object whether all its pieces are good."""
        there, found, start = set(good), [], 0
        for count in self.counts:
            found.append(all(key in there for key in self.keys[start : start + count]))
            start += count
        return found

    def fill(self, good: Sequence[bool]) -> None:
        """Last pieces have come into copies: their bytes go where they belong."""
        for nth, place, copy in self.tails:
            if good[nth]:
                place[:] = copy[: place.nbytes]


def cut(names: Sequence[bytes], objects: Sequence[Bytes], piece: int, *, is_load: bool) -> Cut:
    """Objects as pages, in place as far as that goes."""
    made = Cut(tuple(names))
    for nth, (name, whole) in enumerate(zip(names, objects, strict=True)):
        count, full = num_pieces(whole.nbytes, piece), whole.nbytes // piece
        made.counts.append(count)
        made.keys += piece_keys(name, count)
        made.pages += list(whole[: full * piece].reshape(full, piece))
        if count > full:
            last, copy = whole[full * piece :], np.zeros(piece, np.uint8)
            made.pages.append(copy)
            if is_load:
                made.tails.append((nth, last, copy))
            else:
                copy[: last.nbytes] = last
    return made
