"""AnswerStream: what replies are made from: answers to one prompt, whole or piece by piece. LoopStream: an engine's.

A reply does not know whether its answers are computed in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import numpy as np

from quire.core.records.request import Int32
from quire.engine.loop.feed import Piece
from quire.engine.loop.stream import RunFailed, Stream
from quire.engine.step.runs.branch import Answer

_NO_TOKENS = np.empty(0, np.int32)


class WholeAnswer(NamedTuple):
    """One answer that is complete."""

    text: str
    answer: Answer


class AnswerStream(Protocol):
    """The answers to one prompt. It is read once, one way or the other."""

    @property
    def prompt(self) -> Int32:
        """Its token ids."""
        ...

    @property
    def reused(self) -> int:
        """How many of them need not be computed; 0 before that is known."""
        ...

    @property
    def bound(self) -> float | None:
        """Seconds from when it was asked for until its first token comes at the latest; None: nothing was said."""
        ...

    def batches(self) -> AsyncIterator[list[Piece]]:
        """What has come, as often as something has; raises why the run has failed."""
        ...

    async def whole(self) -> list[WholeAnswer]:
        """All answers, when they are complete; raises why the run has failed."""
        ...


class LoopStream:
    """A stream of this process's engine."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @property
    def prompt(self) -> Int32:
        """Its token ids."""
        return _NO_TOKENS if self.stream.run is None else self.stream.run.prompt

    @property
    def reused(self) -> int:
        """Known once it has been admitted."""
        return 0 if self.stream.run is None else self.stream.run.reused

    @property
    def bound(self) -> float | None:
        """Of one that was accepted with a deadline."""
        run = self.stream.run
        return None if run is None or not run.times.bound else run.user_times.bound

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """Pieces that wait go together."""
        feed = self.stream.feed
        while (piece := await feed.take_async()) is not None:
            pieces = [piece]
            while feed.num_unread and (more := feed.take()) is not None:
                pieces.append(more)
            self._check()
            yield pieces
        self._check()

    async def whole(self) -> list[WholeAnswer]:
        """When the run is over; it is not woken before."""
        run = await self.stream.wait_async()
        self._check()
        texts = [transcript.text for transcript in self.stream.transcripts] or [""] * len(run.answers)
        return [WholeAnswer(text, answer) for text, answer in zip(texts, run.answers, strict=True)]

    def _check(self) -> None:
        run = self.stream.run
        if run is not None and run.error is not None:
            raise RunFailed(run.error)
