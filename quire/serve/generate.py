"""Generate: from a Generation to a reply, whole or as events while it is made. Owns the order of events.

opening of every choice ─► pieces as they come ─► the last piece of each says why it ended ─► usage ─► [DONE]
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from quire.engine.loop.feed import Piece
from quire.serve.answers.answer_stream import AnswerStream
from quire.serve.answers.form import AnswerForm, AnswerHead
from quire.serve.answers.token_usage import usage_of
from quire.serve.any_service import AnyService, Generation
from quire.serve.http.api_errors import BOUND
from quire.serve.http.exchange import JSON, Exchange, encoded

LARGE_CHOICE = 1 << 14  # bytes of a choice behind which others have their turn
AHEAD = 64  # batches of pieces that several prompts may have waiting for the client

Batch = tuple[int, list[Piece]]  # of which prompt, and what has come of it


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Whether an answer comes as events, and what they say of usage."""

    stream: bool = False
    usage: bool = False  # in an event of its own, behind the last
    running_usage: bool = False  # in every event


async def generate(
    service: AnyService, exchange: Exchange, wanted: Generation, form: AnswerForm, head: AnswerHead,
    options: StreamOptions,
) -> None:  # fmt: skip
    """Compute and reply. When the client leaves, nothing of it goes on."""
    async with exchange.watched(), service.streams(wanted) as streams:
        bounds = [stream.bound for stream in streams if stream.bound is not None]
        if bounds:
            exchange.more_headers[BOUND] = f"{1000 * max(bounds):.0f}"
        if options.stream:
            await _Events(service, exchange, streams, form, head, options).send(wanted.sampling.n)
        else:
            await exchange.reply_bytes(200, await _whole(streams, form, head), JSON)


async def _whole(streams: list[AnswerStream], form: AnswerForm, head: AnswerHead) -> bytes:
    """The reply. Choices are encoded one by one: large ones let others go on in between."""
    choices: list[bytes] = []
    num_answered = 0
    for stream in streams:
        answers = await stream.whole()
        prompt: list[int] = stream.prompt.tolist()
        for text, answer in answers:
            choices.append(encoded(form.answer(len(choices), text, answer, prompt)))
            num_answered += len(answer.tokens)
            if len(choices[-1]) > LARGE_CHOICE:
                await asyncio.sleep(0)
    begin, usage = encoded(head.whole(form.kind)), encoded(usage_of(streams, num_answered))
    return b"".join([begin[:-1], b',"choices":[', b",".join(choices), b'],"usage":', usage, b"}"])


class _Events:
    """One reply as events."""

    def __init__(
        self, service: AnyService, exchange: Exchange, streams: list[AnswerStream], form: AnswerForm, head: AnswerHead,
        options: StreamOptions,
    ) -> None:  # fmt: skip
        self._service, self._exchange, self._streams, self._form = service, exchange, streams, form
        self._head = head.chunk(form.chunk_kind)
        self._options = options
        self._num_answered = 0

    async def send(self, answers_per_prompt: int) -> None:
        """From the first event to the last."""
        await self._exchange.begin_events()
        await self._open(answers_per_prompt)
        batches = _batches(self._streams[0]) if len(self._streams) == 1 else _merged(self._streams)
        heard = self._service.metrics.between_tokens(self._exchange.tenant)
        last: dict[int, float] = {}
        async for place, pieces in batches:
            now = time.perf_counter()
            made: list[str] = []
            for piece in pieces:
                choice = place * answers_per_prompt + piece.answer
                self._num_answered += len(piece.tokens)
                made += self._form.piece(choice, piece)
                if piece.tokens:
                    if choice in last:
                        heard(now - last[choice])
                    last[choice] = now
            if made:
                await self._exchange.write(self._events(made))
        end = b""
        if self._options.usage:
            usage = encoded(usage_of(self._streams, self._num_answered)).decode()
            end = f'{self._head}],"usage":{usage}}}\n\n'.encode()
        await self._exchange.end_events(end)

    async def _open(self, answers_per_prompt: int) -> None:
        opening: list[str] = []
        for index, stream in enumerate(self._streams):
            prompt: Sequence[int] = stream.prompt.tolist()
            for nth in range(answers_per_prompt):
                opening.append(self._form.opening(index * answers_per_prompt + nth, prompt))
                if len(opening[-1]) > LARGE_CHOICE:  # others go on in between
                    await self._exchange.write(self._events([one for one in opening if one]))
                    await asyncio.sleep(0)
                    opening.clear()
        if any(opening):
            await self._exchange.write(self._events([one for one in opening if one]))

    def _events(self, choices: list[str]) -> bytes:
        """One event per choice."""
        tail = "]}\n\n"
        if self._options.running_usage:
            tail = f'],"usage":{encoded(usage_of(self._streams, self._num_answered)).decode()}}}\n\n'
        elif self._options.usage:
            tail = '],"usage":null}\n\n'
        return "".join([f"{self._head}{choice}{tail}" for choice in choices]).encode("utf-8", errors="replace")


async def _batches(stream: AnswerStream, place: int = 0) -> AsyncIterator[Batch]:
    """Of one prompt."""
    async for pieces in stream.batches():
        yield place, pieces


async def _merged(streams: list[AnswerStream]) -> AsyncIterator[Batch]:
    """Of several prompts, whichever comes first."""
    queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(AHEAD)

    async def read(place: int, stream: AnswerStream) -> None:
        try:
            async for batch in _batches(stream, place):
                await queue.put(batch)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.ensure_future(read(place, stream)) for place, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            got = await queue.get()
            if isinstance(got, Exception):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
