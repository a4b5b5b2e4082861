"""Many streams at once, from threads and event loops, and cancels at any moment: nobody else's answer changes.

Every round is the same load on the same engine: small pools, a host tier, 200 who ask at once where a few fit. Answers
are those of an engine that nobody disturbs. Afterwards every page is accounted for, no promise was broken, nothing is
left in memory, and each way of giving up has really happened while a run was under way.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from threading import Condition
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import quire  # noqa: E402
from quire.core.records.groups import Lengths  # noqa: E402
from quire.engine import Engine, EngineConfig, Loop, Model, Piece, Run, Sampling, Stream, from_module  # noqa: E402
from quire.engine.step.runs.branch import Branch  # noqa: E402

from ...effort import cases, slow  # noqa: E402
from ...waits import PATIENCE, until  # noqa: E402
from .. import families  # noqa: E402
from ..reference import Reference  # noqa: E402
from ..steps import by_pool, reference_of  # noqa: E402
from ..threads import Crew  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402

BLOCK = 8
LONGEST_PROMPT, LONGEST_ANSWER = 72, 16
PLACES = 24  # runs inside
ROWS = 12
ROUNDS = 3
FLAT = 1000  # memory blocks by which a later round may differ from the one before: a run left behind has some 50
EVENT_LOOPS = 2
WAYS = (
    "early",  # closes its stream before it reads
    "close",  # closes it while it reads
    "leave",  # leaves its `for` or `async for`
    "told",  # somebody else closes it
    "task",  # its task is cancelled while it reads
    "outside",  # its task is cancelled while it waits for a place
)


@dataclass
class Ask:
    """One request, and how its reader behaves."""

    prompt: list[int]
    sampling: Sampling
    way: str  # finish, or one of WAYS
    moment: int  # pieces after which it gives up


@dataclass
class Told:
    """What one reader heard."""

    ask: Ask
    pieces: list[Piece] = field(default_factory=list)
    stream: Stream | None = None  # None: it gave up before the engine took it

    def tokens(self, answer: int) -> list[int]:
        return [token for piece in self.pieces if piece.answer == answer for token in piece.tokens]

    def text(self, answer: int) -> str:
        return "".join(piece.text for piece in self.pieces if piece.answer == answer)


def draw(model: Model, seed: int, number: int) -> list[Ask]:
    """The same load for the same seed."""
    dice = random.Random(seed)

    def words(length: int) -> list[int]:
        return [dice.randrange(families.FIRST_WORD, families.VOCAB) for _ in range(length)]

    systems = [words(dice.randrange(8, 48)) for _ in range(6)]
    asks = []
    for _ in range(number):
        prompt = [*dice.choice(systems), *words(dice.randrange(1, 24))][:LONGEST_PROMPT]
        fields: dict[str, Any] = {
            "max_tokens": dice.randrange(4, LONGEST_ANSWER + 1),
            "ignore_eos": dice.random() < 0.5,
        }
        kind = dice.random()
        if kind < 0.15:
            fields |= {"n": 2, "temperature": 0.8, "seed": dice.randrange(1 << 30)}
        elif kind < 0.3:
            fields |= {"temperature": 0.8, "seed": dice.randrange(1 << 30)}
        elif kind < 0.4:
            fields |= {"beams": 2}
        elif kind < 0.6 and not model.recurrent:
            fields |= {"drafts": 3}
        asks.append(Ask(prompt, Sampling(**fields), "finish", dice.randrange(1, 5)))
    for nth, place in enumerate(dice.sample(range(number), number * 2 // 5)):
        asks[place].way = WAYS[nth % len(WAYS)]
    return asks


def config_of(model: Model) -> EngineConfig:
    """Room for a few of them on the device, and for a few more on the host; states enough, so that pages run out."""
    lengths = Lengths(LONGEST_PROMPT, LONGEST_PROMPT, LONGEST_PROMPT + LONGEST_ANSWER)
    groups = model.groups(BLOCK, 2 * BLOCK)
    least = by_pool([2 * ROWS if group.current else group.most(lengths, 2, BLOCK, 48) for group in groups], groups)
    return EngineConfig(
        tuple(pages + pages // 2 for pages in least), host_pages=tuple(3 * pages for pages in least), block_size=BLOCK,
        max_num_tokens=48, max_sequences=ROWS, max_length=LONGEST_PROMPT + LONGEST_ANSWER, snapshot_every=2 * BLOCK,
        max_waiting=PLACES,
    )  # fmt: skip


class Load:
    """Readers in threads and event loops, all at once, on one loop."""

    def __init__(self, loop: Loop, asks: list[Ask]) -> None:
        self.loop, self.asks = loop, asks
        self.pieces = 0  # of all readers
        self._count = count(1)
        self._waiters: deque[Callable[[], object]] = deque()  # coroutines that wait for a piece
        self._news = Condition()  # threads that wait for a piece, or for the end of a reader
        self.most_inside = self.most_outside = 0
        self.hook = loop.engine.model.module.register_forward_pre_hook(self._look)

    def _look(self, *_: object) -> None:
        self.most_inside = max(self.most_inside, len(self.loop.engine.runs))
        self.most_outside = max(self.most_outside, self.loop.num_waiting)

    def round(self) -> list[Told]:
        """Everybody asks; when it returns nobody is left inside."""
        self.pieces, self._count = 0, count(1)
        told = [Told(ask) for ask in self.asks]
        with Crew() as crew:
            in_threads = [one for one in told[::2] if one.ask.way not in ("task", "outside")]
            others = [one for one in told if one not in in_threads]
            for nth in range(EVENT_LOOPS):
                crew.start(asyncio.run, self._read_all(others[nth::EVENT_LOOPS]))
            readers = [crew.start(self._read, one) for one in in_threads]
            crew.start(self._close_some, in_threads, readers)
        until(lambda: not self.loop.call(lambda engine: engine.runs))
        return told

    def _heard(self, told: Told, piece: Piece) -> bool:
        """True: enough."""
        told.pieces.append(piece)
        self.pieces = next(self._count)
        self._notify()
        while self._waiters:
            with suppress(IndexError, RuntimeError):  # another thread was faster, or its event loop has ended
                self._waiters.popleft()()
        ask = told.ask
        if ask.way == "close" and len(told.pieces) == ask.moment:
            assert told.stream is not None
            told.stream.close()
        return ask.way == "leave" and len(told.pieces) == ask.moment

    def _notify(self, *_: object) -> None:
        with self._news:
            self._news.notify_all()

    # -- threads -----------------------------------------------------------------------------------------------------

    def _read(self, told: Told) -> None:
        ask = told.ask
        told.stream = self.loop.submit(ask.prompt, ask.sampling)
        if ask.way == "early":
            told.stream.close()
        for piece in told.stream:
            if self._heard(told, piece):
                break
        told.stream.wait(PATIENCE)

    def _close_some(self, told: list[Told], readers: list[Any]) -> None:
        """Somebody else closes streams while they are read."""
        left = [one for one in told if one.ask.way == "told"]
        for reader in readers:
            reader.add_done_callback(self._notify)
        while left:
            with self._news:
                found = self._news.wait_for(
                    lambda: all(reader.done() for reader in readers) or any(self._due(one) for one in left), PATIENCE
                )
            assert found, "no reader heard anything"
            for one in [one for one in left if self._due(one) or all(reader.done() for reader in readers)]:
                left.remove(one)
                if one.stream is not None:
                    one.stream.close()

    def _due(self, told: Told) -> bool:
        """Its moment has come."""
        if told.ask.way == "outside":
            return self.pieces > 0
        return told.stream is not None and len(told.pieces) >= told.ask.moment

    # -- event loops -------------------------------------------------------------------------------------------------

    async def _read_async(self, told: Told) -> None:
        ask = told.ask
        told.stream = await self.loop.submit_async(ask.prompt, ask.sampling)
        if ask.way == "early":
            told.stream.close()
        async for piece in told.stream:
            if self._heard(told, piece):
                break

    def _next_piece(self) -> asyncio.Event:
        """Set when somebody has heard something from now on, in whatever thread."""
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        self._waiters.append(lambda: loop.call_soon_threadsafe(heard.set))
        return heard

    async def _read_all(self, told: list[Told]) -> None:
        tasks = [asyncio.create_task(self._read_async(one)) for one in told]
        ender = asyncio.create_task(self._end_some(told, tasks))
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        ender.cancel()
        for one, wrong in zip(told, found, strict=True):
            if isinstance(wrong, asyncio.CancelledError):
                assert one.ask.way in ("task", "outside")
            elif wrong is not None:
                raise wrong

    async def _end_some(self, told: list[Told], tasks: list[asyncio.Task[None]]) -> None:
        left = [pair for pair in zip(told, tasks, strict=True) if pair[0].ask.way in ("told", "task", "outside")]
        while left:
            heard = self._next_piece()
            for one, task in [pair for pair in left if self._due(pair[0])]:
                left.remove((one, task))
                if one.ask.way == "told":
                    assert one.stream is not None
                    one.stream.close()
                else:
                    task.cancel()
            await heard.wait()


def undisturbed(model: Model, asks: list[Ask]) -> list[Run]:
    """The answers of an engine with plenty of room, one thread and no cancels."""
    config = EngineConfig(
        400, max_num_tokens=256, max_sequences=16, block_size=BLOCK, snapshot_every=2 * BLOCK,
        max_length=LONGEST_PROMPT + LONGEST_ANSWER,
    )  # fmt: skip
    with Engine(model, config) as engine:
        runs = [engine.submit(ask.prompt, ask.sampling) for ask in asks]
        engine.drain()
    return runs


def compare(told: list[Told], expected: list[Run], reference: Reference, words: Any) -> Counter[str]:
    """Who finished has exactly those tokens, who gave up a beginning of them; the text is theirs. Counts the ends."""
    ends: Counter[str] = Counter()
    for one, right in zip(told, expected, strict=True):
        ask, run = one.ask, None if one.stream is None else one.stream.run
        if run is None:
            assert ask.way == "outside" and not one.pieces
            ends["outside, cancelled"] += 1
            continue
        assert run.done and run.error is None, run.error
        given_up = any(answer.finish == "cancelled" for answer in run.answers)
        ends[f"{ask.way}, {'cancelled' if given_up else 'complete'}"] += 1
        assert not (given_up and ask.way == "finish")
        for nth, (got, wanted) in enumerate(zip(run.answers, right.answers, strict=True)):
            heard = one.tokens(nth)
            assert heard == got.tokens[: len(heard)]
            same = got.tokens == (wanted.tokens[: len(got.tokens)] if given_up else wanted.tokens)
            if not same:  # rounding may decide between two tokens that are as good as equal
                assert not given_up, (ask, got, wanted)
                found = reference.differences(ask.prompt, ask.sampling, [answer.tokens for answer in run.answers])
                assert all(difference.tie for difference in found), [str(difference) for difference in found]
            if ask.way == "finish":
                assert heard == got.tokens and got.finish == wanted.finish
                assert words is None or one.text(nth) == words.decode(got.tokens, skip_special_tokens=True)
    return ends


def check_clean(loop: Loop) -> None:
    """Nobody holds a page, every slot is accounted for, and no step was larger than it may be."""

    def look(engine: Engine) -> None:
        cache = engine.cache
        quire.check(cache)
        assert cache.num_sequences == 0 and not engine.runs and not engine.scheduler.waiting
        for group in range(len(cache.config.groups)):
            for tier in range(len(cache.config.tiers)):
                usage = cache.usage(tier, group)
                assert usage.held == 0 and usage.empty + usage.idle + usage.shadows == usage.capacity
        assert engine.stats.most_tokens <= engine.config.max_num_tokens

    loop.call(look)


def resident() -> int:
    """MiB of this process in memory; 0 where that cannot be told."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    except OSError:
        return 0


class Before:
    """What was there before: tests of other files may have left something, which may go at any moment.

    It is held here, so that what goes cannot stand for what a run leaves behind.
    """

    KINDS = (Branch, Run, Stream, Told, quire.Sequence)

    def __init__(self) -> None:
        gc.collect()
        self.objects = [one for one in gc.get_objects() if type(one) in self.KINDS]
        self._known = {id(one) for one in self.objects}

    def left_over(self) -> Counter[str]:
        """Objects that a run has left behind since, if it does."""
        gc.collect()
        new = (one for one in gc.get_objects() if type(one) in self.KINDS and id(one) not in self._known)
        return Counter(type(one).__name__ for one in new)


@pytest.mark.parametrize(
    ("name", "number"),
    [("llama", cases(60, 120)), slow("gemma3", 50), slow("qwen3_next", 50)],
)
def test_many_streams_and_cancels(name: str, number: int) -> None:
    words = byte_tokenizer() if name == "llama" else None
    model, reference = from_module(families.build(name), words), reference_of(name)
    asks = draw(model, 7, number)
    expected = undisturbed(model, asks)
    before = Before()
    ends: Counter[str] = Counter()
    blocks: list[int] = []
    megabytes: list[int] = []
    with Loop(Engine(model, config_of(model))) as loop:
        load = Load(loop, asks)
        for _ in range(ROUNDS):
            told = load.round()
            ends += compare(told, expected, reference, words)
            check_clean(loop)
            del told
            assert not before.left_over()
            blocks.append(sys.getallocatedblocks())
            megabytes.append(resident())
        load.hook.remove()
        assert load.most_inside <= PLACES < number // 2 < load.most_inside + load.most_outside
        engine = loop.engine
        moved = engine.cache.stats(0)
        assert moved.onboarded and moved.offloaded and (engine.scheduler.num_preemptions or number < 100)
        short = Sampling(max_tokens=4)
        assert len(loop.submit_many([[20, 21]] * PLACES, short, timeout=PATIENCE)) == PLACES  # every place came back
    print(name, dict(ends), engine.stats, engine.scheduler.num_preemptions, moved, blocks, megabytes)
    assert max(late - early for early, late in pairwise(blocks[1:])) < FLAT, blocks
    assert megabytes[-1] - megabytes[0] <= 8, megabytes
    assert all(ends[f"{way}, cancelled"] for way in WAYS) and ends["finish, complete"] > number, ends


def test_drafts_do_not_move_the_end_of_an_answer() -> None:
    """A stop string inside accepted drafts: tokens, text and finish are those of the answer without drafts."""
    model = from_module(families.build("llama"), byte_tokenizer())
    seen = 0
    with Loop(Engine(model, EngineConfig(200, block_size=BLOCK, max_length=256))) as loop:
        for first, place in ((58, 33), (100, 33), (118, 12)):
            prompt = [*range(first, first + 8)] * 4
            whole = "".join(piece.text for piece in loop.submit(prompt, Sampling(max_tokens=60, ignore_eos=True)))
            found = []
            for drafts in (0, 6):
                sampling = Sampling(max_tokens=60, ignore_eos=True, stop=(whole[place : place + 2],), drafts=drafts)
                stream = loop.submit(prompt, sampling)
                pieces = list(stream)
                answer = stream.wait().answers[0]
                assert [token for piece in pieces for token in piece.tokens] == answer.tokens
                found.append((answer.tokens, answer.finish, "".join(piece.text for piece in pieces)))
            assert found[0] == found[1] and found[0][1] == "stop"
            assert found[0][2] == whole[: whole.index(whole[place : place + 2])]
            seen += loop.engine.advance.num_accepted
    assert seen
