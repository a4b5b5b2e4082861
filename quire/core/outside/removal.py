"""Forgetting on purpose: along one request's tokens, one scope, or everything. Rows that use a page keep it,
unfindable.

Claims that are open keep what they were promised; what becomes of them is not stored. Knows no sequences.
"""

from __future__ import annotations

from quire.core.admission.prepare import ready_for
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.identity import Scope
from quire.core.records.request import Request
from quire.core.state.claim import Promise
from quire.core.state.held_hit import freeze
from quire.core.state.prepared import ReadyRequest
from quire.core.state.registry import Registry
from quire.core.state.sequence import shared_scope
from quire.core.state.stream import TokenStream
from quire.core.state.writing import Writing


def truncate_tree(registry: Registry, request: Request, keep: int) -> int:
    """Forget what is stored from the first block that starts at `keep` or later; keeping nothing, the encoder too."""
    if not isinstance(keep, int) or keep < 0:
        raise InputError(say(f"truncate keeping {shown(keep)} tokens", "that is less than none", "keep at least 0"))
    if not isinstance(request, Request):
        raise InputError(say(f"truncate of a {type(request).__name__}", "it is not a Request", "pass a Request"))
    setup = registry.setup
    (prepared,) = ready_for(setup, [request], "compute")
    block = -(-keep // setup.block_size)  # the first that goes
    for claim in _frozen(registry):
        claim.is_cut |= claim.hit.blocks > block and _is_along(claim.prepared, prepared, block)
        claim.is_cross_cut |= not keep and _hears(claim, prepared)
    for writing in registry.open_writers.values():
        writing.is_cut |= _goes_through(writing, prepared, block)
    gone = 0
    root = setup.roots.find(prepared.scope_key)
    if root >= 0:
        gone += setup.store.truncate(root, prepared.chain, len(request.tokens), min(keep, len(request.tokens)))
    if setup.cross is not None and prepared.encoder is not None and not keep:
        chain = prepared.encoder.chain
        root = setup.cross.roots.find(request.scope.key)
        gone += setup.cross.store.truncate(root, chain, len(chain), 0) if root >= 0 else 0
    return gone


def clear_tree(registry: Registry, store_again: bool = False) -> int:
    """Forget everything stored; returns pages. With `store_again` the sequences that stored go on to."""
    if not isinstance(store_again, bool):
        raise InputError(say("clear", f"store_again is {shown(store_again)}", "pass True or False"))
    if store_again and (num_open := sum(map(len, registry.open_claims.values()))):
        fact = f"claims of {num_open} requests are open, on pages that would be stored anew"
        raise StateError(say("clear with store_again", fact, "admit or drop them first"))
    storing = _storing(registry) if store_again else []
    for claim in _frozen(registry):
        claim.is_cut = claim.is_cross_cut = True
    for writing in registry.open_writers.values():
        writing.is_cut = True
    gone = 0
    for stream in registry.setup.streams:
        gone += stream.store.clear()
        stream.roots.forget()
    registry.sessions.clear()
    if registry.content is not None:
        registry.content.clear()
    for stream, row, scope in storing:
        stream.store.commit_again(row, stream.roots.make(scope.key, scope))
    return gone


def _storing(registry: Registry) -> list[tuple[TokenStream, int, Scope]]:
    """Rows whose blocks become findable, and where; of each stream. A row may end with a step in flight."""
    found: list[tuple[TokenStream, int, Scope]] = []
    rows = [(sequence.row, sequence) for sequence in registry.sequences.values()]
    rows += [(row, ending.sequence) for row, ending in registry.in_flight.ending.items()]
    for row, sequence in rows:
        scopes = (shared_scope(sequence), sequence.request.scope)
        for stream, scope in zip(registry.setup.streams, scopes, strict=False):
            if scope is not None and stream.has(row) and stream.store.commits(row):
                found.append((stream, row, scope))
    return found


def forget_scope(registry: Registry, scope: Scope) -> int:
    """Forget what is stored in every scope that agrees with all that this one names; returns pages."""
    if not isinstance(scope, Scope):
        raise InputError(say(f"forget of a {type(scope).__name__}", "it is not a Scope", "pass a Scope"))
    if scope == Scope():
        raise InputError(say("forget of a scope that names nothing", "every scope is like it", "use clear()"))
    for claim in _frozen(registry):
        if scope.covers(claim.request.scope):
            claim.is_cut = claim.is_cross_cut = True
    for writing in registry.open_writers.values():
        writing.is_cut |= scope.covers(writing.prepared.request.scope)
    gone = 0
    for stream in registry.setup.streams:
        gone += sum([stream.store.forget(root) for root in stream.roots.covered_by(scope)])
        stream.roots.sweep()
    if registry.content is not None:
        registry.content.clear()  # it does not know which scope a piece is of
    return gone


def _frozen(registry: Registry) -> list[Promise]:
    """Before blocks go: open claims and finds are kept by their pages from now on; the claims."""
    claims = [claim for claims in registry.open_claims.values() for claim in claims]
    for claim in claims:
        freeze(registry.setup, claim.hit, claim.cross_hit)
    for kept in registry.open_finds.values():
        freeze(registry.setup, kept.hit, kept.cross_hit)
    return claims


def _is_along(other: ReadyRequest, gone: ReadyRequest, block: int) -> bool:
    """Whether a request's text is that of a truncated one up to and including this block, which goes."""
    if other.scope_key != gone.scope_key or min(other.end, gone.end) < (block + 1) * other.setup.block_size:
        return False
    return other.chain.key(block) == gone.chain.key(block)


def _goes_through(writing: Writing, gone: ReadyRequest, block: int) -> bool:
    """The same of a writer's text: what comes of it later is forgotten too."""
    size = gone.setup.block_size
    if writing.prepared.scope_key != gone.scope_key or min(len(writing.chain), gone.end) < (block + 1) * size:
        return False
    return writing.chain.key(block) == gone.chain.key(block)


def _hears(claim: Promise, gone: ReadyRequest) -> bool:
    """Whether a claim has found something of the encoder's input that goes."""
    mine, places = claim.prepared.encoder, gone.encoder
    if mine is None or places is None or claim.cross_hit is None or not claim.cross_hit.blocks:
        return False
    return claim.request.scope == gone.request.scope and mine.chain.key(0) == places.chain.key(0)
