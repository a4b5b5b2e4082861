"""prompt_diff: the same requests written in two ways: what each way reuses of the prompts before it, and what is lost.

    old   S T u1     S T u1 a1 u2          the second reuses S T u1
    new   9:00 S T u1     9:05 S T u1 ...  the second reuses nothing: S T u1 is lost, from token 0 on

Nothing is ever forgotten, and blocks are shared as a whole. Keeps the prompts of one log in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from quire.insight.findings.exact import equal_tokens
from quire.insight.prompt_changes.recorded_rate import per_day, seconds_of
from quire.trace.prompts.logged_prompts import LoggedPrompt
from quire.trace.units import Int32

MOST_REASONS = 10
NEAR = 32  # tokens between places that are reported as one


@dataclass(slots=True)
class PromptReuse:
    """What one prompt finds of those before it."""

    prompt: LoggedPrompt
    tokens: int  # in whole blocks
    parts_at: int  # tokens it shares with the earlier prompt that has most of its blocks


@dataclass(frozen=True, slots=True)
class LossExample:
    """The request of a loss that stands first, in both logs: from where to where it shares no more."""

    line: int  # of the new log
    old_line: int
    token: int  # of the new prompt: what it shares ends there
    old_token: int  # of the old prompt: what it shared ended there
    blocks: tuple[int, int]  # of the old prompt, [first, end): shared then, computed now
    message: str | None = None  # what has the token, in words
    old_message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "blocks": list(self.blocks)}


@dataclass(frozen=True, slots=True)
class Loss:
    """Requests of one application that reuse less than before, and part from earlier prompts at one place."""

    application: str | None  # as the log names it
    token: int  # of the new prompts: sharing ends there,
    last_token: int  # or up to here
    requests: tuple[int, ...]  # by place in the log, from 0 on
    tokens: int  # that are computed now and were not before
    per_day: float | None  # the same, at the recorded rate
    example: LossExample

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "application": self.application, "token": self.token, "last_token": self.last_token,
            "requests": len(self.requests), "tokens": self.tokens,
            "tokens_per_request": round(self.tokens / len(self.requests)),
            "tokens_per_day": None if self.per_day is None else round(self.per_day), "line": self.example.line,
            "message": self.example.message, "example": self.example.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PromptDiff:
    """Two ways of writing the same requests."""

    requests: int
    changed: int  # requests that are written in another way
    changed_at: int | None  # the first token of most of them that is another
    old_rate: float  # tokens reused, of all prompt tokens
    new_rate: float
    lost_per_day: float | None  # tokens, at the recorded rate; None: the log has no times to tell
    losses: tuple[Loss, ...]  # the largest first
    gained: int  # tokens that are reused now and were not before

    @property
    def lost(self) -> int:
        """Tokens, of all requests."""
        return sum(loss.tokens for loss in self.losses)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "requests": self.requests, "changed": self.changed, "changed_at": self.changed_at,
            "old_reuse": round(self.old_rate, 4), "new_reuse": round(self.new_rate, 4), "lost_tokens": self.lost,
            "gained_tokens": self.gained,
            "lost_tokens_per_day": None if self.lost_per_day is None else round(self.lost_per_day),
            "losses": [loss.to_json() for loss in self.losses[:MOST_REASONS]],
        }  # fmt: skip


def reuse_of(prompts: Iterable[LoggedPrompt], block_size: int) -> list[PromptReuse]:
    """Each prompt, beside all before it in its scope."""
    seen: dict[bytes, int] = {}  # a block and all before it -> the latest prompt that has it
    found: list[PromptReuse] = []
    for number, prompt in enumerate(prompts):
        names = _names(prompt, block_size)
        count = next((place for place, name in enumerate(names) if name not in seen), len(names))
        other = seen[names[count - 1]] if count else number - 1
        shared = equal_tokens(prompt.tokens, found[other].prompt.tokens) if found and other >= 0 else 0
        found.append(PromptReuse(prompt, count * block_size, max(shared, count * block_size)))
        seen.update(dict.fromkeys(names, number))
    return found


def _names(prompt: LoggedPrompt, block_size: int) -> list[bytes]:
    name = blake2b(prompt.scope.key, digest_size=16).digest()
    names = []
    for end in range(block_size, len(prompt.tokens) + 1, block_size):
        name = blake2b(prompt.tokens[end - block_size : end].tobytes(), digest_size=16, key=name).digest()
        names.append(name)
    return names


def diff_prompts(
    old: Sequence[PromptReuse], new: Sequence[PromptReuse], block_size: int, has_times: bool = True
) -> PromptDiff:
    """The nth request of one log beside the nth of the other; without times no day is reported."""
    shorter: dict[str | None, list[int]] = {}  # by application, requests that reuse less
    first: Counter[int] = Counter()
    gained = 0
    for number, (one, other) in enumerate(zip(old, new, strict=True)):
        gained += max(other.tokens - one.tokens, 0)
        if (place := _changed_at(one.prompt.tokens, other.prompt.tokens)) is not None:
            first[place] += 1
        if one.tokens > other.tokens:
            shorter.setdefault(other.prompt.name, []).append(number)
    seconds = seconds_of([one.prompt.time for one in old]) if has_times else None
    losses = []
    places = ((name, numbers) for name, every in shorter.items() for numbers in _places(every, new))
    for name, numbers in places:
        tokens = sum(old[number].tokens - new[number].tokens for number in numbers)
        example = _example(old[numbers[0]], new[numbers[0]], block_size)
        ends = [new[number].parts_at for number in numbers]
        losses.append(Loss(name, min(ends), max(ends), tuple(numbers), tokens, per_day(tokens, seconds), example))
    losses.sort(key=lambda loss: -loss.tokens)
    lost = sum(loss.tokens for loss in losses)
    return PromptDiff(
        len(old), sum(first.values()), first.most_common(1)[0][0] if first else None, _rate(old), _rate(new),
        per_day(lost, seconds), tuple(losses), gained,
    )  # fmt: skip


def _places(numbers: Sequence[int], new: Sequence[PromptReuse]) -> list[list[int]]:
    """Requests whose sharing ends at one place, or near it: ids begin alike now and then."""
    found: list[list[int]] = []
    for number in sorted(numbers, key=lambda one: new[one].parts_at):
        if not found or new[number].parts_at - new[found[-1][0]].parts_at > NEAR:
            found.append([])
        found[-1].append(number)
    return [sorted(one) for one in found]


def _example(old: PromptReuse, new: PromptReuse, block_size: int) -> LossExample:
    blocks = new.tokens // block_size, old.tokens // block_size
    return LossExample(new.prompt.line, old.prompt.line, new.parts_at, old.parts_at, blocks)


def _changed_at(old: Int32, new: Int32) -> int | None:
    place = equal_tokens(old, new)
    return None if place == len(old) == len(new) else place


def _rate(reuses: Sequence[PromptReuse]) -> float:
    return sum(one.tokens for one in reuses) / max(sum(len(one.prompt.tokens) for one in reuses), 1)
