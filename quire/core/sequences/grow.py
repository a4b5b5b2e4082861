"""Grow: tokens behind those a sequence has, and slots for them, for a whole batch or not at all."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.plan import Plan
from quire.core.records.request import Int32, check_tokens
from quire.core.sequences.rows import Sequences, rows_of, sequences_of, wrong_rows
from quire.core.state.registry import Registry


def grow_batch(registry: Registry, sequences: Sequences, tokens: Int32 | None, num_tokens: int) -> Plan | None:
    """Append tokens and give them slots, all sequences or none; None when the device has no room."""
    setup = registry.setup
    rows = rows_of(setup, sequences)
    if tokens is not None:
        if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim not in (1, 2):
            check_tokens(tokens, "grow")
        if len(rows) == 0 or tokens.size % len(rows) or (tokens.ndim == 2 and len(tokens) != len(rows)):
            fact = f"{len(rows)} sequences and tokens of shape {tokens.shape}"
            raise InputError(say("grow", fact, "give each sequence the same number of tokens"))
        num_tokens = tokens.size // len(rows)
        if tokens.ndim == 2 or not tokens.flags.c_contiguous:
            tokens = np.ascontiguousarray(tokens).reshape(-1)
    elif type(num_tokens) is not int or not 1 <= num_tokens <= setup.config.max_length:
        raise InputError(
            say(f"grow by {shown(num_tokens)} tokens", f"it must be 1 to {setup.config.max_length}", "grow by less")
        )
    try:
        added = setup.store.grow(rows, tokens, num_tokens)
    except LookupError:
        raise wrong_rows(registry, "grow", rows) from None
    except RuntimeError:
        raise _unfinished(registry, rows) from None
    except ValueError:
        raise _too_long(registry, rows, num_tokens) from None
    return None if added < 0 else registry.take_plan()


def _unfinished(registry: Registry, rows: Int32) -> StateError:
    """Which prompt is not computed yet: what is reserved for it would be used up."""
    found = sequences_of(registry, rows)
    first = next((sequence for sequence in found if sequence.ran < sequence.length), found[0])
    fact = f"{first.ran} of its {first.length} tokens were handed out to be computed"
    return StateError(say(f"grow of sequence {shown(first.id)}", fact, "compute the rest of its prompt first"))


def _too_long(registry: Registry, rows: Int32, num_tokens: int) -> InputError:
    longest = max(sequences_of(registry, rows), key=lambda sequence: sequence.length)
    fact = f"it has {longest.length}, and max_length is {registry.setup.config.max_length}"
    return InputError(say(f"grow of sequence {shown(longest.id)} by {num_tokens} tokens", fact, "release it"))
