"""Life of sequences after admission: grow, trim, fork, release, suspend. Knows no claims."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from quire.core.records.errors import InputError, StateError, UnknownError, listed, say, shown
from quire.core.records.plan import Plan
from quire.core.records.request import Int32, Request, check_id, check_tokens
from quire.core.state.sequence import RELEASED, Sequence
from quire.core.state.state import State

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
            say(f"sequence {shown(sequence.id)}", "it belongs to another cache", "use the cache that admitted it")
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
            say(f"grow by {shown(num_tokens)} tokens", f"it must be 1 to {state.config.max_length}", "grow by less")
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


def trim(state: State, sequence: Sequence, num_tokens: int) -> int:
    """Take back the last tokens (rejected drafts); committed ones stay. Returns pages given back."""
    row = own(state, sequence)
    if state.bounded and sequence.granted < sequence.prompt_end:
        fact = f"{sequence.granted} of its {sequence.prompt_end} prompt tokens were handed out"
        raise StateError(say(f"trim of {shown(sequence.id)}", fact, "hand out the rest of its prompt, or release it"))
    final = sequence.computed if state.states else sequence.committed
    if sequence.received:
        final = max(final, sequence.prompt_end)  # what came is for positions from there on
    open_tokens = sequence.length - final
    if not isinstance(num_tokens, int) or not 0 <= num_tokens <= open_tokens:
        fact = f"{open_tokens} tokens of sequence {shown(sequence.id)} are uncommitted"
        cure = "trim before they are committed; a recurrent state cannot be taken back at all"
        raise InputError(say(f"trim of {shown(num_tokens)} tokens", fact, cure))
    _check_private(state, sequence, sequence.length - num_tokens)
    if num_tokens:
        _check_holds(state, sequence, sequence.length - num_tokens)
    sequence.kept = min(sequence.kept, sequence.length - num_tokens)
    sequence.prompt_end = min(sequence.prompt_end, sequence.length - num_tokens)
    return state.store.trim(row, num_tokens)


def _check_private(state: State, sequence: Sequence, length: int) -> None:
    """A page that a fork shares is never written again, so no tail may begin inside it."""
    block, inside = divmod(length, state.config.block_size)
    for table in state.store.pages if inside else ():
        page = table[sequence.row, block]
        if page >= 0 and np.count_nonzero(table[:, block] == page) > 1:
            fact = f"block {block} of sequence {shown(sequence.id)} is shared with a fork"
            raise StateError(say(f"trim to {length} tokens", fact, f"trim to a multiple of {state.config.block_size}"))


def _check_holds(state: State, sequence: Sequence, length: int) -> None:
    """What a hold keeps for a reader is not taken back, or the next tokens would be written over it."""
    block, computed = length // state.block_size, sequence.computed
    for held in state.holds if length < computed else ():
        pages = [state.store.pages[group][sequence.row, block] for group in state.own_groups]
        kept = any(page >= 0 and page in held.pages[group] for group, page in enumerate(pages))
        if kept and length < min(held.span.end, computed):
            fact = f"a hold keeps tokens up to {held.span.end}"
            raise StateError(
                say(f"trim of sequence {shown(sequence.id)} to {length} tokens", fact, "drop the hold first")
            )


def fork(state: State, sequence: Sequence, ids: Iterable[Hashable]) -> tuple[list[Sequence], Plan] | None:
    """One more sequence per id, sharing full pages and copying the partial one; None when there is no room for all."""
    row = own(state, sequence)
    names = listed("ids of forks", ids)
    for place, name in enumerate(names):
        check_id(name, "fork")
        if name in state.sequences or name in names[:place]:
            raise StateError(say(f"fork as {shown(name)}", "that id is taken", "use another id"))
    places = sequence.prepared.encoder
    unread = places is not None and sequence.encoder_computed < places.length
    early = sequence.computed < sequence.prompt_end or unread
    if early and (state.bounded or state.cross is not None or sequence.received):
        fact = f"{sequence.computed} of its {sequence.prompt_end} prompt tokens are computed"
        raise StateError(say(f"fork of {shown(sequence.id)}", fact, "fork when the prompt is computed"))
    if len(names) > len(state.free_rows) or not _room_to_fork(state, sequence, len(names)):
        return None
    state.store.commit_row(row, sequence.computed)
    forks: list[Sequence] = []
    for name in names:
        target = state.free_rows.pop()
        for stream in state.streams:
            if stream.has(row):
                stream.store.fork(row, target)
        if early:  # the step under way computes the source alone
            state.store.hand_out(target, sequence.computed)
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
    state.watched.pop(row, None)
    state.free_rows.append(row)
    sequence.row = RELEASED


def suspend(state: State, sequence: Sequence, tokens: Int32 | None) -> Request:
    """Release it with everything computed kept findable; claiming the returned request goes on from there."""
    if tokens is not None:
        check_tokens(tokens, "suspend")
    request = suspended(state, sequence, tokens)
    release(state, sequence, True)
    return request


def suspended(state: State, sequence: Sequence, more: Int32 | None = None) -> Request:
    """The request that goes on where a sequence is now, with `more` tokens behind those it has."""
    tokens = tokens_of(state, sequence)
    return sequence.request.continued(tokens if more is None else np.concatenate([tokens, more]), sequence.kept)


def tokens_of(state: State, sequence: Sequence) -> Int32:
    """Every token so far (a copy)."""
    return state.store.tokens(own(state, sequence))
