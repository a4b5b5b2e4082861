"""Acts: each call of an incident by its name, made again on the cache of a player. Compares nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from quire.core.records.plan import NO_MOVES, Plan
from quire.core.records.request import Int32, Request
from quire.core.records.span import Span
from quire.core.sequences.setbacks import Finished
from quire.incidents.files.incident_file import Plain
from quire.incidents.files.naming import in_rows, unpacked
from quire.incidents.files.restored import restored_blocks
from quire.incidents.play.given import int_array, scope_of, skipped
from quire.incidents.play.played_cache import PlayedCache


def _claim(player: PlayedCache, requests: list[Plain], purpose: Any) -> Any:
    return player.keep_handle(player.cache.claim([*map(player.asked, requests)], purpose))


def _admit(player: PlayedCache, number: int, *step: Any) -> Any:
    claims = player.handles.pop(number)
    budget, chunk, whole, going, junctions = step
    for claim, junction in zip(claims, junctions, strict=True):
        claim.prepared.part_at(junction)
    batch = player.cache.admit(
        claims, token_budget=budget, max_chunk=chunk, all_or_nothing=whole, continuing=player.sequences(going)
    )
    player.seat(batch.sequences)
    player.note(batch.plan)
    return batch


def _add(player: PlayedCache, requests: list[Plain], budget: Any, chunk: Any, whole: bool, going: Any) -> Any:
    batch = player.cache.add_sequence_batch(
        [*map(player.asked, requests)], token_budget=budget, max_chunk=chunk, all_or_nothing=whole,
        continuing=player.sequences(going),
    )  # fmt: skip
    player.seat(batch.sequences)
    player.note(batch.plan)
    return batch


def _finish(player: PlayedCache, number: int, failed: list[int], undone: list[int]) -> Any:
    plan = player.plans.pop(number, None)
    if plan is None:
        plan = Plan(number, NO_MOVES)  # there was nothing to do
    return _finished(player, player.cache.finish(plan, tuple(failed), tuple(undone)))


def _finished(player: PlayedCache, done: Finished) -> Any:
    player.unseat_lost()
    player.note(done.plan)
    return done


def _grow(player: PlayedCache, rows: Any, tokens: list[list[int]] | None, num_tokens: int | list[int]) -> Any:
    counts, named = int_array(num_tokens), None
    if tokens is not None and isinstance(counts, np.ndarray):
        table = in_rows(tokens, counts)
        named = table[table >= 0]
    elif tokens is not None:
        named = np.array([unpacked(column) for column in tokens], np.int32).T.reshape(-1)
    return player.note(player.cache.grow(player.sequences(rows), named, num_tokens=counts))


def _launch(player: PlayedCache, rows: Any) -> Any:
    return player.cache.launch(None if rows is None else player.sequences(rows))


def _commit(player: PlayedCache, rows: Any, computed: Any, come: Any) -> Any:
    return player.cache.commit(player.sequences(rows), int_array(computed), tokens=_come(come))


def _commit_step(player: PlayedCache, number: int, rows: Any, computed: Any, come: Any) -> Any:
    return player.cache.commit(player.step_in_flight(number), int_array(computed), tokens=_come(come))


def _fail(player: PlayedCache, number: int) -> Any:
    setbacks = player.cache.fail(player.step_in_flight(number))
    player.unseat_lost()
    return setbacks


def _come(come: Any) -> Int32 | None:
    return None if come is None else in_rows(come[1], np.array(come[0], np.int32))


def _trim(player: PlayedCache, rows: Any, num_tokens: Any) -> Any:
    return player.cache.trim(player.sequences(rows), int_array(num_tokens))


def _fork(player: PlayedCache, row: int, ids: list[Hashable]) -> Any:
    made = player.cache.fork(player.rows[row], ids)
    if made is not None:
        player.seat(made[0])
        player.note(made[1])
    return made


def _release(player: PlayedCache, rows: Any, store: bool, back: Any) -> Any:
    gone = player.sequences(rows)
    player.cache.release(gone, store=store, back=back)
    for row in [rows] if isinstance(rows, int) else rows:
        del player.rows[row]


def _suspend(player: PlayedCache, row: int, tokens: list[int] | None) -> Any:
    return player.cache.suspend(player.rows.pop(row), None if tokens is None else unpacked(tokens))


def _hold(player: PlayedCache, row: int, start: int, end: int) -> Any:
    held = player.cache.hold(player.rows[row], Span(start, end))
    if held is not None:
        player.handles[player.calls.hold_number(held)] = held
    return held


def _drop(player: PlayedCache, number: int) -> Any:
    return player.cache.drop(player.handles.pop(number))


def _find(player: PlayedCache, asked: Plain, from_: int) -> Any:
    return player.keep_handle(player.cache.find(player.asked(asked), from_))


def _writer(player: PlayedCache, asked: Plain, tier: int, from_: int, end: Any, skip: list[Any]) -> Any:
    made = player.cache.writer(player.asked(asked), tier=tier, from_=from_, end=end, skip=skipped(skip))
    return player.keep_handle(made)


def _extend(player: PlayedCache, number: int, tokens: Any, end: Any, skip: list[Any], also: list[Any]) -> Any:
    writer = player.handles[number]
    lack = writer.extend(None if tokens is None else unpacked(tokens), end=end, skip=skipped(skip), also=skipped(also))
    if lack is None:
        player.note(writer.plan)
    return lack


def _prefetch(player: PlayedCache, asked: Plain, deadline: float | None) -> Any:
    return player.keep_handle(player.cache.prefetch(player.asked(asked), deadline))


def _hint(player: PlayedCache, tokens: list[int], back: Any, scope: Any, keep: int) -> Any:
    return player.cache.hint(unpacked(tokens), back, scope_of(scope), keep)


def _truncate(player: PlayedCache, asked: Plain, keep: int) -> Any:
    request = player.asked(asked)
    assert isinstance(request, Request)
    return player.cache.truncate(request, keep)


def _lose(player: PlayedCache, group: int, slots: list[int], tier: int) -> Any:
    return _finished(player, player.cache.lose(group, slots, tier))


def _tidy(player: PlayedCache, gone: list[Any], outside: bool) -> Any:
    """Handles are lost, and given back by the next call: this one, or the one behind it."""
    registry = player.registry
    kinds: dict[str, Any] = {
        "claims": registry.open_claims, "finds": registry.open_finds, "writers": registry.open_writers,
        "prefetches": registry.open_prefetches,
    }  # fmt: skip
    open_now = {kind: [ref() for ref in some] for kind, some in kinds.items()}
    lost = [open_now[kind][place] for kind, place in gone]
    player.handles = {number: one for number, one in player.handles.items() if not any(one is other for other in lost)}
    open_now.clear()
    del lost
    if outside:
        player.cache._asked()


def _closing(player: PlayedCache, number: int) -> Any:
    return player.handles.pop(number).close()


ACTS: dict[str, Callable[..., Any]] = {
    "claim": _claim, "admit": _admit, "add": _add, "finish": _finish, "grow": _grow, "launch": _launch,
    "commit": _commit, "commit_step": _commit_step, "fail": _fail, "trim": _trim,
    "fork": _fork, "release": _release, "suspend": _suspend, "hold": _hold, "drop": _drop, "find": _find,
    "writer": _writer, "extend_writer": _extend, "prefetch": _prefetch, "hint": _hint, "truncate": _truncate,
    "lose": _lose, "tidy": _tidy,
    "drop_claims": _closing, "close_find": _closing, "close_writer": _closing, "close_prefetch": _closing,
    "leave_out": lambda player, number, place: player.handles[number].leave_out(player.handles[number][place]),
    "use_find": lambda player, number: player.handles[number].used(),
    "written": lambda player, number, end, skip: player.handles[number].written(end, skipped(skip)),
    "clear": lambda player, store_again: player.cache.clear(store_again=store_again),
    "forget": lambda player, scope: player.cache.forget(scope_of(scope)),
    "refresh": lambda player: player.cache.refresh(),
    "offload": lambda player, num_pages, group: player.note(player.cache.offload(num_pages, group)),
    "copy_down": lambda player, limit: player.note(player.cache.copy_down(limit)),
    "lasting_changes": lambda player: player.cache.lasting_changes(),
    "restore": lambda player, *given: player.cache.restore(*restored_blocks(*given)),
}  # fmt: skip
