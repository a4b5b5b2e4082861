"""A cache outside the engine: what one engine computed is brought into another, and pages stay while they are read."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import Request, Scope, Sequence, Span, check  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402

from ...effort import cases  # noqa: E402
from ..steps import (  # noqa: E402
    assert_clean,
    assert_exact,
    finish,
    holders,
    model_of,
    open_engine,
    plain,
    step,
    words,
)

KEYS_AND_VALUES = ("llama", "gemma3")  # models without a recurrent state
Key = tuple[bytes, bytes]  # scope, and all tokens up to the end of a block


class Shelf:
    """Whole blocks by everything before their end: the bytes of each group's page. Several engines may share one."""

    def __init__(self, pages: dict[Key, list[bytes]] | None = None) -> None:
        self.pages = {} if pages is None else pages
        self.engine: Engine | None = None
        self.most = 1 << 30  # tokens delivered at once
        self.boast = 0  # tokens promised that it does not have
        self.keeps = False  # pages until somebody calls free
        self.frees: list[Callable[[], None]] = []
        self.matches: list[tuple[int, int]] = []  # start, found
        self.spans: list[Span] = []
        self.ended: list[Sequence] = []

    def open(self, name: str, pages: Any, **settings: Any) -> Engine:
        self.engine = open_engine(name, pages, connector=self, **settings)
        return self.engine

    @property
    def size(self) -> int:
        assert self.engine is not None
        return self.engine.config.block_size

    def _key(self, request: Request, tokens: np.ndarray[Any, np.dtype[np.int32]], block: int) -> Key:
        return request.scope.key, tokens[: (block + 1) * self.size].tobytes()

    def matched(self, request: Request, start: int) -> int:
        block, last = start // self.size, len(request.tokens) // self.size
        while block < last and self._key(request, request.tokens, block) in self.pages:
            block += 1
        found = max(0, block * self.size - start) + self.boast
        self.matches.append((start, found))
        return found

    def allocated(self, sequence: Sequence, span: Span) -> int:
        assert self.engine is not None and sequence.live and sequence.computed == span.start and span
        self.spans.append(span)
        came = min(len(span), self.most)
        for block in range(span.start // self.size, -(-(span.start + came) // self.size)):
            pages = self.pages.get(self._key(sequence.request, sequence.request.tokens, block))
            if pages is None:
                return max(0, block * self.size - span.start)
            for group, page in enumerate(pages):
                slot = int(sequence.slots(group)[block])
                self.engine.pages.device_tier.write(group, [slot], [np.frombuffer(page, np.uint8)[None]])
        return came

    def finished(self, sequence: Sequence, free: Callable[[], None]) -> bool:
        assert self.engine is not None and sequence.live and sequence not in self.ended
        self.ended.append(sequence)
        cache, tier = self.engine.cache, self.engine.pages.device_tier
        groups = range(len(cache.config.groups))
        tokens = cache.tokens(sequence)
        for block in range(sequence.computed // self.size):
            slots = [int(sequence.slots(group)[block]) for group in groups]
            if min(slots) >= 0 and not self.engine.model.recurrent:
                made = [np.empty((1, size), np.uint8) for size in tier.info().page_bytes]
                for group in groups:
                    tier.read(group, [slots[group]], [made[group]])
                self.pages[self._key(sequence.request, tokens, block)] = [page.tobytes() for page in made]
        if self.keeps:
            self.frees.append(free)
        return not self.keeps


def taught(name: str, *prompts: tuple[int, ...]) -> dict[Key, list[bytes]]:
    """Pages of prompts and their first tokens, from an engine that is gone."""
    shelf = Shelf()
    with shelf.open(name, 60) as engine:
        runs = [engine.submit(prompt, plain(2)) for prompt in prompts]
        finish(engine)
        assert_exact(name, runs)
    return shelf.pages


# -- bringing ----------------------------------------------------------------------------------------------------------

PROMPT = words(0, 21)  # within a window, so that all pages are there at the end


@pytest.mark.parametrize("name", KEYS_AND_VALUES)
def test_another_engine_need_not_compute_it(name: str) -> None:
    """Two whole blocks are brought: the rest is computed, and the tokens are those of plain transformers."""
    pages = taught(name, PROMPT)
    for prompt, came in ((PROMPT, 16), ((*PROMPT[:16], *words(90, 9)), 16), ((*PROMPT[:10], *words(50, 9)), 8)):
        shelf = Shelf(dict(pages))
        with shelf.open(name, 60) as engine:
            run, other = engine.submit(prompt, plain(9, n=2)), engine.submit(words(120, 20), plain(9))
            finish(engine)
            assert_exact(name, [run, other])
        assert (run.reused, run.computed) == (came, len(prompt) - came + 2 * 8)
        assert (other.reused, other.computed) == (0, 20 + 8) and shelf.spans == [Span(0, came)]


@pytest.mark.parametrize("name", KEYS_AND_VALUES)
def test_what_was_brought_is_found_here(name: str) -> None:
    """It is committed like computed pages: the next request hits it, and the connector is asked for what is behind."""
    shelf = Shelf(taught(name, PROMPT))
    with shelf.open(name, 60) as engine:
        first = engine.submit(PROMPT, plain(3))
        finish(engine)
        shelf.matches.clear()
        second = engine.submit(PROMPT, plain(9))
        finish(engine)
        assert_exact(name, [first, second])
        assert second.reused == len(PROMPT) - 1 and shelf.matches == [(len(PROMPT) - 1, 0)]


def test_the_last_token_is_always_computed() -> None:
    """All of a prompt is on the shelf: one token is left to compute, for its logits."""
    prompt = words(0, 24)
    shelf = Shelf(taught("llama", prompt))
    with shelf.open("llama", 60) as engine:
        run = engine.submit(prompt, plain(5))
        finish(engine)
        assert_exact("llama", [run])
    assert shelf.matches[0] == (0, 24) and shelf.spans == [Span(0, 23)]
    assert (run.reused, run.computed) == (23, 1 + 4)


@pytest.mark.parametrize("most", [0, 1, 7, 8, 11, 15])
def test_less_comes_than_was_asked_for(most: int) -> None:
    """Whatever has come counts, and nothing else; the rest is computed."""
    shelf = Shelf(taught("llama", words(0, 50)))
    shelf.most = most
    with shelf.open("llama", 60) as engine:
        run = engine.submit(words(0, 50), plain(9))
        finish(engine)
        assert_exact("llama", [run])
        assert (run.reused, run.computed) == (most, 50 - most + 8)
        shelf.most = 0
        again = engine.submit(words(0, 50), plain(9))
        finish(engine)
        assert_exact("llama", [again])
    assert shelf.spans[0] == Span(0, 48)


@pytest.mark.parametrize("boast", [1, 5, 1 << 40, -(1 << 40)])
def test_a_connector_that_boasts(boast: int) -> None:
    """It promises more tokens than it has, than there are, or fewer than none: what came is what counts."""
    shelf = Shelf(taught("llama", PROMPT))
    shelf.boast = boast
    with shelf.open("llama", 60) as engine:
        runs = [engine.submit(PROMPT, plain(9)), engine.submit(words(90, 20), plain(9))]
        finish(engine)
        assert_exact("llama", runs)
        assert runs[0].reused == (16 if boast > 0 else 0) and runs[1].reused == 0


@pytest.mark.parametrize("chunk", [None, 16])
def test_a_prompt_of_several_steps(chunk: int | None) -> None:
    """Longer than a step may compute: every part that is on the shelf is brought, not only the first."""
    prompt = words(0, 150)
    shelf = Shelf(taught("llama", prompt))
    with shelf.open("llama", 60, max_num_tokens=64, max_chunk=chunk) as engine:
        run = engine.submit(prompt, plain(9))
        finish(engine)
        assert_exact("llama", [run])
    assert (run.reused, run.computed) == (144, 150 - 144 + 8)


def test_what_is_brought_again_counts_once() -> None:
    """The run is preempted, its pages go, and they are brought a second time: `reused` is about the first."""
    shelf = Shelf(taught("llama", PROMPT))
    with shelf.open("llama", 5, max_length=40) as engine:
        runs = [engine.submit(words(100, 3), plain(36)), engine.submit(PROMPT, plain(8))]
        finish(engine)
        assert_exact("llama", runs)
    assert runs[1].num_preemptions == 1 and shelf.spans == [Span(0, 16)] * 2
    assert runs[1].reused == 16


def test_scopes_are_part_of_a_request() -> None:
    shelf = Shelf(taught("llama", PROMPT))
    with shelf.open("llama", 60) as engine:
        apart = engine.submit(PROMPT, plain(4), scope=Scope(salt="b"))
        finish(engine)
        assert_exact("llama", [apart])
        assert apart.reused == 0 and not shelf.spans


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, cases(3, 5)))
@pytest.mark.parametrize("name", KEYS_AND_VALUES)
def test_in_a_crowd(name: str, seed: int) -> None:
    """Few pages, forks, beams, drafts, preemption, and a shelf that delivers as it pleases: all answers are exact."""
    dice = random.Random(seed)
    texts = [words(start, 22) for start in (0, 40, 80)]
    shelf = Shelf(taught(name, *texts))
    samplings = [plain(8), plain(8, n=2), plain(8, beams=3), plain(8, drafts=3), plain(3, temperature=1.0, seed=4)]
    with shelf.open(name, 9, block_size=8, max_num_tokens=24, max_sequences=5, max_length=48) as engine:
        runs = []
        for _ in range(9):
            text = dice.choice(texts)
            prompt = (*text[: dice.randint(4, 22)], *words(dice.randrange(200), dice.randint(1, 6)))
            runs.append(engine.submit(prompt, dice.choice(samplings)))
            for _ in range(dice.randint(0, 3)):
                shelf.most = dice.choice([0, 3, 8, 100])
                step(engine)
        finish(engine, 300)
        assert_exact(name, runs)
        assert shelf.spans and engine.scheduler.num_preemptions
        assert all(0 <= run.reused < len(run.prompt) for run in runs)


# -- keeping -----------------------------------------------------------------------------------------------------------


def held(engine: Engine) -> int:
    return engine.cache.usage().held


def test_pages_stay_until_they_are_free() -> None:
    """The run is done, its pages are not: they come back with the first step after `free`."""
    shelf = Shelf()
    shelf.keeps = True
    with shelf.open("llama", 12) as engine:
        run = engine.submit(words(0, 20), plain(4))
        while engine.step() is not None:
            check(engine.cache)
        assert run.done and engine.num_lingering == 1 and held(engine) == 3 and engine.cache.num_sequences == 1
        assert engine.step() is None and held(engine) == 3
        (free,) = shelf.frees
        thread = Thread(target=free)
        thread.start()
        thread.join()
        assert held(engine) == 3, "another thread changes nothing by itself"
        assert engine.step() is None
        assert_clean(engine)
        shelf.keeps = False
        again = engine.submit(words(0, 20), plain(4))
        finish(engine)
        assert again.reused == 19, "it was stored when it was released"
        assert_exact("llama", [run, again])


def test_freeing_twice_does_nothing() -> None:
    """A connector that is too careful must not end the engine."""
    shelf = Shelf()
    shelf.keeps = True
    with shelf.open("llama", 12) as engine:
        runs = [engine.submit(words(start, 20), plain(4)) for start in (0, 50)]
        while engine.step() is not None:
            pass
        for free in shelf.frees:
            free()
        shelf.frees[0]()
        engine.step()
        shelf.frees[0]()
        shelf.keeps = False
        runs.append(engine.submit(words(100, 20), plain(4)))
        finish(engine)
        assert_exact("llama", runs)


@pytest.mark.parametrize("answer", [True, False])
def test_freed_before_it_says_so(answer: bool) -> None:
    """`free` is called inside `finished` already, whatever that answers then: the pages come back once."""

    class Hasty(Shelf):
        def finished(self, sequence: Sequence, free: Callable[[], None]) -> bool:
            free()
            return answer

    shelf = Hasty()
    with shelf.open("llama", 12) as engine:
        runs = [engine.submit(words(start, 20), plain(4, n=2)) for start in (0, 50)]
        finish(engine)
        assert_exact("llama", runs)


def test_others_wait_for_kept_pages() -> None:
    """All pages are kept: whoever comes waits, nothing fails and nothing is computed, until they are free."""
    shelf = Shelf()
    shelf.keeps = True
    with shelf.open("llama", 4, max_length=32) as engine:
        first = engine.submit(words(0, 25), plain(4))
        while engine.step() is not None:
            pass
        second = engine.submit(words(50, 25), plain(4))
        for _ in range(5):
            report = step(engine)
            assert report is not None and report.num_tokens == 0
        assert not second.done and engine.scheduler.waiting == second.branches
        shelf.keeps = False
        shelf.frees[0]()
        finish(engine)
        assert_exact("llama", [first, second])


@pytest.mark.parametrize("sampling", [plain(12), plain(12, n=3), plain(12, beams=3)])
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_cancelled_runs_are_kept_too(sampling: Any, steps: int) -> None:
    """At any moment: what it holds stays readable until `free`, then goes, and nothing more of it is found."""
    shelf = Shelf()
    with shelf.open("llama", 30, max_num_tokens=16) as engine:
        run = engine.submit(words(0, 21), sampling)
        for _ in range(steps):
            step(engine)
        shelf.keeps = True
        live = [branch.sequence for branch in holders(engine)]
        before = held(engine)
        assert engine.cancel(run) and run.done
        assert len(shelf.frees) == len(live) == engine.num_lingering and held(engine) == before
        assert all(sequence is not None and sequence.live for sequence in live)
        assert engine.step() is None and held(engine) == before
        for free in shelf.frees:
            free()
        assert engine.step() is None
        assert_clean(engine)
        shelf.keeps = False
        found = engine.cache.probe([Request("x", np.array(words(0, 21), np.int32))])[0].start
        assert sampling.beams > 1 or (found <= run.computed and found % 8 == 0), "its unfinished block was stored"


def test_closing_while_pages_are_kept() -> None:
    shelf = Shelf()
    shelf.keeps = True
    engine = shelf.open("llama", 12)
    engine.submit(words(0, 20), plain(4))
    while engine.step() is not None:
        pass
    waiting = engine.submit(words(0, 20), plain(4))
    engine.close()
    assert waiting.done
    shelf.frees[0]()


# -- who is never asked about ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_next"])
def test_warm_up_is_none_of_its_business(name: str) -> None:
    shelf = Shelf()
    with shelf.open(name, 20) as engine:
        assert engine.warm_up() > 0
    assert not shelf.matches and not shelf.ended


def test_recurrent_models_bring_nothing() -> None:
    """A state is no page of tokens: the connector is told of the end, and asked for nothing."""
    shelf = Shelf({})
    with shelf.open("qwen3_next", 20) as engine:
        assert model_of("qwen3_next").recurrent
        shelf.boast = 8
        runs = [engine.submit(words(0, 20), plain(4)) for _ in range(2)]
        finish(engine)
        assert_exact("qwen3_next", runs)
    assert not shelf.matches and not shelf.spans and len(shelf.ended) == 2


@pytest.mark.parametrize("sampling", [plain(6), plain(6, n=3), plain(6, beams=4)])
def test_every_sequence_ends_once(sampling: Any) -> None:
    """Answers, beams that are dropped on the way, preempted ones: each end is told once, with the pages still there."""
    shelf = Shelf()
    with shelf.open("llama", 14, block_size=4, max_num_tokens=16, max_sequences=5, max_length=32) as engine:
        runs = [engine.submit(words(start, 9), sampling) for start in (0, 50, 100)]
        finish(engine, 200)
        assert_exact("llama", runs)
    assert len(shelf.ended) >= 3 * sampling.n and not any(sequence.live for sequence in shelf.ended)


@pytest.mark.parametrize("verb", ["matched", "allocated", "finished"])
def test_a_connector_that_fails_costs_reuse_only(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ConnectionError("the network is gone")

    shelf = Shelf(taught("llama", PROMPT))
    monkeypatch.setattr(shelf, verb, broken)
    with shelf.open("llama", 60) as engine:
        run = engine.submit(PROMPT, plain(6))
        finish(engine)
        assert_exact("llama", [run])
        assert run.reused == (16 if verb == "finished" else 0) and engine.cache.num_sequences == 0
        assert isinstance(engine.connector_side.last_error, ConnectionError)
