"""Phase 1: find and hold every reusable page of a batch. Allocates, moves, reorders and emits nothing.

request --prepare--> Prepared --walk, claim--> Claim --admit--> Sequence
                                                 \\--drop----> nothing happened
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quire.core.config import DEFAULT_PRIORITY
from quire.core.errors import InputError, StateError, UnknownError, listed, say
from quire.core.request import Request
from quire.core.retain import to_ticks
from quire.core.span import Span
from quire.core.state import NO_ROOT, State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.core.store.twin import Chain, Hit

Purpose = Literal["compute", "decode"]
PURPOSES = frozenset(("compute", "decode"))


class Prepared:
    """A request made ready ahead of its claim: tokens copied, numbers known. `Cache.prepare` may run on any thread.

    It becomes one sequence: once admitted, its chain of tokens is the sequence's own.
    """

    __slots__ = (
        "blocks", "chain", "decode_retention", "end", "keep", "length", "priorities", "request", "scope_key", "seated",
        "spare", "state", "ticks", "timed",
    )  # fmt: skip

    def __init__(self, state: State, request: Request) -> None:
        size, retention, num_tokens = state.block_size, request.retention, len(request.tokens)
        self.state = state
        self.request = request
        self.seated = False
        self.length = num_tokens if request.length is None else request.length
        fits = self.length + request.extra_tokens <= state.config.max_length  # if not, it will be refused
        self.end = min(self.length, num_tokens)  # first token that is not computed here
        self.blocks = -(-(self.length + request.extra_tokens) // size)
        self.spare = request.beams - 1 if self.length % size else 0  # full pages are shared by beams
        self.keep = state.config.reuse and request.reuse
        self.scope_key = request.scope.key
        tokens, words = request.tokens, request.words() if request.media or request.extra_ids is not None else None
        if self.end < num_tokens:
            tokens, words = tokens[: self.end], None if words is None else words[: self.end]
        self.chain: Chain = state.chain(size, tokens, words)
        self.priorities: NDArray[np.int16] | None = None
        self.ticks: NDArray[np.int64] | None = None
        self.decode_retention = (DEFAULT_PRIORITY, -1)
        self.timed = False
        if retention is not None:
            self.decode_retention = (retention.decode_priority, to_ticks(retention.decode_seconds))
            self.timed = retention.timed
            if fits and (retention.ranges or request.extra_tokens):
                self.priorities, self.ticks = retention.of_blocks(self.blocks, self.length, size)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not admitted: which resource, how much it needs, how much there is."""

    request: Request
    reason: Literal["slots", "tokens", "sequences", "order"]  # order: one before it did not fit
    need: int
    have: int
    never: bool = False  # it cannot fit this cache, whatever is released

    def __str__(self) -> str:
        cure = "shorten it or enlarge the cache" if self.never else "release something or try in a later step"
        return f"request {self.request.id!r} needs {self.need} {self.reason}, {self.have} are there; {cure}"


class Claim:
    """One request's hold on its hit. `start` and the hit are final: nothing but a failed read can change them."""

    __slots__ = ("cold", "hit", "new", "num_tokens", "prepared", "purpose")

    def __init__(self, state: State, prepared: Prepared, purpose: Purpose) -> None:
        self.prepared = prepared
        self.purpose: Purpose = purpose
        self.look(state)

    def look(self, state: State) -> None:
        """Find the hit and hold it."""
        prepared, purpose = self.prepared, self.purpose
        self.hit = hit = walk(state, prepared, purpose)
        state.store.claim(hit)
        self.new = prepared.blocks - hit.blocks + prepared.spare  # pages; a partial hit needs one as well, to copy into
        self.cold = num_cold(state, hit)  # hit pages per group that must be onboarded
        self.num_tokens = prepared.end - hit.start if purpose == "compute" else 0  # left to compute

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.prepared.request

    @property
    def start(self) -> int:
        """First token to compute."""
        return self.hit.start

    @property
    def spans(self) -> tuple[Span, ...]:
        """Tokens each group holds for this request."""
        return tuple(Span(0, self.hit.start) for _ in self.cold)

    @property
    def slots_needed(self) -> tuple[int, ...]:
        """Device slots per group at most: new pages, onboards and, for a partial hit, the copy."""
        return tuple(cold + self.new for cold in self.cold)

    def __repr__(self) -> str:
        return f"Claim({self.request.id!r}, start={self.start})"


class Claims:
    """The claims of one call, in order. Admit them or drop them; leaving a `with` block drops what was not admitted."""

    __slots__ = ("_lock", "claims", "refused", "settled", "state")

    def __init__(self, state: State, claims: list[Claim], refused: list[Refusal]) -> None:
        self.state = state
        self._lock = state.lock
        self.claims = claims
        self.refused = refused
        self.settled = False

    def __len__(self) -> int:
        return len(self.claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __getitem__(self, place: int) -> Claim:
        return self.claims[place]

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.settled:
            self.drop()

    def drop(self) -> None:
        """Give back what was not admitted; afterwards it is as if it had never been asked for."""
        with self._lock:
            if not self.settled:
                self.drop_from(0)
                self.close()

    def drop_from(self, place: int) -> list[Claim]:
        """Give back the claims from `place` on, in reverse order, and return them."""
        dropped = self.claims[place:]
        for claim in reversed(dropped):
            self.state.store.unclaim(claim.hit)
        del self.claims[place:]
        return dropped

    def close(self) -> None:
        """No claim is open any more."""
        self.settled = True
        self.state.open_claims.pop(self, None)


def claim_batch(state: State, requests: Iterable[Request | Prepared], purpose: Purpose) -> Claims:
    """Hold every reusable page of the batch before any slot moves."""
    ready = ready_for(state, requests, purpose)
    _check_ids(state, ready)
    refused: list[Refusal] = []
    claims = [Claim(state, prepared, purpose) for prepared in ready if not _never_fits(state, prepared, refused)]
    batch = Claims(state, claims, refused)
    state.open_claims[batch] = None
    return batch


def ready_for(state: State, requests: Iterable[Request | Prepared], purpose: Purpose) -> list[Prepared]:
    """Prepared requests, each fit for one claim in this cache."""
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        raise InputError(say(f"purpose {purpose!r}", "it is unknown", "use 'compute' or 'decode'"))
    many = requests if type(requests) is list else listed("a batch of requests", requests)
    return [Prepared(state, item) if type(item) is Request else _checked(state, item) for item in many]


def _checked(state: State, item: Request | Prepared) -> Prepared:
    """What was prepared ahead, or what is no plain Request."""
    if isinstance(item, Request):
        return Prepared(state, item)
    if not isinstance(item, Prepared):
        raise InputError(say(f"claim of a {type(item).__name__}", "it is no Request", "pass quire.Request objects"))
    name = f"prepared request {item.request.id!r}"
    if item.state is not state:
        raise UnknownError(say(name, "another cache prepared it", "prepare it with the cache that claims it"))
    if item.seated:
        fact = "it was admitted before, and its tokens are that sequence's"
        raise StateError(say(name, fact, "prepare the request again"))
    return item


def walk(state: State, prepared: Prepared, purpose: Purpose) -> Hit:
    """What is there for this request; changes nothing."""
    usable = prepared.end - (purpose == "compute")  # the last prompt token is always computed: it makes the logits
    root = state.roots.find(prepared.scope_key) if prepared.keep else NO_ROOT
    return state.store.walk(prepared.chain, root, usable, state.policy)


def num_cold(state: State, hit: Hit) -> tuple[int, ...]:
    """Pages of the hit per group that have no device copy."""
    if not hit.blocks:
        return state.nothing
    return tuple([hit.num_cold(group) for group in state.groups])


def _never_fits(state: State, prepared: Prepared, refused: list[Refusal]) -> bool:
    """A request larger than the whole cache is refused at once, with the numbers."""
    request = prepared.request
    longest = prepared.length + max(request.extra_tokens, request.max_new_tokens)
    if longest > state.config.max_length:
        refused.append(Refusal(request, "tokens", longest, state.config.max_length, never=True))
        return True
    need = _worst_case(prepared, -(-longest // state.block_size), state.block_size)
    if need > state.room:
        refused.append(Refusal(request, "slots", need, state.room, never=True))
    return need > state.room


def _worst_case(prepared: Prepared, total: int, block_size: int) -> int:
    """Device pages at its longest, when it shares nothing: prompt once, what follows once per beam."""
    beams = prepared.request.beams
    if beams == 1:
        return total
    shared = prepared.length // block_size
    return max(shared + (total - shared) * beams, prepared.blocks + prepared.spare)


def _check_ids(state: State, ready: list[Prepared]) -> None:
    seen: set[Hashable] = set()
    for prepared in ready:
        name = prepared.request.id
        if name in state.sequences:
            raise StateError(
                say(f"claim for request {name!r}", "a sequence of that id is live", "release it or use another id")
            )
        if name in seen:
            raise InputError(
                say(f"claim for request {name!r}", "it is twice in the batch", "give every request its own id")
            )
        seen.add(name)
