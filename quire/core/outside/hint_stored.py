"""Hint: what is stored along some tokens is ranked anew. Removes nothing, moves nothing; knows no sequences."""

from __future__ import annotations

from quire.core.records.errors import InputError, say, shown
from quire.core.records.identity import Scope
from quire.core.records.request import Int32, check_tokens
from quire.core.state.registry import Registry


def hint_pages(registry: Registry, tokens: Int32, scope: Scope, keep: int, back: int) -> int:
    """Tell the store when the blocks that start at `keep` or later come back; the pages it has of them."""
    check_tokens(tokens, "hint")
    if not isinstance(scope, Scope):
        raise InputError(say(f"hint in a {type(scope).__name__}", "it is not a Scope", "pass a Scope"))
    if type(keep) is not int or keep < 0:
        raise InputError(say(f"hint behind {shown(keep)} tokens", "that is less than none", "keep at least 0"))
    setup = registry.setup
    root = setup.roots.find(scope.key)
    if root < 0:
        return 0
    return setup.store.hint(root, setup.chain(setup.block_size, tokens, None), min(keep, len(tokens)), back)
