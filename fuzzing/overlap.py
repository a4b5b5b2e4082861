"""Overlap: steps in flight on the subject's side and on the trial's. Chooses nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuzzing.background import WORDS
from fuzzing.compare import same
from fuzzing.engine import Engine
from fuzzing.oracle.pending import all_rides
from fuzzing.oracle.state import Row
from fuzzing.world import build
from fuzzing.world.plain import Closing, Identity, SetbackFacts
from quire import Cache, Finished, LaunchedStep, Request
from quire import Sequence as Live


class FlightCalls:
    """The calls of a subject that launch steps and close them."""

    cache: Cache
    engine: Engine
    live: dict[str, Live]
    resumable: dict[str, Request]
    steps: list[LaunchedStep]

    @abstractmethod
    def _set_back(self, finished: Finished) -> Closing: ...

    def launch(self, names: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
        """A step is on its way."""
        step = self.cache.launch([self.live[name] for name in names])
        self.steps.append(step)
        return tuple(zip(step.rows.tolist(), step.starts.tolist(), step.ends.tolist(), strict=True))

    def land(self, nth: int, computed: Sequence[int] | None, tokens: Sequence[Sequence[int]]) -> int:
        """A step in flight has run."""
        made = np.full((len(tokens), max(map(len, tokens), default=0)), -1, np.int32)
        for row, new in zip(made, tokens, strict=True):
            row[: len(new)] = new
        numbers = None if computed is None else build.int32(list(computed))
        fresh = self.cache.commit(self.steps[nth], numbers, tokens=made if made.size else None)
        del self.steps[nth]
        return fresh

    def release(self, name: str, store: bool, back: int = 0) -> None:
        """A sequence ends, when no step in flight has it."""
        self.cache.release(self.live[name], store=store, back=WORDS[back])
        del self.live[name]

    def suspend(self, name: str) -> tuple[Identity, ...]:
        """A sequence ends, to go on later; its tokens so far."""
        request = self.resumable[name] = self.cache.suspend(self.live[name])
        del self.live[name]
        return build.identities(request)

    def crash(self, nth: int) -> tuple[SetbackFacts, ...]:
        """A step in flight has failed."""
        setbacks = self.cache.fail(self.steps[nth])
        del self.steps[nth:]
        return self._set_back(Finished(setbacks)).setbacks


class FlightTrial:
    """The same of a trial: what is launched is computed at once, and written again when the step is closed."""

    subjects: Sequence[Any]
    oracle: Any
    reached: Counter[str]

    @abstractmethod
    def do(self, verb: str, *args: Any) -> Any: ...

    @abstractmethod
    def compute(self, name: str, end: int, since: int | None = None, launched: bool = False) -> None: ...

    def launch(self, names: Sequence[str]) -> None:
        """A step in flight: the model computes these sequences as far as they were handed out, places too."""
        coming, size = self.oracle.model.coming, self.oracle.world.block_size
        later = sum(max(owner.computed, owner.launched) > owner.begun * size for _, owner, *_ in coming)
        told = self.do("launch", names)
        self.reached["shared within a batch"] += max(0, len(coming) - len(self.oracle.model.coming))
        self.reached["shared with a prompt under way"] += later if not self.oracle.model.coming else 0
        for subject in self.subjects if told is not None else ():
            subject.engine.begin()
        for name, (_, since, end) in zip(names, told or (), strict=bool(told)):
            self.compute(name, end, since, launched=True)

    def land(self, computed: Sequence[int] | None, tokens: Sequence[Sequence[int]]) -> None:
        """The oldest step in flight is committed, and may have written until now."""
        for row, *_ in self.oracle.model.steps[0].counts():
            for subject in self.subjects:
                wrong = subject.engine.misread(row.number)
                same(f"what a late step reads wrong for row {row.number} ({subject.store})", wrong, None)
        for subject in self.subjects:
            subject.engine.land()
        self.do("land", 0, computed, tokens)

    def crash(self, nth: int) -> None:
        """A step in flight fails, and those behind it."""
        for subject in self.subjects:
            subject.engine.crash(nth)
        sharers = self._sharers()
        for _, name, _, _, lost in self.do("crash", nth):
            self.reached["sequence lost in flight" if lost else "sequence taken back"] += 1
            self._count_sharer(name in sharers, lost)

    def lose(self, group: int, slots: Sequence[int], tier: int) -> Closing:
        """Pages are bad, of those perhaps that steps in flight compute for several rows."""
        sharers = self._sharers()
        closing: Closing = self.do("lose", group, slots, tier)
        for kind, name, _, _, lost in closing.setbacks:
            self._count_sharer(kind == "sequence" and name in sharers, lost)
        return closing

    def _sharers(self) -> set[str]:
        return {row.ask.name for row, *_ in all_rides(self.oracle.model)}

    def _count_sharer(self, shares: bool, lost: bool) -> None:
        self.reached["sharer lost" if lost else "sharer taken back"] += shares


def coming(row: Row, start: int, end: int) -> list[int]:
    """The tokens that a model makes at some places of a sequence."""
    return [(row.number + place) % 2 for place in range(start, end)]
