"""Tenants: who takes turns in the scheduler. Owns what is known of each; which goes first is decided in `fairness/`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

NO_DEADLINE = float("inf")
TokenKey = tuple[int, int, float, int]


class Together(NamedTuple):
    """The prompts of one call: they have one share among them, and no tenant otherwise."""

    id: str


class Tenant:
    """One that takes turns: a tenant by name, the prompts of one call, or one request."""

    __slots__ = ("granted", "key", "num_runs", "num_waiting", "since", "time")

    def __init__(self, key: Hashable, granted: int = 0, time: float = 0.0) -> None:
        self.key = key
        self.granted = granted  # priority among tenants, lower first: the operator's, never a client's own
        self.time = time  # virtual, in tokens
        self.since = 0  # arrival of the request that made it wait: of equal rounds the earliest goes first
        self.num_runs = 0  # inside the engine
        self.num_waiting = 0  # branches without pages

    def __repr__(self) -> str:
        return f"Tenant({self.num_runs} runs, {self.num_waiting} branches wait, at {self.time:.0f})"
