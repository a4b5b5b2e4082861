"""Grow: more of sequences is handed out, with its tokens or before these are known, for a whole batch or not at all."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.records.plan import Plan
from quire.core.records.request import Int32, check_tokens
from quire.core.sequences.rows import Sequences, check_not_ended, rows_of, sequences_of, wrong_rows
from quire.core.state.registry import Registry


def grow_batch(registry: Registry, sequences: Sequences, tokens: Int32 | None, num_tokens: int | Int32) -> Plan | None:
    """Append tokens and give them slots, or only give slots to the next ones, all sequences or none; None when the
    device has no room."""
    setup = registry.setup
    rows = rows_of(setup, sequences)
    if registry.in_flight.ending:
        check_not_ended(registry, "grow", rows)
    if isinstance(num_tokens, np.ndarray):
        _check_counts(num_tokens, tokens, len(rows), setup.config.max_length)
    elif tokens is not None:
        if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim not in (1, 2):
            check_tokens(tokens, "grow")
        if len(rows) == 0 or tokens.size % len(rows) or (tokens.ndim == 2 and len(tokens) != len(rows)):
            fact = f"{len(rows)} sequences and tokens of shape {tokens.shape}"
            cure = "give each the same number of tokens, or say how many with num_tokens, an array"
            raise InputError(say("grow", fact, cure))
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


def _check_counts(counts: Int32, tokens: Int32 | None, num_rows: int, most: int) -> None:
    """Each sequence gets as many tokens as its number says, those of all of them one after the other."""
    check_tokens(counts, "num_tokens of grow")
    if len(counts) != num_rows or (num_rows and not 0 <= counts.min() <= counts.max() <= most):
        fact = f"num_tokens are {shown(counts)} for {num_rows} sequences"
        raise InputError(say("grow", fact, f"pass one number for each, 0 to {most}"))
    if tokens is None:
        return
    check_tokens(tokens, "grow")
    if len(tokens) != (total := int(counts.sum())):
        fact = f"{len(tokens)} tokens are given, and num_tokens are {total} together"
        raise InputError(say("grow", fact, "pass the tokens of all sequences one after the other"))


def _unfinished(registry: Registry, rows: Int32) -> StateError:
    """Which prompt is not computed yet: what is reserved for it would be used up."""
    found = sequences_of(registry, rows)
    first = next((sequence for sequence in found if sequence.ran < sequence.length), found[0])
    fact = f"{first.ran} of its {first.length} tokens were handed out to be computed"
    return StateError(say(f"grow of sequence {shown(first.id)}", fact, "compute the rest of its prompt first"))


def _too_long(registry: Registry, rows: Int32, num_tokens: int | Int32) -> InputError:
    found = sequences_of(registry, rows)
    lengths = np.array([max(sequence.length, sequence.ran) for sequence in found])
    place = int(np.argmax(lengths + num_tokens))
    more = num_tokens if isinstance(num_tokens, int) else num_tokens.item(place)
    fact = f"it has {lengths[place]}, and max_length is {registry.setup.config.max_length}"
    return InputError(say(f"grow of sequence {shown(found[place].id)} by {more} tokens", fact, "release it"))
