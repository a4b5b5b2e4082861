"""Forgetting on purpose: along one request's tokens, or everything. Knows no sequences: theirs stay their own."""

from __future__ import annotations

from quire.core.prepare import ready_for
from quire.core.request import Request
from quire.core.state import State


def truncate(state: State, request: Request, keep: int) -> int:
    """Forget what is stored from the first block that starts at `keep` or later; keeping nothing, the encoder too."""
    (prepared,) = ready_for(state, [request], "compute")
    gone = 0
    root = state.roots.find(prepared.scope_key)
    if root >= 0:
        gone += state.store.truncate(root, prepared.chain, len(request.tokens), keep)
    if state.cross is not None and prepared.encoder is not None and not keep:
        chain = prepared.encoder.chain
        root = state.cross.roots.find(request.scope.key)
        gone += state.cross.store.truncate(root, chain, len(chain), 0) if root >= 0 else 0
    return gone


def clear(state: State) -> int:
    """Forget everything stored; returns pages."""
    gone = 0
    for stream in state.streams:
        gone += stream.store.clear()
        stream.roots.forget()
    return gone
