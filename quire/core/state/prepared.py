"""Prepared: a request made ready for its claim: tokens copied, numbers known, misuse refused. Holds nothing yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.records.encoder import Encoder, places_of, scope_over
from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LayerGroup, Marks, next_stop
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.core.records.retain import is_timed, retained_blocks, to_ticks
from quire.core.records.span import cut_before
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.core.content.content_index import NamedText
    from quire.core.store.interface import Chain

Purpose = Literal["compute", "decode"]
MOST_TOKENS = 1 << 22  # of all requests together that wait for their next claim


class ReadyRequest:
    """A request with everything that its claim needs: what `Prepared` shows of it, and what is the cache's own.

    It becomes one sequence: once admitted, its chain of tokens is the sequence's own.
    """

    __slots__ = (
        "blocks", "chain", "decode_priority", "decode_ticks", "encoder", "end", "fits", "keep", "length", "marks",
        "named", "peaks", "priorities", "reaches", "request", "scope", "scope_key", "seated", "setup", "spare", "text",
        "ticks", "timed",
    )  # fmt: skip

    text: NamedText | None  # its chunks by content, once receipts have looked for them

    def __init__(self, setup: Setup, request: Request) -> None:
        size, retention, num_tokens = setup.block_size, request.retention, len(request.tokens)
        self.setup, self.request = setup, request
        self.seated, self.text = False, None
        self.fits: Purpose | None = None  # it was seen that the whole cache has room for it, for this
        self.length = length = num_tokens if request.length is None else request.length
        self.end = num_tokens if length > num_tokens else length  # first token that is not computed here
        if request.uncut:
            _check_uncut(request, self.end)
        self.keep = setup.config.reuse and request.reuse
        self.scope: Scope | None = request.scope  # None: no other request may reuse what it computes
        self.scope_key = request.scope.key
        self.reaches: tuple[int, ...]  # tokens each group makes room for
        self.marks: Marks | None = None  # with states only, and if they are kept
        self.named: tuple[int, ...] = ()  # block edges, in blocks, where others may go on from
        self.encoder: Places | None = None
        if setup.only_full:
            if request.encoder is not None:
                _check_encoder(setup, request)
            reach = self.length + request.extra_tokens
            self.reaches = (reach,) * len(setup.layers)
            self.blocks = -(-reach // size)  # the same for every group
            self.spare = request.beams - 1 if self.end % size else 0  # beams share full pages, the last is copied
        else:
            self._prepare_groups(setup, request)
        tokens, words = request.tokens, request.words() if request.media or request.extra_ids is not None else None
        if self.end < num_tokens:
            tokens, words = tokens[: self.end], None if words is None else words[: self.end]
        self.chain: Chain = setup.chain(size, tokens, words)
        self.priorities: NDArray[np.int16] | None = None
        self.ticks: NDArray[np.int64] | None = None
        self.decode_priority, self.decode_ticks = DEFAULT_PRIORITY, -1
        self.timed = False
        if retention is not None:
            self.decode_priority, self.decode_ticks = retention.decode_priority, to_ticks(retention.decode_seconds)
            self.timed = is_timed(retention)
            fits = self.length + request.extra_tokens <= setup.config.max_length  # else the claim refuses it
            if fits and (retention.ranges or max(self.reaches) > self.length):
                blocks = -(-max(self.reaches) // size)
                self.priorities, self.ticks = retained_blocks(retention, blocks, self.length, size)

    def _prepare_groups(self, setup: Setup, request: Request) -> None:
        """What windows, states and cross attention need to know of the request."""
        size, reach = setup.block_size, self.length + request.extra_tokens
        self.peaks: dict[tuple[int, int, int], int] = {}  # by group, start and pages held; filled in when asked for
        if setup.state_groups and self.length != len(request.tokens):
            fact = f"it has {len(request.tokens)} tokens, and a state is only known where all of them were computed"
            raise InputError(
                say(f"request {shown(request.id)} with length {self.length}", fact, "leave length at None")
            )
        if request.resume_points:
            self.named = tuple(sorted({at // size for at in request.resume_points if size <= at <= self.end}))
        if request.encoder is not None:
            _check_encoder(setup, request)
            self.encoder = Places(setup, request.encoder, self.keep)
            self.scope = scope_over(request.encoder, request.scope)
            self.scope_key = b"" if self.scope is None else self.scope.key
            self.keep = self.keep and self.scope is not None
        if setup.same_reach:
            self.reaches = (reach,) * len(setup.own_groups)
        else:
            self.reaches = tuple([self._reach_of(setup.layers[group], reach) for group in setup.own_groups])
        if self.keep and setup.state_groups:
            last = 0 if self.end % size else self.end  # where a prompt that goes on behind it may start
            named = tuple(block * size for block in self.named)
            self.marks = Marks(named, self._last_edge(size), last, uncut=tuple(request.uncut))

    def _reach_of(self, layer: LayerGroup, usual: int) -> int:
        """Tokens that a group makes room for: a state keeps none behind the text, others may have room of their own."""
        if layer.current:
            return self.length
        return usual if layer.extra_tokens is None else self.length + layer.extra_tokens

    def part_at(self, junction: int) -> None:
        """A state shall be kept at this block edge too (0: at none); for the claim that it is admitted by."""
        if self.marks is not None and self.marks.junction != junction:
            self.marks = self.marks._replace(junction=junction)
            self.peaks.clear()

    @property
    def new_tokens(self) -> int:
        """Tokens it may generate: no sequence becomes longer than max_length."""
        return max(0, min(self.request.max_new_tokens, self.setup.config.max_length - self.length))

    def _last_edge(self, size: int) -> int:
        """The last block edge from which the same prompt may start, and at which it may be cut."""
        edge = (self.end - 1) // size * size
        while edge and (cut := self.cut_before(edge)) < edge:
            edge = cut // size * size
        return edge

    def cut_before(self, place: int) -> int:
        """Where a step that would end at `place`, inside the prompt, ends instead: there, or before an uncut span."""
        uncut = self.request.uncut
        return cut_before(place, tuple(uncut)) if uncut else place

    def stop_after(self, start: int, end: int) -> int:
        """Where a step that begins at `start` must end at the latest."""
        setup = self.setup
        for group in setup.state_groups if start < end else ():
            end = next_stop(setup.layers[group], start, end, self.marks, setup.block_size)
        return end


class Prepared:
    """A request made ready ahead of its claim: tokens copied, numbers known. `Cache.prepare` may run on any thread.

    It becomes one sequence: once admitted, its chain of tokens is the sequence's own. `request` is what was asked and
    `end` the first token that is not computed here: the prompt's length, or what room there is for.
    """

    __slots__ = ("_ready",)

    def __init__(self, ready: ReadyRequest) -> None:
        self._ready = ready

    @property
    def request(self) -> Request:
        """What was asked."""
        return self._ready.request

    @property
    def end(self) -> int:
        """The first token that is not computed here."""
        return self._ready.end

    def part_at(self, junction: int) -> None:
        """A state shall be kept at this block edge too (0: at none); for the claim that it is admitted by."""
        self._ready.part_at(junction)

    def cut_before(self, place: int) -> int:
        """Where a step that would end at `place`, inside the prompt, ends instead: there, or before an uncut span."""
        return self._ready.cut_before(place)

    def stop_after(self, start: int, end: int) -> int:
        """Where a step that begins at `start` must end at the latest."""
        return self._ready.stop_after(start, end)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prepared) and self._ready is other._ready

    def __hash__(self) -> int:
        return hash(self._ready)

    def __repr__(self) -> str:
        return f"Prepared({shown(self.request)}, {'admitted' if self._ready.seated else 'not admitted'})"


def ready_of(prepared: Prepared) -> ReadyRequest:
    """What the cache keeps behind the handle."""
    return prepared._ready


class Places:
    """The encoder's part of a request: its stream, whole blocks."""

    __slots__ = ("blocks", "chain", "keep", "length")

    def __init__(self, setup: Setup, encoder: Encoder, keep: bool) -> None:
        tokens, words = places_of(encoder, setup.block_size)
        self.length = encoder.length
        self.blocks = len(tokens) // setup.block_size
        self.chain: Chain = setup.chain(setup.block_size, tokens, words)
        self.keep = keep and words is not None  # content without a name cannot be found by others


class Waiting:
    """Requests that were claimed and not admitted, ready for their next claim; the longest kept go when they are many.

    An equal request is another.
    """

    __slots__ = ("num_tokens", "ready")

    def __init__(self) -> None:
        self.ready: OrderedDict[int, ReadyRequest] = OrderedDict()  # by the id of a request, which stays alive here
        self.num_tokens = 0

    def take(self, request: Request) -> ReadyRequest | None:
        """What was kept of a request; its caller claims it, so it is no longer kept."""
        found = self.ready.pop(id(request), None)
        if found is not None:
            self.num_tokens -= len(found.chain)
        return found

    def keep(self, refused: Iterable[ReadyRequest]) -> None:
        """Keep requests that were not admitted until they are claimed again, the latest of them."""
        for ready in refused:
            name = id(ready.request)
            if not ready.seated and name not in self.ready:
                self.ready[name] = ready
                self.num_tokens += len(ready.chain)
        while self.num_tokens > MOST_TOKENS:
            _, ready = self.ready.popitem(last=False)
            self.num_tokens -= len(ready.chain)


def _check_uncut(request: Request, end: int) -> None:
    if request.uncut[-1].end > end:
        ask = f"uncut span {request.uncut[-1]} of request {shown(request.id)}"
        fact = f"room is made for {end} of its {len(request.tokens)} tokens"
        raise InputError(say(ask, fact, "give a length that ends no uncut span, or leave the span out"))


def _check_encoder(setup: Setup, request: Request) -> None:
    if setup.cross is None and request.encoder is not None:
        name = f"request {shown(request.id)} with an encoder of {request.encoder.length}"
        raise InputError(say(name, "no layer group reads it", "leave the encoder out"))
