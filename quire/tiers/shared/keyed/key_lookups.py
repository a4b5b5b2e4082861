"""KeyLookups: whether a store has a page, asked without waiting. Owns the answers; knows neither store nor engine.

    look(key, request) ─► None: asked with the next flush      flush ─► one question for all keys of a step
                       ─► True, False: as it was answered      end(request) ─► its answers may go

An answer lasts as long as a request that has asked, so that none sees two answers, and none asks at every step for what
is not there. One that does not come in time is a no. For the caller's one thread; answers come on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

Ask = Callable[[Sequence[bytes], Callable[[list[bool]], None]], bool]
"""Asks for many keys at once; False: no answer will come."""


@dataclass(slots=True, eq=False)
class _Question:
    """About one key."""

    since: float
    requests: set[str] = field(default_factory=set)
    answer: bool | None = None


class KeyLookups:
    """Answers about keys, for the requests that live. `patience`: seconds after which no answer is a no."""

    def __init__(self, ask: Ask, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._patience, self._clock = ask, patience, clock
        self._questions: dict[bytes, _Question] = {}
        self._of_request: dict[str, set[bytes]] = {}
        self._new: list[tuple[bytes, _Question]] = []
        self._answers: SimpleQueue[list[tuple[_Question, bool]]] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._questions)

    def look(self, key: bytes, request: str) -> bool | None:
        """Whether it is there; None: not known yet."""
        self._hear()
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = _Question(self._clock())
            self._new.append((key, question))
        if request not in question.requests:
            question.requests.add(request)
            self._of_request.setdefault(request, set()).add(key)
        if question.answer is None and self._clock() - question.since > self._patience:
            question.answer = False
        return question.answer

    def flush(self) -> None:
        """Ask for all that is new, at once."""
        new = [(key, question) for key, question in self._new if question.answer is None and question.requests]
        self._new = []
        if not new:
            return
        questions = [question for _, question in new]

        def then(there: list[bool]) -> None:
            self._answers.put(list(zip(questions, there, strict=True)))

        if not self._ask([key for key, _ in new], then):
            then([False] * len(new))

    def mark(self, keys: Iterable[bytes], there: bool) -> None:
        """What a caller knows better: it has just sent a page, or could not read it."""
        for key in keys:
            if key in self._questions:
                self._questions[key].answer = there

    def end(self, request: str) -> None:
        """A request has ended; what no other asks for is forgotten."""
        for key in self._of_request.pop(request, ()):
            question = self._questions[key]
            question.requests.discard(request)
            if not question.requests:
                del self._questions[key]

    def _hear(self) -> None:
        while not self._answers.empty():
            for question, there in self._answers.get():
                if question.answer is None:  # else it was marked meanwhile, or was given up
                    question.answer = there
