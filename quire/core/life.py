"""Life of sequences after admission: grow, commit, trim, fork, release, suspend. Knows no claims."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from quire.core.errors import InputError, StateError, UnknownError, listed, say
from quire.core.plan import Plan
from quire.core.request import Int32, Request, check_id, check_tokens
from quire.core.sequence import RELEASED, Sequence
from quire.core.state import State

Sequences = Sequence | Iterable[Sequence] | Int32


def rows_of(state: State, sequences: Sequences) -> Int32:
    """Rows of one sequence, of several, or as given: an int32 array of rows is taken as it is."""
    if isinstance(sequences, np.ndarray):
        check_tokens(sequences, "an array of rows")
        return sequences
    many = [sequences] if isinstance(sequences, Sequence) else listed("sequences", sequences)
    for sequence in many:
        own(state, sequence)
    return np.fromiter((sequence.row for sequence in many), np.int32, len(many))


def own(state: State, sequence: Sequence) -> int:
    """The row of a live sequence of this cache."""
    if not isinstance(sequence, Sequence):
        raise InputError(say(f"a {type(sequence).__name__}", "it is no Sequence", "pass what admit returned"))
    row = sequence.live_row()
    if sequence.state is not state:
        raise UnknownError(
            say(f"sequence {sequence.id!r}", "it belongs to another cache", "use the cache that admitted it")
        )
    return row


def grow(state: State, sequences: Sequences, tokens: Int32 | None, num_tokens: int) -> Plan | None:
    """Append tokens and give them slots, all sequences or none; None when the device has no room."""
    rows = rows_of(state, sequences)
    if tokens is not None:
        if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim not in (1, 2):
            check_tokens(tokens, "grow")
        if len(rows) == 0 or tokens.size % len(rows) or (tokens.ndim == 2 and len(tokens) != len(rows)):
            fact = f"{len(rows)} sequences and tokens of shape {tokens.shape}"
            raise InputError(say("grow", fact, "give each sequence the same number of tokens"))
        num_tokens = tokens.size // len(rows)
        if tokens.ndim == 2 or not tokens.flags.c_contiguous:
            tokens = np.ascontiguousarray(tokens).reshape(-1)
    elif type(num_tokens) is not int or not 1 <= num_tokens <= state.config.max_length:
        raise InputError(
            say(f"grow by {num_tokens!r} tokens", f"it must be 1 to {state.config.max_length}", "grow by less")
        )
    try:
        added = state.store.grow(rows, tokens, num_tokens)
    except LookupError as unknown:
        raise UnknownError(say("grow", str(unknown), "pass rows of live sequences, each once")) from None
    except ValueError as too_long:
        fact = f"{too_long}; max_length is {state.config.max_length}"
        raise InputError(say("grow", fact, "release the sequence or build the cache larger")) from None
    return None if added < 0 else state.take_plan()


def commit(state: State, sequences: Sequences, computed: int | Int32 | None) -> int:
    """KV exists up to `computed` (None: what was handed out has run): make full pages findable; returns new ones."""
    if isinstance(sequences, Sequence) and not isinstance(computed, np.ndarray):
        return _commit_one(state, sequences, computed)
    if computed is None and not isinstance(sequences, np.ndarray | Sequence):
        sequences = listed("sequences", sequences)
        for sequence in sequences:
            own(state, sequence)
        computed = np.fromiter((sequence.ran for sequence in sequences), np.int32, len(sequences))
    rows = rows_of(state, sequences)
    numbers = np.full(len(rows), _bounded(computed), np.int32) if isinstance(computed, int) else computed
    if numbers is not None:
        _check_computed(state, rows, numbers)
    try:
        return state.store.commit(rows, numbers)
    except LookupError as unknown:
        raise UnknownError(say("commit", str(unknown), "pass rows of live sequences, each once")) from None


def _commit_one(state: State, sequence: Sequence, computed: int | None) -> int:
    row = sequence.row if sequence.row >= 0 and sequence.state is state else own(state, sequence)
    length = int(state.store.length[row])
    if computed is None:
        computed = sequence.ran
    elif type(computed) is not int or not 0 <= computed <= length:
        raise InputError(say(f"commit of {computed!r} tokens", f"the sequence has {length}", "grow it before"))
    return state.store.commit_row(row, computed)


def _bounded(computed: int) -> int:
    """As int32, where any number beyond it is refused like the next smaller one."""
    return max(min(computed, 2**31 - 1), -1)


def _check_computed(state: State, rows: Int32, numbers: Int32) -> None:
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int32 or numbers.shape != rows.shape:
        raise InputError(
            say("commit", "computed must be an int32 array with one number per sequence", "or an int, or None")
        )
    if len(rows) and not (rows.min() >= 0 and rows.max() < state.config.max_sequences):
        raise UnknownError(say(f"commit of rows {rows.tolist()}", "not all are rows", "pass rows of live sequences"))
    wrong = (numbers > state.store.length[rows]) | (numbers < 0)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        have = int(state.store.length[rows[place]])
        raise InputError(say(f"commit of {int(numbers[place])} tokens", f"the sequence has {have}", "grow it before"))


def trim(state: State, sequence: Sequence, num_tokens: int) -> int:
    """Take back the last tokens (rejected drafts); committed ones stay. Returns pages given back."""
    row = own(state, sequence)
    open_tokens = sequence.length - sequence.committed
    if not isinstance(num_tokens, int) or not 0 <= num_tokens <= open_tokens:
        fact = f"{open_tokens} tokens of sequence {sequence.id!r} are uncommitted"
        raise InputError(say(f"trim of {num_tokens} tokens", fact, "trim before they are committed"))
    _check_private(state, sequence, sequence.length - num_tokens)
    if num_tokens:
        _check_holds(state, sequence, sequence.length - num_tokens)
    sequence.kept = min(sequence.kept, sequence.length - num_tokens)
    return state.store.trim(row, num_tokens)


def _check_private(state: State, sequence: Sequence, length: int) -> None:
    """A page that a fork shares is never written again, so no tail may begin inside it."""
    block, inside = divmod(length, state.config.block_size)
    for table in state.store.pages if inside else ():
        page = table[sequence.row, block]
        if page >= 0 and np.count_nonzero(table[:, block] == page) > 1:
            fact = f"block {block} of sequence {sequence.id!r} is shared with a fork"
            raise StateError(say(f"trim to {length} tokens", fact, f"trim to a multiple of {state.config.block_size}"))


def _check_holds(state: State, sequence: Sequence, length: int) -> None:
    """What a hold keeps for a reader is not taken back, or the next tokens would be written over it."""
    block, computed = length // state.block_size, sequence.computed
    for held in state.holds if length < computed else ():
        page = state.store.pages[0][sequence.row, block]
        if length < min(held.span.end, computed) and page in held.pages[0]:
            fact = f"a hold keeps tokens up to {held.span.end}"
            raise StateError(say(f"trim of sequence {sequence.id!r} to {length} tokens", fact, "drop the hold first"))


def fork(state: State, sequence: Sequence, ids: Iterable[Hashable]) -> tuple[list[Sequence], Plan] | None:
    """One more sequence per id, sharing full pages and copying the partial one; None when there is no room for all."""
    row = own(state, sequence)
    names = listed("ids of forks", ids)
    for place, name in enumerate(names):
        check_id(name, "fork")
        if name in state.sequences or name in names[:place]:
            raise StateError(say(f"fork as {name!r}", "that id is taken", "use another id"))
    if len(names) > len(state.free_rows) or not _room_to_fork(state, sequence, len(names)):
        return None
    commit(state, sequence, sequence.computed)
    forks: list[Sequence] = []
    for name in names:
        target = state.free_rows.pop()
        state.store.fork(row, target)
        forks.append(sequence.forked(name, target))
        state.sequences[name] = forks[-1]
    return forks, state.take_plan()


def _room_to_fork(state: State, sequence: Sequence, num_forks: int) -> bool:
    """Each fork needs its own pages from the first block that is not fully computed; the beams' spares come first."""
    own_pages = state.config.blocks(sequence.length) - sequence.computed // state.config.block_size
    need = own_pages * num_forks
    groups = range(len(state.config.groups))
    return all(need <= state.store.available(g) + state.store.num_spares(g, sequence.row) for g in groups)


def release(state: State, sequence: Sequence, store: bool) -> None:
    """Give up its pages, the deepest first; what was computed stays findable unless `store` is False."""
    row = own(state, sequence)
    state.store.release(row, store, state.now())
    del state.sequences[sequence.id]
    state.free_rows.append(row)
    sequence.row = RELEASED


def suspend(state: State, sequence: Sequence) -> Request:
    """Release it with everything computed kept findable; claiming the returned request goes on from there."""
    tokens = tokens_of(state, sequence)
    request = sequence.request.continued(tokens, sequence.kept)
    release(state, sequence, True)
    return request


def tokens_of(state: State, sequence: Sequence) -> Int32:
    """Every token so far (a copy)."""
    return state.store.tokens(own(state, sequence))
