"""Pace: how long a step takes, as a model. Nothing here is measured: rates go in, virtual seconds come out.

step = max(up + compute, down)       compute = prompt tokens / prefill rate + one decode turn if any decodes
up   = bytes onboarded / bandwidth             and at least the turn of one sequence: the weights are read for any
down = bytes offloaded / bandwidth   turn    = decode_ms + decode_ms_per_sequence x decoding sequences
Pages must be up before they are read; links work both ways at once.
turns without a prompt = max(up + turns x turn, down)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire import InputError
from quire.core.records.errors import say

NOTE = "modelled from stated rates and bandwidths, not measured"
LEAST, MOST = 1e-9, 1e18  # of any rate or time: beyond it numbers are no machine's, and sums of them overflow
MOST_SECONDS = 1e9  # thirty years, on a clock that counts nanoseconds
DEFAULT_LINKS = (50e9, 5e9)  # bytes per second to the host, and to anything colder


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates of one engine."""

    prefill_tokens_per_second: float = 40_000.0
    decode_ms: float = 12.0
    decode_ms_per_sequence: float = 0.05
    links: tuple[float, ...] = ()  # bytes per second between the device and each colder tier; missing: the default

    def __post_init__(self) -> None:
        for name, number in (
            ("prefill rate", self.prefill_tokens_per_second),
            ("decode time", self.decode_ms),
            *(("link bandwidth", link) for link in self.links),
        ):
            if not LEAST <= number <= MOST:
                fact = "nothing would ever finish" if number <= 0 else "it is not a rate that a machine has"
                raise InputError(say(f"{name} {number!r}", fact, f"give a number above 0, of {LEAST:g} to {MOST:g}"))
        if not 0 <= self.decode_ms_per_sequence <= MOST:
            ask = f"decode_ms_per_sequence {self.decode_ms_per_sequence!r}"
            raise InputError(say(ask, "it is not a time that a machine takes", f"give 0 or more, up to {MOST:g}"))

    def link(self, tier: int) -> float:
        """Bytes per second between the device and a colder tier, numbered from 1."""
        if tier <= len(self.links):
            return self.links[tier - 1]
        return DEFAULT_LINKS[min(tier, len(DEFAULT_LINKS)) - 1]

    @property
    def least(self) -> float:
        """Seconds that any step takes: no first token comes sooner."""
        return self.turn(1)

    def turn(self, num_decoding: int) -> float:
        """Seconds in which every decoding sequence makes one token."""
        return (self.decode_ms + self.decode_ms_per_sequence * num_decoding) / 1000

    def step(self, tokens: int, num_decoding: int, up: Sequence[int], down: Sequence[int]) -> float:
        """Seconds of a step: prompt tokens computed, sequences that decode besides, bytes moved by tier."""
        compute = tokens / self.prefill_tokens_per_second
        compute = compute + self.turn(num_decoding) if num_decoding else max(compute, self.least)
        return max(self.carry(up) + compute, self.carry(down))

    def decode(self, turns: int, num_decoding: int, up: Sequence[int], down: Sequence[int]) -> float:
        """Seconds of turns that follow each other without a prompt, and of the bytes moved for them."""
        return max(self.carry(up) + turns * self.turn(num_decoding), self.carry(down))

    def carry(self, num_bytes: Sequence[int]) -> float:
        """Seconds that moves take. Links of different tiers work side by side."""
        if len(num_bytes) == 2:
            return num_bytes[1] / self.link(1) if num_bytes[1] else 0.0
        if not any(num_bytes):
            return 0.0
        return max([count / self.link(tier) for tier, count in enumerate(num_bytes) if count])


USUAL = Pace()


def check_clock(seconds: float) -> None:
    """Refuse a time that a replay's clock does not reach."""
    if not seconds <= MOST_SECONDS:
        fact = f"with these rates it takes {seconds:.3g} s, and its clock goes to {MOST_SECONDS:g}"
        raise InputError(say("a replay", fact, "give a faster engine or link, or a larger --speed"))
