"""Findings: what the calls of an incident say by themselves: hits and refusals over time, who waits, what is left open.

Read from the recorded answers: no cache is needed, and a file that begins in the middle will do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.incidents.files.incident_file import Incident, Plain

PARTS = 10
OPENED = {
    "hold": "hold", "find": "find", "writer": "writer", "prefetch": "prefetch", "claim": "claims", "launch": "step",
}  # fmt: skip
CLOSED = ("drop", "close_find", "close_writer", "close_prefetch", "drop_claims", "admit", "commit_step")
STEPS = ("launch", "commit_step", "fail")  # they have numbers of their own


@dataclass(slots=True)
class Stretch:
    """A tenth of an incident."""

    start: float  # seconds
    admitted: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    refused: int = 0
    grown: int = 0  # calls
    stuck: int = 0  # of them without room

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompts that was reused."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(slots=True)
class RequestWithoutRoom:
    """A request that was asked for and did not get in."""

    number: int
    first: float
    last: float = 0.0
    asked: int = 0
    why: list[object] = field(default_factory=list)  # of its last refusal: reason, need, have, never, group
    behind: int = 0  # how often others were refused for their place behind it


@dataclass(slots=True)
class Findings:
    """Of one incident."""

    stretches: list[Stretch]
    waiting: list[RequestWithoutRoom]  # the longest first
    left_open: list[tuple[str, int, float]]  # what, its number, since when

    def words(self) -> list[str]:
        """For people."""
        lines = ["   from s  admitted  hit rate  refused  no room to grow"]
        for one in self.stretches:
            rate = "       -" if one.hit_rate is None else f"{one.hit_rate:8.1%}"
            lines.append(f"{one.start:9.1f}{one.admitted:10}{rate:>10}{one.refused:9}{one.stuck:8} of {one.grown}")
        for who in self.waiting[:3]:
            lines.append(
                f"request {who.number} waited {who.last - who.first:.1f} s, asked {who.asked} times{_why(who)}"
            )
        for what, number, since in self.left_open[:5]:
            lines.append(f"{what} {number} is open since {since:.1f} s")
        if len(self.left_open) > 5:
            lines.append(f"... and {len(self.left_open) - 5} more")
        return lines


def _why(who: RequestWithoutRoom) -> str:
    if not who.why:
        return ""
    reason, need, have = who.why[:3]
    behind = f", and held back those behind it {who.behind} times" if who.behind else ""
    return f": it needs {need} {reason}, {have} are there{behind}"


def find_out(incident: Incident) -> Findings:
    """Look through all calls."""
    if not incident.calls:
        return Findings([], [], [])
    begun, width = float(incident.calls[0][1]), max(incident.seconds / PARTS, 1e-9)
    stretches = [Stretch(nth * width) for nth in range(PARTS)]
    waiting: dict[int, RequestWithoutRoom] = {}
    is_open: dict[tuple[bool, int], tuple[str, float]] = {}
    claimed: dict[int, list[int]] = {}
    for call in incident.calls:
        verb, time, _, given, answer = call
        at = float(time) - begun
        stretch = stretches[min(PARTS - 1, max(0, int(at / width)))]
        if verb in ("claim", "add"):
            asked = [one[0] for one in given[0]]
            for number in asked:
                who = waiting.setdefault(number, RequestWithoutRoom(number, at))
                who.last, who.asked = at, who.asked + 1
            if verb == "claim":
                claimed[answer[0]] = asked
        if verb in ("add", "admit"):
            _count(call, stretch, waiting, claimed.pop(given[0], []) if verb == "admit" else asked)
        elif verb == "grow":
            stretch.grown, stretch.stuck = stretch.grown + 1, stretch.stuck + (answer is None)
        if verb in OPENED and answer is not None and isinstance(answer[0], int):
            is_open[verb in STEPS, answer[0]] = OPENED[verb], at
        elif verb in CLOSED:
            is_open.pop((verb in STEPS, given[0]), None)
        elif verb == "fail":  # and all behind it
            is_open = {who: since for who, since in is_open.items() if not who[0] or who[1] < given[0]}
    left = [(what, number, since) for (_, number), (what, since) in is_open.items()]
    longest = sorted(waiting.values(), key=lambda who: who.first - who.last)
    return Findings(stretches, [who for who in longest if who.last > who.first], left)


def _count(call: Plain, stretch: Stretch, waiting: dict[int, RequestWithoutRoom], asked: list[int]) -> None:
    """What an admission says."""
    rows, _, _, refused, _ = call[4]
    for number, _, start, length in rows:
        stretch.admitted, stretch.prompt_tokens = stretch.admitted + 1, stretch.prompt_tokens + length
        stretch.hit_tokens += start
        waiting.pop(number, None)
    stretch.refused += len(refused)
    seated = {row[0] for row in rows}
    out = [number for number in asked if number not in seated]
    first: RequestWithoutRoom | None = None
    for number, why in zip(out, refused, strict=False):
        who = waiting.get(number)
        if who is None:
            continue
        if why[0] != "order":
            who.why, first = list(why), who
        elif first is not None:
            first.behind += 1
