"""Ending: at a world's end everything goes on to its own end, and nothing may get stuck. Chooses nothing itself.

A prompt that was admitted can be computed whatever else lives; a sequence that is alone can grow as long as it said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fuzzing.compare import same
from fuzzing.lists.calls import recorded
from fuzzing.player import Player
from fuzzing.world.plain import Ask, Budget

TURNS = 99  # steps after which a prompt counts as stuck


class Last(NamedTuple):
    """A request that gets the cache to itself: who will only decode is brought its prompt by a transfer."""

    ask: Ask
    purpose: str = "compute"
    chunk: int | None = None


def wind_up(player: Player, lasts: Sequence[Last] = (), chunk: int | None = None) -> None:
    """End everything: prompts first, with holds in place; then one sequence alone; then requests alone."""
    if player.shared():
        player.launch(player.shared())
    while player.steps:
        player.land()
    for key in list(player.open):
        player.drop_claim(key)
    for key in list(player.found):
        player.close_find(key)
    for key in list(player.writing):
        player.close_writer(key)
    for key in list(player.prefetched):
        player.close_prefetch(key)
    finish_copies(player)
    finish_prompts(player, chunk)
    for key in list(player.held):
        player.drop_hold(key)
    for name in list(player.rows)[1:]:
        player.release(name, True)
    for name in list(player.rows):
        grow_up(player, name)
    for last in lasts:
        live_alone(player, *last)
    come_to_rest(player)


@recorded
def come_to_rest(player: Player) -> None:
    """Nothing lives and nothing is held: all that was promised and held has come back."""
    player.settle()
    player.take_changes(restore=True)
    player.trial.compare_all()
    player.trial.check()
    player.trial.flush()
    same("free slots when nothing is held", player.trial.oracle.brief(), player.world.tiers[0])


def finish_copies(player: Player) -> None:
    """Everything in the background is done."""
    player.settle()
    while player.trial.late:
        player.finish_late(len(player.trial.late) - 1)


@recorded
def finish_prompts(player: Player, chunk: int | None = None) -> None:
    """Every prompt under way is computed to its end; without claims nothing is in its way."""
    player.tell()
    for _ in range(TURNS):
        names = player.unfinished_prompts()
        if not names and not any(row.ahead and row.computed < row.prompt_end for row in player.rows.values()):
            return
        admission = player.add((), whole_spans(chunk, [player.rows[name].ask for name in names]), names)
        same("prompts that wait though no claim is open", None if admission is None else admission.waiting, ())
        step(player)
    same("prompts that never end", player.unfinished_prompts(), [])


def whole_spans(chunk: int | None, asks: Iterable[Ask]) -> Budget:
    """No more in a step than `chunk`, but for what must not be cut."""
    longest = [stop - start for ask in asks for start, stop in ask.uncut]
    return Budget(None, None if chunk is None else max(chunk, *longest, 1))


def step(player: Player) -> None:
    """A step of everything that can compute."""
    player.settle()
    player.compute(list(player.ready()))
    player.tell(default=True)


@recorded
def grow_up(player: Player, name: str) -> None:
    """A sequence, and the beams it was charged for, generate all they said they would; then they end."""
    step(player)  # what was handed out before has its slots until it is computed
    row, names = player.rows[name], [name]
    beams = row.ask.beams - 1
    if beams and player.is_charged(name, beams):
        player.fork(name, [f"{name}.{beam}" for beam in range(beams)])
        names = list(player.rows)
    longest = min(row.ask.room + row.ask.max_new_tokens, player.world.max_length)
    while len(row.tokens) < longest:
        had = len(row.tokens)
        same(f"growth of {names}, alone, at {had} tokens", player.grow(names, [[had % 2]] * len(names), 1), True)
        if len(row.tokens) == had:
            break  # drafts leave no room for it
        step(player)
    for each in names:
        player.release(each, True)


@recorded
def live_alone(player: Player, ask: Ask, purpose: str = "compute", chunk: int | None = None) -> None:
    """A request that has the cache to itself is admitted and ends well, unless it was told that it never can be."""
    player.settle()  # a move that has failed and was not told of yet is not this request's
    budget = whole_spans(chunk, [ask])
    if purpose == "compute":
        admission = player.add([ask], budget)
    else:
        player.claim(f"{ask.name} alone", [ask], purpose)
        admission = player.admit(player.open[-1], budget) if player.open else None
    if admission is None:
        return
    if any(never for *_, never, _ in admission.refused):
        player.trial.reached["alone and never"] += 1
        return
    player.trial.reached["alone"] += 1
    same("sequences of a request that is alone", len(admission.rows), 1)
    step(player)
    finish_prompts(player, chunk)
    grow_up(player, ask.name)
