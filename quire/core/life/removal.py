"""Forgetting on purpose: along one request's tokens, or everything. Knows no sequences: theirs stay their own."""

from __future__ import annotations

from quire.core.admission.prepare import ready_for
from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.request import Request
from quire.core.state.registry import Registry


def truncate_tree(registry: Registry, request: Request, keep: int) -> int:
    """Forget what is stored from the first block that starts at `keep` or later; keeping nothing, the encoder too."""
    if not isinstance(keep, int) or keep < 0:
        raise InputError(say(f"truncate keeping {shown(keep)} tokens", "that is less than none", "keep at least 0"))
    if not isinstance(request, Request):
        raise InputError(say(f"truncate of a {type(request).__name__}", "it is no Request", "pass a Request"))
    _check_claims(registry, "truncate")
    setup = registry.setup
    (prepared,) = ready_for(setup, [request], "compute")
    gone = 0
    root = setup.roots.find(prepared._scope_key)
    if root >= 0:
        gone += setup.store.truncate(root, prepared._chain, len(request.tokens), min(keep, len(request.tokens)))
    if setup.cross is not None and prepared._encoder is not None and not keep:
        chain = prepared._encoder.chain
        root = setup.cross.roots.find(request.scope.key)
        gone += setup.cross.store.truncate(root, chain, len(chain), 0) if root >= 0 else 0
    return gone


def clear_tree(registry: Registry) -> int:
    """Forget everything stored; returns pages."""
    _check_claims(registry, "clear")
    gone = 0
    for stream in registry.setup.streams:
        gone += stream.store.clear()
        stream.roots.forget()
    return gone


def _check_claims(registry: Registry, verb: str) -> None:
    """What is claimed cannot be forgotten."""
    if registry.open_claims:
        fact = f"{len(registry.open_claims)} claims are open"
        raise StateError(say(verb, fact, "drop them first"))
