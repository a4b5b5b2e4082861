"""LayerGroup: what one group of layers reads. The only file that knows kinds of attention; it knows no pages."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import InputError, say
from quire.core.span import Span

ALL = -1  # as a tail: every block up to here


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a reading rule, hence a block table. Full attention: every token before it is read."""

    name: str = "full"
    page_bytes: int = 0  # bytes of one page; 0: the cache is used for decisions only
    planes: int = 0  # equal strips of a page (layers x K/V), each block_size tokens long; 0: a page cannot be split

    def __post_init__(self) -> None:
        if not all(type(number) is int and number >= 0 for number in (self.page_bytes, self.planes)):
            fact = f"page_bytes {self.page_bytes!r} and planes {self.planes!r}"
            raise InputError(say(f"layer group {self.name!r}", fact, "give numbers >= 0"))
        if self.planes and self.page_bytes % self.planes:
            fact = f"{self.page_bytes} bytes do not divide into {self.planes} planes"
            raise InputError(say(f"layer group {self.name!r}", fact, "make page_bytes a multiple of planes"))

    @property
    def tail(self) -> int:
        """Blocks right before a boundary that must be there to resume at it; ALL for every one."""
        return ALL

    @property
    def sink(self) -> int:
        """Leading blocks that must be there as well."""
        return 0

    def live_blocks(self, length: int, block_size: int) -> tuple[Span, ...]:
        """Blocks that the query at position `length` may read, when KV of `length` tokens exists."""
        return (Span(0, -(-length // block_size)),)

    def needs_at(self, length: int, block_size: int) -> tuple[Span, ...]:
        """Blocks that must be present to resume, or to decode, at `length`."""
        return self.live_blocks(length, block_size)

    def stored_at(self, span: Span, block_size: int) -> Span:
        """Blocks that get a page of their own when the tokens of `span` are computed."""
        return Span(span.start // block_size, -(-span.end // block_size) if span else span.start // block_size)
