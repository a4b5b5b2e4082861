"""Replay: a list of calls played again. A call that means nothing where it stands is skipped, or cut to what it means.

So any part of a list can be taken out and the rest is still what a well-behaved engine could do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fuzzing import ending
from fuzzing.lists.calls import CALLS, Call, Recording
from fuzzing.misuse import misuses
from fuzzing.oracle.reach import bounded
from fuzzing.player import Player
from fuzzing.subject import StoreName
from fuzzing.world.plain import World

__all__ = ["Outcome", "outcome", "play", "replay"]
Args = dict[str, Any]


def replay(recording: Recording, stores: Sequence[StoreName], check_every: int = 1, compare_every: int = 1) -> Player:
    """Play all calls, everything compared after each; raises the mismatch. Who played, for what was reached."""
    player = Player(recording.world, stores, check_every, compare_every)
    play_all(player, recording.calls)
    return player


def play_all(player: Player, calls: Sequence[Call]) -> None:
    """Play all calls, and a last look at everything."""
    try:
        for call in calls:
            play(player, call)
        player.trial.compare_all()
        player.trial.check()
    finally:
        player.trial.close()


class Outcome(NamedTuple):
    """What came of a list: the failure, if there is one, and the calls that were really made until then."""

    world: World
    calls: Sequence[Call]
    failure: Exception | None


def outcome(recording: Recording, stores: Sequence[StoreName]) -> Outcome:
    """Play a list to its end or to its failure; what is no list at all raises."""
    player = Player(recording.world, stores, check_every=1, compare_every=1)
    failure: Exception | None = None
    try:
        play_all(player, recording.calls)
    except Exception as error:
        failure = error
    return Outcome(recording.world, player.notes.calls(), failure)


def play(player: Player, call: Call) -> bool:
    """Make one call as far as it means something now; False when it means nothing."""
    args = _cut(player, call.name, dict(call.args))
    if args is None or not MEANS.get(call.name, _always)(player, args):
        return False
    CALLS[call.name](player, **args)
    return True


def _cut(player: Player, name: str, args: Args) -> Args | None:
    """The arguments without what is not there; None when the call is about nothing else."""
    rows = player.rows
    if "name" in args and args["name"] not in rows:
        return None
    if "asks" in args:
        args["asks"] = [ask for ask in args["asks"] if ask.name not in rows]
    if "continuing" in args:
        unfinished = player.unfinished_prompts()
        args["continuing"] = [name for name in args["continuing"] if name in unfinished]
    if "bad" in args:
        tiers = range(1, len(player.world.tiers) if player.world.flaky else 0)
        args["bad"] = [bad for bad in args["bad"] if bad[0] in tiers]
    if "names" in args:
        args = _cut_names(args, rows if name != "compute" else player.ready())
    return None if "names" in args and not args["names"] and name != "compute" else args


def _cut_names(args: Args, there: Mapping[str, Any]) -> Args:
    places = [place for place, name in enumerate(args["names"]) if name in there]
    cut = {key: [args[key][place] for place in places] for key in ("names", "tokens") if args.get(key) is not None}
    return args | cut


# -- when a call means something -------------------------------------------------------------------------------------


def _always(player: Player, args: Args) -> bool:
    return True


def _is_open(player: Player, args: Args) -> bool:
    return args["key"] in player.open


def _is_new(player: Player, args: Args) -> bool:
    return args["key"] not in (*player.open, *player.held, *player.found, *player.writing, *player.prefetched)


def _is_held(player: Player, args: Args) -> bool:
    return args["key"] in player.held


def _is_found(player: Player, args: Args) -> bool:
    return args["key"] in player.found


def _are_slots(player: Player, args: Args) -> bool:
    group, tier = args.get("group", 0), args.get("tier", 0)
    if group >= player.world.num_groups or tier >= len(player.world.tiers):
        return False
    args["slots"] = [slot for slot in args.get("slots", ()) if slot < player.world.tiers[tier][group]]
    return True


def _is_written(player: Player, args: Args) -> bool:
    return args["key"] in player.writing


def _can_write(player: Player, args: Args) -> bool:
    return _is_new(player, args) and args.get("tier", 0) < len(player.world.tiers)


def _is_slow(player: Player, args: Args) -> bool:
    return player.world.slow


def _can_prefetch(player: Player, args: Args) -> bool:
    return player.world.slow and _is_new(player, args)


def _is_prefetched(player: Player, args: Args) -> bool:
    return args["key"] in player.prefetched


def _is_settled(player: Player, args: Args) -> bool:
    """A step reads only after all plans made so far were carried out."""
    trial = player.trial
    return not (trial.unrun or trial.unfinished or (player.world.has_state and trial.oracle.state.moves))


def _counts_nothing(player: Player, args: Args) -> bool:
    args["names"] = [name for name in args["names"] if player.ran(name) == player.rows[name].computed]
    return bool(args["names"])


def _is_too_much(player: Player, args: Args) -> bool:
    row, computed = player.rows[args["name"]], args["computed"]
    if row.received and row.computed < row.prompt_end:
        return bool(computed < row.prompt_end)
    bounds = any(map(bounded, player.world.kinds)) and row.granted < min(row.prompt_end, len(row.tokens))
    return bool(bounds and row.granted < computed <= len(row.tokens))


def _are_new(player: Player, args: Args) -> bool:
    return bool(args["forks"]) and not any(name in player.rows for name in args["forks"])


def _is_a_group(player: Player, args: Args) -> bool:
    return bool(args.get("group", 0) < player.world.num_groups)


def _flies(player: Player, args: Args) -> bool:
    """Some step is in flight; the last one where there are fewer than there were."""
    args["nth"] = min(args.get("nth", 0), len(player.steps) - 1)
    return bool(player.steps)


def _lands(player: Player, args: Args) -> bool:
    return bool(player.steps)


def _is_not_live(player: Player, args: Args) -> bool:
    return args["ask"].name not in player.rows


def _can_be_made(player: Player, args: Args) -> bool:
    return args["wrong"] in dict(misuses(player.trial.subjects[0], args["ask"]))


def _without_claims(player: Player, args: Args) -> bool:
    return not (player.open or player.found or player.writing or player.trial.late)


def _is_alone(player: Player, args: Args) -> bool:
    outside = player.found or player.writing or player.prefetched or player.trial.late or player.steps
    return not player.open and not player.held and not outside and list(player.rows) == [args["name"]]


def _is_empty(player: Player, args: Args) -> bool:
    outside = player.found or player.writing or player.prefetched or player.trial.late or player.steps
    return not (player.open or player.held or outside or player.rows)


MEANS: dict[str, Callable[[Player, Args], bool]] = {
    "claim": _is_new, "claim_in_vain": _is_new, "admit": _is_open, "drop_claim": _is_open,
    "hold": _is_new, "drop_hold": _is_held, "fork": _are_new, "compute": _is_settled,
    "land": _lands, "crash": _flies,
    "tell_nothing": _counts_nothing, "overtell": _is_too_much, "offload": _is_a_group,
    "probe": _is_not_live, "misuse": _can_be_made,
    "find": _is_new, "find_in_vain": _is_new, "use_find": _is_found, "close_find": _is_found,
    "lose": _are_slots, "copy_down": _is_slow, "prefetch": _can_prefetch, "close_prefetch": _is_prefetched,
    "write": _can_write, "extend_writer": _is_written, "written": _is_written, "close_writer": _is_written,
    ending.finish_prompts.__name__: _without_claims, ending.grow_up.__name__: _is_alone,
    ending.live_alone.__name__: _is_empty, ending.come_to_rest.__name__: _is_empty,
}  # fmt: skip
