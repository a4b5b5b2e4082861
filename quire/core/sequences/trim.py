"""Trim: the last tokens of a sequence are taken back, as far as they are its own and nobody reads them."""

from __future__ import annotations

import numpy as np

from quire.core.records.errors import InputError, StateError, say, shown
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, own_row, running_of
from quire.core.state.setup import Setup


def trim_tail(registry: Registry, sequence: Sequence, num_tokens: int) -> int:
    """Take back the last tokens (rejected drafts); committed ones stay. Returns pages given back."""
    setup = registry.setup
    row, running = own_row(setup, sequence), running_of(sequence)
    if setup.bounded and running.granted < sequence.prompt_end:
        fact = f"{running.granted} of its {sequence.prompt_end} prompt tokens were handed out"
        raise StateError(say(f"trim of {shown(sequence.id)}", fact, "hand out the rest of its prompt first"))
    final = sequence.computed if setup.state_groups else sequence.committed
    if running.received:
        final = max(final, sequence.prompt_end)  # a transfer brought what is read from there on
    open_tokens = sequence.length - max(final, 1)  # what has no token could not be claimed again
    if not isinstance(num_tokens, int) or not 0 <= num_tokens <= open_tokens:
        fact = f"{open_tokens} tokens of sequence {shown(sequence.id)} can be taken back"
        cure = "trim before they are committed"
        if setup.state_groups:
            cure = "trim before they are computed: a recurrent state cannot be taken back"
        if final == 0:
            cure = "leave it its first token, or release it"
        raise InputError(say(f"trim of {shown(num_tokens)} tokens", fact, cure))
    _check_private(setup, sequence, sequence.length - num_tokens)
    if num_tokens:
        _check_holds(registry, sequence, sequence.length - num_tokens)
    running.kept = min(running.kept, sequence.length - num_tokens)
    sequence.prompt_end = min(sequence.prompt_end, sequence.length - num_tokens)
    return setup.store.trim(row, num_tokens)


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
