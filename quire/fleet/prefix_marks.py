"""Prefix marks: a prompt as a chain of hashes, and which prefixes are being computed where. Knows no events.

A worker publishes what it has cached once it has it. Until then only the server knows that a prefix is on its way: it
has sent the prompt. Without that, the first prompts with a beginning in common would go to as many workers as there
are.
"""

from __future__ import annotations

from collections import Counter

from quire.core.records.identity import Scope
from quire.core.records.request import Int32

STEP, FINE, COARSE = 16, 1024, 256  # tokens between two marks; up to here; and behind
Marks = tuple[int, ...]


def marks_of(tokens: Int32, scope: Scope) -> Marks:
    """One per STEP tokens at first, then fewer. Equal ones mean equal prompts up to there, scopes included."""
    data, mark, made, begin = tokens.tobytes(), hash(scope), list[int](), 0
    while (end := begin + (STEP if begin < FINE else COARSE)) <= len(tokens):
        mark = hash((mark, data[4 * begin : 4 * end]))
        made.append(mark)
        begin = end
    return tuple(made)


def tokens_up_to(count: int) -> int:
    """Where so many marks end."""
    fine = min(count, FINE // STEP)
    return fine * STEP + (count - fine) * COARSE


class PromisedPrefixes:
    """Marks of what is under way, by worker."""

    def __init__(self) -> None:
        self._marks: dict[str, Counter[int]] = {}

    def __repr__(self) -> str:
        return f"PromisedPrefixes({ {worker: len(marks) for worker, marks in self._marks.items()} })"

    def add(self, worker: str, marks: Marks) -> None:
        """A prompt goes there."""
        if marks:
            self._marks.setdefault(worker, Counter()).update(marks)

    def remove(self, worker: str, marks: Marks) -> None:
        """It is over, or goes elsewhere."""
        if not marks:
            return
        kept = self._marks[worker]
        for mark in marks:
            if kept[mark] > 1:
                kept[mark] -= 1
            else:
                del kept[mark]
        if not kept:
            del self._marks[worker]

    def leading(self, marks: Marks) -> dict[str, int]:
        """Tokens of this prompt's beginning that workers compute now. A prompt has all marks before its last one."""
        found: dict[str, int] = {}
        for worker, kept in self._marks.items():
            low, high = 0, len(marks)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if marks[middle - 1] in kept else (low, middle - 1)
            if low:
                found[worker] = tokens_up_to(low)
        return found
