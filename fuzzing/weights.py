"""Weights: how often each kind of call is made, and the habits by which worlds differ. Knows only names and numbers.

What happens by itself only now and then gets worlds in which it happens all the time: pages that come up from colder
tiers, claims that stay open while others live and die, moves that fail one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

WEIGHTS = {
    "add": 11.0, "claim": 8.0, "admit": 9.0, "drop_claim": 2.0, "step": 25.0, "tell": 3.0, "go_on": 3.0, "grow": 10.0,
    "trim": 3.0, "fork": 4.0, "release": 18.0, "suspend": 2.0, "hold": 2.0, "drop_hold": 8.0, "truncate": 0.6,
    "clear": 0.1, "offload": 2.0, "refresh": 2.0, "flush": 2.0, "probe": 3.0, "misuse": 1.0, "run_plans": 2.0,
    "hint": 2.0, "retry": 4.0, "hold_prompt": 3.0, "overtell": 1.0, "beams": 2.0, "serve": 1.0, "forget": 1.0,
    "find": 6.0, "use_find": 3.0, "close_find": 5.0, "lose": 1.0,
    "write": 6.0, "extend_writer": 3.0, "written": 8.0, "close_writer": 2.0,
    "copy_down": 0.0, "prefetch": 0.0, "close_prefetch": 0.0, "late": 0.0, "take_changes": 0.0,
    "fly": 0.0, "land": 0.0, "crash": 0.0,
}  # fmt: skip
VERBS = list(WEIGHTS)


@dataclass(frozen=True)
class Habits:
    """How the calls of one world are chosen."""

    more: tuple[tuple[str, float], ...] = ()  # calls with another weight than usual
    cold: float = 0.3  # share of requests along pages that are not on the device
    fail: float = 0.5  # share of runs of plans in which something fails, where tiers are flaky
    burst: float = 0.0  # share of runs after which all fails for a while
    keep: int = 0  # calls a claim stays open at least, up to twice as many
    most_open: int = 3  # batches claimed at once

    def shares(self, slow: bool, ahead: bool) -> list[float]:
        """The weight of each verb and all before it; what a slow tier has besides, and an engine that runs ahead."""
        more = {**(dict(IN_SLOW) if slow else {}), **(dict(AHEAD) if ahead else {}), **dict(self.more)}
        return list(accumulate(more.get(verb, weight) for verb, weight in WEIGHTS.items()))


FEW = (("fork", 1.0), ("trim", 1.0), ("grow", 5.0), ("hold", 1.0), ("retry", 1.0), ("hold_prompt", 0.5), ("probe", 1.0))
USUAL = Habits()
CARRIER = Habits((*FEW, ("serve", 25.0), ("release", 22.0), ("offload", 4.0), ("claim", 4.0)), cold=0.85, fail=0.3)
KEEPER = Habits(
    (*FEW, ("serve", 10.0), ("claim", 16.0), ("drop_claim", 0.5), ("admit", 12.0)), cold=0.7, keep=20, most_open=6
)
UNLUCKY = Habits(
    (*FEW, ("serve", 16.0), ("claim", 14.0), ("run_plans", 6.0), ("drop_claim", 1.0), ("release", 22.0)),
    cold=0.8, fail=0.7, burst=0.1, keep=10, most_open=5,
)  # fmt: skip
HOST = Habits(  # nothing is admitted where there is no device
    (("add", 1.0), ("claim", 1.0), ("write", 20.0), ("written", 25.0), ("extend_writer", 10.0), ("find", 20.0),
     ("use_find", 10.0), ("close_find", 15.0), ("lose", 4.0)), cold=0.6,
)  # fmt: skip
SERVER = Habits(  # long texts come and go, and what they leave is in the way of those that follow
    (*FEW, ("serve", 30.0), ("release", 30.0), ("suspend", 4.0), ("fork", 4.0), ("hold", 3.0), ("write", 8.0),
     ("refresh", 5.0), ("offload", 4.0), ("truncate", 1.0)), cold=0.3, fail=0.15, keep=5,
)  # fmt: skip
TALKER = Habits((*FEW, ("serve", 12.0), ("hint", 8.0), ("add", 16.0), ("release", 24.0)))
IN_SLOW = (("copy_down", 10.0), ("prefetch", 9.0), ("close_prefetch", 3.0), ("late", 18.0), ("take_changes", 1.0))
AHEAD = (("fly", 40.0), ("land", 12.0), ("crash", 1.5), ("step", 8.0))
IN_COLD = (KEEPER, CARRIER, UNLUCKY)


def random_habits(rng: Random, cold: bool) -> Habits:
    """Those of one world; where colder tiers matter, seldom the usual ones."""
    return rng.choice(IN_COLD) if cold else KEEPER if rng.random() < 0.1 else USUAL
