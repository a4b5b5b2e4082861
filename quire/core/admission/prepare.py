"""Prepared: a request made ready for its claim: tokens copied, numbers known, misuse refused. Holds nothing yet."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Literal

from quire.core.records.config import DEFAULT_PRIORITY
from quire.core.records.encoder import Encoder
from quire.core.records.errors import InputError, StateError, UnknownError, listed, say, shown
from quire.core.records.groups import Marks
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.core.records.retain import to_ticks
from quire.core.state.state import State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.core.store.twin import Chain

Purpose = Literal["compute", "decode"]
PURPOSES = frozenset(("compute", "decode"))


class Prepared:
    """A request made ready ahead of its claim: tokens copied, numbers known. `Cache.prepare` may run on any thread.

    It becomes one sequence: once admitted, its chain of tokens is the sequence's own.
    """

    __slots__ = (
        "blocks", "chain", "decode_priority", "decode_ticks", "encoder", "end", "keep", "length", "marks", "peaks",
        "priorities", "reaches", "request", "scope", "scope_key", "seated", "spare", "state", "ticks", "timed",
    )  # fmt: skip

    def __init__(self, state: State, request: Request) -> None:
        size, retention, num_tokens = state.block_size, request.retention, len(request.tokens)
        self.state = state
        self.request = request
        self.seated = False
        self.length = num_tokens if request.length is None else request.length
        self.end = min(self.length, num_tokens)  # first token that is not computed here
        self.keep = state.config.reuse and request.reuse
        self.scope: Scope | None = request.scope  # None: what it computes is nobody else's
        self.scope_key = request.scope.key
        self.reaches: tuple[int, ...]  # tokens each group makes room for
        self.marks: Marks | None = None
        self.encoder: Places | None = None
        if state.plain:
            if request.encoder is not None:
                _check_encoder(state, request)
            reach = self.length + request.extra_tokens
            self.reaches = (reach,) * len(state.layers)
            self.blocks = -(-reach // size)  # of every group alike, and
            self.spare = request.beams - 1 if self.end % size else 0  # for beams: full pages are shared
        else:
            self._meet_groups(state, request)
        tokens, words = request.tokens, request.words() if request.media or request.extra_ids is not None else None
        if self.end < num_tokens:
            tokens, words = tokens[: self.end], None if words is None else words[: self.end]
        self.chain: Chain = state.chain(size, tokens, words)
        self.priorities: NDArray[np.int16] | None = None
        self.ticks: NDArray[np.int64] | None = None
        self.decode_priority, self.decode_ticks = DEFAULT_PRIORITY, -1
        self.timed = False
        if retention is not None:
            self.decode_priority, self.decode_ticks = retention.decode_priority, to_ticks(retention.decode_seconds)
            self.timed = retention.timed
            fits = self.length + request.extra_tokens <= state.config.max_length  # if not, it will be refused
            if fits and (retention.ranges or max(self.reaches) > self.length):
                blocks = -(-max(self.reaches) // size)
                self.priorities, self.ticks = retention.of_blocks(blocks, self.length, size)

    def __repr__(self) -> str:
        return f"Prepared({shown(self.request)}, {'admitted' if self.seated else 'not admitted'})"

    def _meet_groups(self, state: State, request: Request) -> None:
        """What groups other than full ones need to know of it."""
        size, layers = state.block_size, state.layers[: state.own_groups.stop]
        self.peaks: dict[tuple[int, int], int] = {}  # by group and start, as they were asked for
        if state.states and self.length != len(request.tokens):
            fact = f"it has {len(request.tokens)} tokens, and a state is only known where all of them were computed"
            raise InputError(
                say(f"request {shown(request.id)} with length {self.length}", fact, "leave length at None")
            )
        if any(at % size for at in request.snapshots):
            fact = f"blocks have {size} tokens"
            raise InputError(
                say(f"snapshots {request.snapshots} of request {shown(request.id)}", fact, "use block edges")
            )
        if request.encoder is not None:
            _check_encoder(state, request)
            self.encoder = Places(state, request.encoder, self.keep)
            self.scope = request.encoder.scope(request.scope)
            self.scope_key = b"" if self.scope is None else self.scope.key
            self.keep = self.keep and self.scope is not None
        extras = (request.extra_tokens if layer.extra_tokens is None else layer.extra_tokens for layer in layers)
        self.reaches = tuple(
            self.length if layer.current else self.length + extra for layer, extra in zip(layers, extras, strict=True)
        )
        edge = (self.end - 1) // size * size  # the last one that the same prompt may start from
        self.marks = Marks(request.snapshots, edge) if self.keep else None

    @property
    def new_tokens(self) -> int:
        """Tokens it may generate: no sequence becomes longer than max_length."""
        return max(0, min(self.request.max_new_tokens, self.state.config.max_length - self.length))

    def stop_after(self, start: int, end: int) -> int:
        """Where a step that begins at `start` must end at the latest."""
        state = self.state
        if start >= end:
            return end
        return min(layer.next_stop(start, end, self.marks, state.block_size) for layer in state.layers)


class Places:
    """The encoder's part of a request: its stream, whole blocks."""

    __slots__ = ("blocks", "chain", "keep", "length")

    def __init__(self, state: State, encoder: Encoder, keep: bool) -> None:
        tokens, words = encoder.places(state.block_size)
        self.length = encoder.length
        self.blocks = len(tokens) // state.block_size
        self.chain: Chain = state.chain(state.block_size, tokens, words)
        self.keep = keep and words is not None  # content without a name is nobody else's


def _check_encoder(state: State, request: Request) -> None:
    if state.cross is None and request.encoder is not None:
        name = f"request {shown(request.id)} with an encoder of {request.encoder.length}"
        raise InputError(say(name, "no layer group reads it", "add LayerGroup(cross=True), or leave the encoder out"))


def ready_for(state: State, requests: Iterable[Request | Prepared], purpose: Purpose) -> list[Prepared]:
    """Prepared requests, each fit for one claim in this cache."""
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        raise InputError(say(f"purpose {shown(purpose)}", "it is unknown", "use 'compute' or 'decode'"))
    many = requests if type(requests) is list else listed("a batch of requests", requests)
    return [Prepared(state, item) if type(item) is Request else _checked(state, item) for item in many]


def _checked(state: State, item: Request | Prepared) -> Prepared:
    """What was prepared ahead, or what is no plain Request."""
    if isinstance(item, Request):
        return Prepared(state, item)
    if not isinstance(item, Prepared):
        raise InputError(say(f"claim of a {type(item).__name__}", "it is no Request", "pass quire.Request objects"))
    name = f"prepared request {shown(item.request.id)}"
    if item.state is not state:
        raise UnknownError(say(name, "another cache prepared it", "prepare it with the cache that claims it"))
    if item.seated:
        fact = "it was admitted before, and its tokens are that sequence's"
        raise StateError(say(name, fact, "prepare the request again"))
    return item


def check_ids(state: State, ready: list[Prepared]) -> None:
    """Every request of a batch has an id of its own, and no live sequence has it."""
    seen: set[Hashable] = set()
    for prepared in ready:
        name = prepared.request.id
        if name in state.sequences:
            raise StateError(
                say(f"claim for request {shown(name)}", "a sequence of that id is live", "release it or use another id")
            )
        if name in seen:
            raise InputError(
                say(f"claim for request {shown(name)}", "it is twice in the batch", "give every request its own id")
            )
        seen.add(name)
