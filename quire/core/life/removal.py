"""Forgetting on purpose: along one request's tokens, or everything. Knows no sequences: theirs stay their own."""

from __future__ import annotations

from quire.core.admission.prepare import ready_for
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.request import Request
from quire.core.state.state import State


def truncate(state: State, request: Request, keep: int) -> int:
    """Forget what is stored from the first block that starts at `keep` or later; keeping nothing, the encoder too."""
    if not isinstance(keep, int) or keep < 0:
        raise InputError(say(f"truncate keeping {shown(keep)} tokens", "that is less than none", "keep at least 0"))
    if not isinstance(request, Request):
        raise InputError(say(f"truncate of a {type(request).__name__}", "it is no Request", "pass a Request"))
    _check_claims(state, "truncate")
    (prepared,) = ready_for(state, [request], "compute")
    gone = 0
    root = state.roots.find(prepared.scope_key)
    if root >= 0:
        gone += state.store.truncate(root, prepared.chain, len(request.tokens), min(keep, len(request.tokens)))
    if state.cross is not None and prepared.encoder is not None and not keep:
        chain = prepared.encoder.chain
        root = state.cross.roots.find(request.scope.key)
        gone += state.cross.store.truncate(root, chain, len(chain), 0) if root >= 0 else 0
    return gone


def clear(state: State) -> int:
    """Forget everything stored; returns pages."""
    _check_claims(state, "clear")
    gone = 0
    for stream in state.streams:
        gone += stream.store.clear()
        stream.roots.forget()
    return gone


def _check_claims(state: State, verb: str) -> None:
    """What is claimed cannot be forgotten."""
    if state.open_claims:
        fact = f"{len(state.open_claims)} claims are open"
        raise StateError(say(verb, fact, "admit or drop them first"))
