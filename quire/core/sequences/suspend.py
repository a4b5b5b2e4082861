"""Suspend: a preempted sequence gives up its pages, and a request goes on from there. Knows no engine's queues."""

from __future__ import annotations

import numpy as np

from quire.core.records.request import Int32, Request, check_tokens
from quire.core.sequences.release import release_sequence, tokens_of
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, running_of
from quire.core.state.setup import Setup


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
