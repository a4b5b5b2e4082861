"""Prepared: a request made ready for its claim: tokens copied, numbers known, misuse refused. Holds nothing yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.records.encoder import Encoder
from quire.core.records.errors import InputError, say, shown
from quire.core.records.groups import LayerGroup, Marks
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.core.records.retain import to_ticks
from quire.core.records.span import cut_before
from quire.core.state.setup import Setup

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.core.store.interface import Chain

Purpose = Literal["compute", "decode"]


class Prepared:
    """A request made ready ahead of its claim: tokens copied, numbers known. `Cache.prepare` may run on any thread.

    It becomes one sequence: once admitted, its chain of tokens is the sequence's own. `request` is what was asked and
    `end` the first token that is not computed here: the prompt's length, or what room there is for.
    """

    __slots__ = (
        "_blocks", "_chain", "_decode_priority", "_decode_ticks", "_encoder", "_fits", "_keep", "_length", "_marks",
        "_peaks", "_priorities", "_reaches", "_scope", "_scope_key", "_seated", "_setup", "_spare", "_ticks", "_timed",
        "end", "request",
    )  # fmt: skip

    def __init__(self, setup: Setup, request: Request) -> None:
        size, retention, num_tokens = setup.block_size, request.retention, len(request.tokens)
        self._setup = setup
        self.request = request
        self._seated = False
        self._fits: Purpose | None = None  # it was seen that the whole cache has room for it, for this
        self._length = length = num_tokens if request.length is None else request.length
        self.end = num_tokens if length > num_tokens else length  # first token that is not computed here
        if request.uncut:
            _check_uncut(request, self.end)
        self._keep = setup.config.reuse and request.reuse
        self._scope: Scope | None = request.scope  # None: nobody else may reuse what it computes
        self._scope_key = request.scope.key
        self._reaches: tuple[int, ...]  # tokens each group makes room for
        self._marks: Marks | None = None  # with states only, and if they are kept
        self._encoder: Places | None = None
        if setup.only_full:
            if request.encoder is not None:
                _check_encoder(setup, request)
            reach = self._length + request.extra_tokens
            self._reaches = (reach,) * len(setup.layers)
            self._blocks = -(-reach // size)  # the same for every group
            self._spare = request.beams - 1 if self.end % size else 0  # beams share full pages, the last is copied
        else:
            self._prepare_groups(setup, request)
        tokens, words = request.tokens, request.words() if request.media or request.extra_ids is not None else None
        if self.end < num_tokens:
            tokens, words = tokens[: self.end], None if words is None else words[: self.end]
        self._chain: Chain = setup.chain(size, tokens, words)
        self._priorities: NDArray[np.int16] | None = None
        self._ticks: NDArray[np.int64] | None = None
        self._decode_priority, self._decode_ticks = DEFAULT_PRIORITY, -1
        self._timed = False
        if retention is not None:
            self._decode_priority, self._decode_ticks = retention.decode_priority, to_ticks(retention.decode_seconds)
            self._timed = retention._timed
            fits = self._length + request.extra_tokens <= setup.config.max_length  # else the claim refuses it
            if fits and (retention.ranges or max(self._reaches) > self._length):
                blocks = -(-max(self._reaches) // size)
                self._priorities, self._ticks = retention._of_blocks(blocks, self._length, size)

    def __repr__(self) -> str:
        return f"Prepared({shown(self.request)}, {'admitted' if self._seated else 'not admitted'})"

    def _prepare_groups(self, setup: Setup, request: Request) -> None:
        """What windows, states and cross attention need to know of the request."""
        size, reach = setup.block_size, self._length + request.extra_tokens
        self._peaks: dict[tuple[int, int, int], int] = {}  # by group, start and pages held; filled in when asked for
        if setup.state_groups and self._length != len(request.tokens):
            fact = f"it has {len(request.tokens)} tokens, and a state is only known where all of them were computed"
            raise InputError(
                say(f"request {shown(request.id)} with length {self._length}", fact, "leave length at None")
            )
        if request.snapshots and any(at % size for at in request.snapshots):
            fact = f"blocks have {size} tokens"
            raise InputError(
                say(f"snapshots {request.snapshots} of request {shown(request.id)}", fact, "use block edges")
            )
        if request.encoder is not None:
            _check_encoder(setup, request)
            self._encoder = Places(setup, request.encoder, self._keep)
            self._scope = request.encoder._scope(request.scope)
            self._scope_key = b"" if self._scope is None else self._scope.key
            self._keep = self._keep and self._scope is not None
        if setup.same_reach:
            self._reaches = (reach,) * len(setup.own_groups)
        else:
            self._reaches = tuple([self._reach_of(setup.layers[group], reach) for group in setup.own_groups])
        if self._keep and setup.state_groups:
            last = 0 if self.end % size else self.end  # where a prompt that goes on behind it may start
            self._marks = Marks(tuple(request.snapshots), self._last_edge(size), last, uncut=tuple(request.uncut))

    def _reach_of(self, layer: LayerGroup, usual: int) -> int:
        """Tokens that a group makes room for: a state keeps none behind the text, others may have room of their own."""
        if layer.current:
            return self._length
        return usual if layer.extra_tokens is None else self._length + layer.extra_tokens

    def part_at(self, junction: int) -> None:
        """A state shall be kept at this block edge too (0: at none); for the claim that it is admitted by."""
        if self._marks is not None and self._marks.junction != junction:
            self._marks = self._marks._replace(junction=junction)
            self._peaks.clear()

    @property
    def _new_tokens(self) -> int:
        """Tokens it may generate: no sequence becomes longer than max_length."""
        return max(0, min(self.request.max_new_tokens, self._setup.config.max_length - self._length))

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
        setup = self._setup
        for group in setup.state_groups if start < end else ():
            end = setup.layers[group]._next_stop(start, end, self._marks, setup.block_size)
        return end


class Places:
    """The encoder's part of a request: its stream, whole blocks."""

    __slots__ = ("blocks", "chain", "keep", "length")

    def __init__(self, setup: Setup, encoder: Encoder, keep: bool) -> None:
        tokens, words = encoder._places(setup.block_size)
        self.length = encoder.length
        self.blocks = len(tokens) // setup.block_size
        self.chain: Chain = setup.chain(setup.block_size, tokens, words)
        self.keep = keep and words is not None  # content without a name cannot be found by others


def _check_uncut(request: Request, end: int) -> None:
    if request.uncut[-1].end > end:
        ask = f"uncut span {request.uncut[-1]} of request {shown(request.id)}"
        fact = f"room is made for {end} of its {len(request.tokens)} tokens"
        raise InputError(say(ask, fact, "give a length that ends no uncut span, or leave the span out"))


def _check_encoder(setup: Setup, request: Request) -> None:
    if setup.cross is None and request.encoder is not None:
        name = f"request {shown(request.id)} with an encoder of {request.encoder.length}"
        raise InputError(say(name, "no layer group reads it", "leave the encoder out"))
