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
    except RuntimeError as under_way:
        raise StateError(say("grow", str(under_way), "hand out and compute the rest of its prompt first")) from None
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
    if state.bounded:
        _check_handed_out(state, rows, numbers)
    _tell_time(state)
    readers = _readers(state, rows, numbers)
    try:
        added = state.store.commit(rows, numbers)
    except LookupError as unknown:
        raise UnknownError(say("commit", str(unknown), "pass rows of live sequences, each once")) from None
    return added + _commit_across(state, readers)


def _commit_one(state: State, sequence: Sequence, computed: int | None) -> int:
    row = sequence.row if sequence.row >= 0 and sequence.state is state else own(state, sequence)
    length = int(state.store.length[row])
    if computed is None:
        computed = sequence.ran
    elif type(computed) is not int or not 0 <= computed <= length:
        raise InputError(say(f"commit of {computed!r} tokens", f"the sequence has {length}", "grow it before"))
    if state.plain:
        return state.store.commit_row(row, computed)
    rows, numbers = np.array([row], np.int32), np.array([computed], np.int32)
    if state.bounded:
        _check_handed_out(state, rows, numbers)
    _tell_time(state)
    readers = _readers(state, rows, numbers)
    return state.store.commit_row(row, computed) + _commit_across(state, readers)


def _tell_time(state: State) -> None:
    """Pages may leave a window now, and their retention runs from then on."""
    if state.timed and state.bounded:
        state.store.refresh(state.now())


def _readers(state: State, rows: Int32, numbers: Int32 | None) -> Int32:
    """Rows that have just read the encoder's KV for the first time: it is there, then, the whole of it."""
    if state.cross is None or not all(0 <= row < state.config.max_sequences for row in rows.tolist()):
        return rows[:0]
    own, across = state.store, state.cross.store
    length = own.length[rows]
    done = length if numbers is None else numbers
    ran = (done > own.computed[rows]) | (done >= length)
    first: Int32 = rows[ran & (across.length[rows] > across.computed[rows])]
    return first


def _commit_across(state: State, rows: Int32) -> int:
    return 0 if state.cross is None else state.cross.store.commit(rows, None)


def _check_handed_out(state: State, rows: Int32, numbers: Int32 | None) -> None:
    """Groups that forget get pages step by step: tokens nobody was told to compute have none."""
    for group in state.own_groups:
        if not state.layers[group].bounded or state.layers[group].current:
            continue
        room = state.store.capacity[group][rows] * state.block_size
        asked = state.store.length[rows] if numbers is None else numbers
        for place in np.flatnonzero(asked > room).tolist():
            fact = f"group {group} has pages for {int(room[place])}, the steps handed out so far"
            raise InputError(say(f"commit of {int(asked[place])} tokens", fact, "commit what admit told to compute"))


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
    final = sequence.computed if any(layer.current for layer in state.layers) else sequence.committed
    if sequence.received and state.bounded:
        final = max(final, sequence.prompt_end)  # windows came for positions from there on
    open_tokens = sequence.length - final
    if not isinstance(num_tokens, int) or not 0 <= num_tokens <= open_tokens:
        fact = f"{open_tokens} tokens of sequence {sequence.id!r} are uncommitted"
        cure = "trim before they are committed; a recurrent state cannot be taken back at all"
        raise InputError(say(f"trim of {num_tokens} tokens", fact, cure))
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
        pages = [state.store.pages[group][sequence.row, block] for group in state.own_groups]
        kept = any(page >= 0 and page in held.pages[group] for group, page in enumerate(pages))
        if kept and length < min(held.span.end, computed):
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
    if (state.bounded or sequence.received) and sequence.computed < sequence.prompt_end:
        fact = f"{sequence.computed} of its {sequence.prompt_end} prompt tokens are computed"
        raise StateError(say(f"fork of {sequence.id!r}", fact, "fork when the prompt is computed"))
    if len(names) > len(state.free_rows) or not _room_to_fork(state, sequence, len(names)):
        return None
    state.store.commit_row(row, sequence.computed)
    forks: list[Sequence] = []
    for name in names:
        target = state.free_rows.pop()
        for stream in state.streams:
            if stream.has(row):
                stream.store.fork(row, target)
        forks.append(sequence.forked(name, target))
        state.sequences[name] = forks[-1]
    return forks, state.take_plan()


def _room_to_fork(state: State, sequence: Sequence, num_forks: int) -> bool:
    """Each fork needs its own pages from the first block that is not fully computed; the beams' spares come first."""
    for stream in state.streams:
        needs = stream.store.fork_needs(sequence.row) if stream.has(sequence.row) else ()
        for group, need in enumerate(needs):
            have = stream.store.available(group) + stream.store.num_spares(group, sequence.row)
            if need * num_forks > have:
                return False
    return True


def release(state: State, sequence: Sequence, store: bool) -> None:
    """Give up its pages, the deepest first; what was computed stays findable unless `store` is False."""
    row = own(state, sequence)
    now = state.now()  # before the first change: a caller's clock may raise
    for stream in state.streams:
        if stream.has(row):
            stream.store.release(row, store, now)
    del state.sequences[sequence.id]
    state.free_rows.append(row)
    sequence.row = RELEASED


def suspend(state: State, sequence: Sequence) -> Request:
    """Release it with everything computed kept findable; claiming the returned request goes on from there."""
    request = suspended(state, sequence)
    release(state, sequence, True)
    return request


def suspended(state: State, sequence: Sequence) -> Request:
    """The request that goes on where a sequence is now."""
    return sequence.request.continued(tokens_of(state, sequence), sequence.kept)


def tokens_of(state: State, sequence: Sequence) -> Int32:
    """Every token so far (a copy)."""
    return state.store.tokens(own(state, sequence))
