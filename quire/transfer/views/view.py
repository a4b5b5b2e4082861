"""CacheView: what transfer asks of a cache, and the two things it gets: an offer and a landing. Knows no peers.

sender     offer(id, span) -> Offer      pages held; they are the source      release(offer)
receiver   want(request)  -> Landing     found pages held, room for the rest  commit(landing) or release(landing)
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np

from quire.core.records.groups import LayerGroup
from quire.core.records.request import Request
from quire.core.records.span import Span
from quire.transfer.geometry.slices import Places, Spans, num_pages
from quire.transfer.geometry.wants import wants


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Layer groups and tokens per block of a cache."""

    groups: tuple[LayerGroup, ...]
    block_size: int

    def bytes_of(self, spans: tuple[Spans, ...]) -> int:
        """Bytes that these blocks of every group take."""
        return sum(num_pages(s) * group.page_bytes for s, group in zip(spans, self.groups, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A sender's pages, held: the device slot of every block it can send."""

    length: int  # tokens of the prompt
    places: tuple[Places, ...]  # per group
    position: int  # tokens that its states stand after
    content: bytes  # names the prompt: equal on both sides, or nothing is sent
    ref: object  # the cache's own

    def __repr__(self) -> str:
        return f"Offer({self.length} tokens, pages {[int((places >= 0).sum()) for places in self.places]})"


@dataclass(frozen=True, slots=True, eq=False)
class Landing:
    """A receiver's prompt: what it needs and holds, group by group, and private pages for what it wants."""

    length: int
    needs: tuple[Spans, ...]
    held: tuple[Spans, ...]
    places: tuple[Places, ...]  # device slots of wanted blocks, and of nothing else
    start: int  # where computing would begin if the transfer fails
    content: bytes
    ref: object

    def __repr__(self) -> str:
        needs, held, wanted = (list(map(num_pages, spans)) for spans in (self.needs, self.held, self.wants))
        return f"Landing({self.length} tokens, needs {needs} pages, holds {held}, wants {wanted}, start {self.start})"

    @property
    def wants(self) -> tuple[Spans, ...]:
        """Need minus held, group by group."""
        return wants(self.needs, self.held)


class CacheView(Protocol):
    """The door between transfer and a cache. One caller at a time."""

    def shape(self) -> CacheShape:
        """Groups and block size."""
        ...

    def offer(self, id: Hashable, span: Span) -> Offer | None:
        """Hold the pages of these tokens of a live prompt; None: not now, try again.

        Groups that forget part of this prompt are offered when `span` is all of it. The sender's hits do not matter.
        """
        ...

    def want(self, request: Request, *, one_start: bool = False) -> Landing | None:
        """Hold what is there for a prompt that will only decode, then make room for the rest; None: not now.

        With `one_start` a peer will send all that is needed from the first missing block on, in every group: nothing
        from there on is held, and everything has a private page.
        """
        ...

    def commit(self, landing: Landing) -> None:
        """All of it has arrived, on all ranks, and no peer writes any more: make it findable, once.

        An error means that it was released instead.
        """
        ...

    def release(self, held: Offer | Landing) -> None:
        """Give pages up: an offer's hold, or a landing that did not arrive."""
        ...


def content_of(request: Request, length: int) -> bytes:
    """32 bytes that name a prompt: scope, tokens, extra ids, media and encoder."""
    name = blake2b(digest_size=32, person=b"quire-content")
    words = request.words()
    encoder = None if request.encoder is None else request.encoder.name()
    parts = (
        request.scope.key,
        np.ascontiguousarray(request.tokens[:length]).astype("<i4", copy=False).tobytes(),
        b"" if words is None else words[:length].astype("<u8", copy=False).tobytes(),
        encoder or b"",
    )
    for part in parts:
        name.update(len(part).to_bytes(8, "little"))
        name.update(part)
    return name.digest()
