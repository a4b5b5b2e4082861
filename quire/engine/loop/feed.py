"""Feed: the engine's side of a stream. Pieces are kept until they are read. Knows neither the engine nor its reader.

    engine --hear, over--> Feed --take--> Stream --> reader

It does not keep the Stream alive: when the last reference to that is gone, the run is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Condition

from quire.engine.loop.text import Transcript
from quire.engine.sampling.token_logprobs import TokenLogprobs
from quire.engine.step.runs.branch import Finish, Run
from quire.engine.step.runs.page_hints import COMPLETE

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one answer: tokens, and the text that is final with them."""

    answer: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, if they were asked for
    finish: Finish | None = None  # why the answer is complete with this piece; None: there is more

    def __repr__(self) -> str:
        end = "" if self.finish is None else f", {self.finish}"
        return f"Piece(answer {self.answer}, {len(self.tokens)} tokens, {len(self.text)} characters{end})"


class Feed:
    """A Listener. `behind` is called once, in the engine's thread, when more than `most_unread` pieces wait."""

    def __init__(self, transcripts: list[Transcript], most_unread: int | None, behind: Callable[[Feed], None]) -> None:
        self.run: Run | None = None  # once the engine has taken it
        self.asked = 0.0  # when, on the engine's clock
        self.tenant: Hashable = None  # whose place it has in the engine
        self.transcripts = transcripts  # one per answer; none without a tokenizer
        self.most_unread = most_unread  # None: it is waited for, not read
        self.on_over: Callable[[], None] | None = None
        self.is_over = False
        self._behind: Callable[[Feed], None] | None = behind
        self._complete: set[int] = set()  # answers whose last piece was delivered
        self._pieces: deque[Piece] = deque()
        self._news = Condition()
        self._readers: list[_Waiter] = []  # for the next piece
        self._waiters: list[_Waiter] = []  # for the end

    @property
    def num_unread(self) -> int:
        """Pieces that wait for a reader."""
        return len(self._pieces)

    # -- the engine's side: a Listener -------------------------------------------------------------------------------

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        """New tokens; True when their text has reached a stop string."""
        transcript = self.transcripts[branch] if self.transcripts else None
        text = "" if transcript is None else transcript.add(tokens)
        stopped = transcript is not None and transcript.stopped
        answer = run.answers[branch]
        finish = answer.finish or ("stop" if stopped else None)
        if finish is not None:
            self._complete.add(branch)
            text += "" if transcript is None else transcript.end()
            if finish in COMPLETE and transcript is not None and (calls := run.hints.calls_tool) is not None:
                answer.called = calls(transcript.text)
        self._tell(Piece(branch, tuple(tokens), text, tuple(answer.logprobs[-len(tokens) :]), finish))
        if self.most_unread is not None and len(self._pieces) > self.most_unread and self._behind is not None:
            behind, self._behind = self._behind, None
            behind(self)
        return stopped

    def over(self, run: Run) -> None:
        """The run is done: hand out what was held back."""
        self.run = run
        try:
            for nth, answer in enumerate(run.answers):
                if nth not in self._complete:
                    rest = self.transcripts[nth].end() if self.transcripts else ""
                    self._tell(Piece(nth, (), rest, finish=answer.finish))
        finally:  # whatever a tokenizer does, no reader waits for ever
            if self.on_over is not None:
                self.on_over()
            self._tell(None)

    def _tell(self, piece: Piece | None) -> None:
        with self._news:
            if piece is None:
                self.is_over = True
            else:
                self._pieces.append(piece)
            woken, self._readers = self._readers, []
            if self.is_over:
                woken += self._waiters
                self._waiters = []
            self._news.notify_all()
        for loop, future in woken:
            with contextlib.suppress(RuntimeError):  # that event loop is closed: nothing waits there any more
                loop.call_soon_threadsafe(_wake, future)

    # -- the reader's side -------------------------------------------------------------------------------------------

    def take(self) -> Piece | None:
        """The next piece, when it is there; None: nothing more will come."""
        with self._news:
            self._news.wait_for(lambda: self._pieces or self.is_over)
            return self._pieces.popleft() if self._pieces else None

    async def take_async(self) -> Piece | None:
        """The same for coroutines."""
        while (news := self._await_news(unread=True)) is not None:
            await news
        with self._news:
            return self._pieces.popleft() if self._pieces else None

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is over; False when it is not in time."""
        with self._news:
            return self._news.wait_for(lambda: self.is_over, timeout)

    async def wait_async(self) -> None:
        """The same for coroutines, as long as it takes."""
        while (news := self._await_news(unread=False)) is not None:
            await news

    def _await_news(self, unread: bool) -> asyncio.Future[None] | None:
        """What to wait for; None when it is over or, with `unread`, when there is something to read."""
        with self._news:
            if self.is_over or (unread and self._pieces):
                return None
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            (self._readers if unread else self._waiters).append((loop, future))
            return future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
