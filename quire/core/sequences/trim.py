"""Trim: the last tokens of sequences are taken back, as far as they are their own and no other row reads them."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import InputError, StateError, listed, say, shown
from quire.core.records.request import Int32
from quire.core.sequences.rows import Sequences, check_landed, rows_of, sequences_of, wrong_rows
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row, running_of
from quire.core.state.setup import Setup


def trim_batch(registry: Registry, sequences: Sequences, num_tokens: int | Int32) -> int:
    """Take back the last tokens (rejected drafts) of one sequence or of several; committed ones stay. Returns pages
    given back. The first that cannot be trimmed refuses all."""
    if isinstance(sequences, Sequence):
        many = [sequences]
        own_row(registry.setup, sequences)
    else:
        given_as = sequences if isinstance(sequences, np.ndarray) else listed("sequences", sequences)
        rows = rows_of(registry.setup, given_as)
        many = sequences_of(registry, rows) if isinstance(given_as, np.ndarray) else given_as
        if len(many) != len(rows) or len({*rows.tolist()}) != len(rows):
            raise wrong_rows(registry, "trim", rows)
    if registry.in_flight.busy:
        check_landed(registry, "trim", np.array([sequence.row for sequence in many], np.int32))
    counts = _counts(num_tokens, len(many))
    for sequence, count in zip(many, counts, strict=True):
        _check(registry, sequence, count)
    given = 0
    for sequence, count in zip(many, counts, strict=True):
        running, length = running_of(sequence), sequence.length - count
        running.kept = min(running.kept, length)
        sequence.prompt_end = min(sequence.prompt_end, length)
        given += registry.setup.store.trim(sequence.row, count)
    return given


def _counts(num_tokens: int | Int32, many: int) -> list[int]:
    """How many each gives back."""
    if not isinstance(num_tokens, np.ndarray):
        return [num_tokens] * many
    if num_tokens.dtype != np.int32 or num_tokens.shape != (many,):
        fact = f"num_tokens is {num_tokens.dtype} of shape {num_tokens.shape} for {many} sequences"
        raise InputError(say("trim", fact, "pass an int32 array with one number per sequence"))
    counts: list[int] = num_tokens.tolist()
    return counts


def _check(registry: Registry, sequence: Sequence, num_tokens: int) -> None:
    """Whether a sequence can give back so many."""
    setup, running = registry.setup, running_of(sequence)
    if setup.bounded and running.granted < sequence.prompt_end:
        fact = f"{running.granted} of its {sequence.prompt_end} prompt tokens were handed out"
        raise StateError(say(f"trim of {shown(sequence.id)}", fact, "hand out the rest of its prompt first"))
    length = sequence.length
    final = sequence.computed if setup.state_groups else sequence.committed
    if running.received:
        final = max(final, sequence.prompt_end)  # a transfer brought what is read from there on
    open_tokens = length - max(final, 1)  # what has no token could not be claimed again
    if not isinstance(num_tokens, int) or not 0 <= num_tokens <= open_tokens:
        fact = f"{open_tokens} tokens of sequence {shown(sequence.id)} can be taken back"
        cure = "trim before they are committed"
        if setup.state_groups:
            cure = "trim before they are computed: a recurrent state cannot be taken back"
        if final == 0:
            cure = "leave it its first token, or release it"
        raise InputError(say(f"trim of {shown(num_tokens)} tokens", fact, cure))
    _check_private(setup, sequence, length - num_tokens)
    if num_tokens and registry.holds:
        _check_holds(registry, sequence, length - num_tokens)


def _check_private(setup: Setup, sequence: Sequence, length: int) -> None:
    """A page that a fork shares is never written again, so no tail may begin inside it."""
    block, inside = divmod(length, setup.config.block_size)
    for table in setup.store.pages if inside else ():
        page = table[sequence.row, block]
        if page >= 0 and np.count_nonzero(table[:, block] == page) > 1:
            fact = f"block {block} of sequence {shown(sequence.id)} is shared with a fork"
            raise StateError(say(f"trim to {length} tokens", fact, f"trim to a multiple of {setup.config.block_size}"))


def _check_holds(registry: Registry, sequence: Sequence, length: int) -> None:
    """What a hold keeps for a reader is not taken back, or the next tokens would be written over it."""
    setup = registry.setup
    block, computed = length // setup.block_size, sequence.computed
    for held in registry.holds if length < computed else ():
        pages = [setup.store.pages[group][sequence.row, block] for group in setup.own_groups]
        kept = any(page >= 0 and page in held.pages[group] for group, page in enumerate(pages))
        if kept and length < min(held.span.end, computed):
            fact = f"a hold keeps tokens up to {held.span.end}"
            raise StateError(
                say(f"trim of sequence {shown(sequence.id)} to {length} tokens", fact, "drop the hold first")
            )
