"""Weights: how often each kind of call is made. Knows only their names."""

from __future__ import annotations

WEIGHTS = {
    "add": 11, "claim": 8, "admit": 9, "drop_claim": 2, "step": 25, "tell": 3, "go_on": 3, "grow": 10, "trim": 3,
    "fork": 4, "release": 18, "suspend": 2, "hold": 2, "drop_hold": 8, "truncate": 0.6, "clear": 0.1, "offload": 2,
    "refresh": 2, "flush": 2, "probe": 3, "misuse": 1, "run_plans": 2, "retry": 4, "hold_prompt": 3, "overtell": 1,
    "beams": 2,
}  # fmt: skip
VERBS, SHARES = list(WEIGHTS), list(WEIGHTS.values())
