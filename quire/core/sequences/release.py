"""Release: a sequence gives up its pages; suspend: the same, with the request that goes on from there."""

from __future__ import annotations

import numpy as np

from quire.core.records.request import Int32, Request, check_tokens
from quire.core.state.registry import Registry
from quire.core.state.sequence import RELEASED, Sequence, own_row, running_of
from quire.core.state.setup import Setup


def release_sequence(registry: Registry, sequence: Sequence, store: bool) -> None:
    """Give up its pages, the deepest first; what was computed stays findable unless `store` is False."""
    setup = registry.setup
    row = own_row(setup, sequence)
    now = setup.now()  # before the first change: a caller's clock may raise
    setup.store.release(row, store, now)
    if setup.cross is not None and setup.cross.has(row):
        setup.cross.store.release(row, store, now)
    del registry.sequences[sequence.id]
    registry.commit_checked.pop(row, None)
    registry.free_rows.append(row)
    sequence.row = RELEASED


def suspend_sequence(registry: Registry, sequence: Sequence, tokens: Int32 | None) -> Request:
    """Release it with everything computed kept findable; claiming the returned request goes on from there."""
    if tokens is not None:
        check_tokens(tokens, "suspend")
    request = suspended(registry.setup, sequence, tokens)
    release_sequence(registry, sequence, True)
    return request


def suspended(setup: Setup, sequence: Sequence, more: Int32 | None = None) -> Request:
    """The request that goes on where a sequence is now, with `more` tokens behind those it has."""
    tokens, kept = tokens_of(setup, sequence), running_of(sequence).kept
    return sequence.request.continued(tokens if more is None else np.concatenate([tokens, more]), kept)


def tokens_of(setup: Setup, sequence: Sequence) -> Int32:
    """Every token so far (a copy)."""
    return setup.store.tokens(own_row(setup, sequence))
