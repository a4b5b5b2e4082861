"""Fork: more sequences that share the full pages of one, each with its own copy of the partial page."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from quire.core.records.errors import StateError, listed, say, shown
from quire.core.records.plan import Plan
from quire.core.records.request import check_id
from quire.core.state.registry import Registry
from quire.core.state.sequence import Sequence, fork_of, own_row, running_of
from quire.core.state.setup import Setup


def fork_sequence(
    registry: Registry, sequence: Sequence, ids: Iterable[Hashable]
) -> tuple[list[Sequence], Plan] | None:
    """One more sequence per id, sharing full pages and copying the partial one; None when there is no room for all."""
    setup = registry.setup
    row = own_row(setup, sequence)
    names = listed("ids of forks", ids)
    for place, name in enumerate(names):
        check_id(name, "fork")
        if name in registry.sequences or name in names[:place]:
            raise StateError(say(f"fork as {shown(name)}", "that id is taken", "use another id"))
    flies = registry.in_flight.has(row)
    if flies and setup.state_groups:
        fact = "a step in flight moves its state on"
        raise StateError(say(f"fork of {shown(sequence.id)}", fact, "commit that step, or fail it, before"))
    running = running_of(sequence)
    places = running.prepared.encoder
    unread = places is not None and sequence.encoder_computed < places.length
    early = sequence.computed < sequence.prompt_end or unread
    if early and (setup.bounded or setup.cross is not None or running.received):
        fact = f"{sequence.computed} of its {sequence.prompt_end} prompt tokens are computed"
        raise StateError(say(f"fork of {shown(sequence.id)}", fact, "fork when the prompt is computed"))
    if len(names) > len(registry.free_rows) or not _room_to_fork(setup, sequence, len(names)):
        return None
    setup.store.commit_row(row, sequence.computed)
    forks: list[Sequence] = []
    for name in names:
        target = registry.free_rows.pop()
        for stream in setup.streams:
            if stream.has(row):
                stream.store.fork(row, target)
        if early:  # the step under way computes the source alone
            setup.store.hand_out(target, sequence.computed)
        elif flies and setup.store.handed.item(target) > sequence.computed:
            setup.store.take_back(target, sequence.computed, False)
        forks.append(fork_of(sequence, name, target))
        registry.sequences[name] = forks[-1]
    if registry.page_watcher is not None:
        registry.page_watcher.forked(sequence, forks)
    return forks, registry.take_plan()


def _room_to_fork(setup: Setup, sequence: Sequence, num_forks: int) -> bool:
    """Each fork needs its own pages from the first block that is not fully computed; the beams' spares come first.

    Spares are enough even while less than nothing is available: they are not what open claims rest on.
    """
    missing = [0] * len(setup.sharers)
    for stream in setup.streams:
        needs = stream.store.fork_needs(sequence.row) if stream.has(sequence.row) else ()
        for place, need in enumerate(needs):
            lacks = need * num_forks - stream.store.num_spares(place, sequence.row)
            missing[setup.pool_of[stream.first + place]] += max(0, lacks)
    return not any(more and more > setup.available(some[0]) for more, some in zip(missing, setup.sharers, strict=True))
