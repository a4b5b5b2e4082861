"""What an engine takes and refuses, how answers end, and how a run may leave at any moment without a trace."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import ConfigWarning, InputError, Retention, StateError  # noqa: E402
from quire.engine import EngineBusy, Model, from_module  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.setup.submission import AWAY  # noqa: E402
from quire.engine.step.runs.branch import Run  # noqa: E402

from ...effort import slow  # noqa: E402
from .. import families  # noqa: E402
from ..reference import assert_same  # noqa: E402
from ..steps import (  # noqa: E402
    assert_begun,
    assert_clean,
    assert_exact,
    facts,
    finish,
    holders,
    model_of,
    open_engine,
    places_of,
    plain,
    reference_of,
    step,
    tokens_of,
    words,
)

NAMES = families.NAMES
LAST = families.VOCAB - 1


@pytest.fixture
def llama() -> Iterator[Engine]:
    with open_engine("llama", 24, events=True) as engine:
        yield engine


# -- what is refused ---------------------------------------------------------------------------------------------------

BAD_TOKENS: list[tuple[Any, str]] = [
    ([20, LAST + 1], f"from 20 to {LAST + 1}, the model knows 0 to {LAST}"),
    ([20, -1], "from -1 to 20"),
    ([20, 1 << 40], "the model knows"),
    ([20, 1 << 70], "too large for any model"),
    (np.array([20, 1 << 63], np.uint64), "the model knows"),
    ([20.0, 21.0], "float64"),
    ([True, False], "bool"),
    ([[20, 21]], r"shape \(1, 2\)"),
    ([[20, 21], [22]], "in one row"),
    ([], "at least one"),
    (np.empty(0, np.int32), "at least one"),
    (None, "whole numbers"),
    (20, "in one row"),
    ("twenty", "whole numbers"),
]


@pytest.mark.parametrize(("tokens", "message"), BAD_TOKENS, ids=[repr(case[0])[:30] for case in BAD_TOKENS])
def test_token_ids_the_model_does_not_know(llama: Engine, tokens: Any, message: str) -> None:
    before = facts(llama)
    with pytest.raises(InputError, match=message):
        llama.submit(tokens, plain(4))
    assert facts(llama) == before and not len(llama.cache.take_events()) and llama.step() is None


BAD_REQUESTS: list[tuple[str, int, Sampling, dict[str, Any], str]] = [
    ("llama", 100, plain(157), {}, "that is 257; one request may reach 256"),
    ("llama", 500, plain(13), {"max_length": 4096}, "one request may reach 512"),
    ("llama", 20, plain(4, beams=9), {}, "9 beams"),
    ("qwen3_next", 20, plain(4, drafts=1), {}, "recurrent state"),
    ("llama", 190, plain(4), {}, "needs 25 pages of the layer group 'full', 24 are there; shorten the prompt"),
    ("llama", 60, plain(60, beams=4), {}, "pages of the layer group 'full', 24 are there"),
    ("gemma3", 190, plain(4), {"device_pages": (40, 3)}, "of the layer group 'window', 3 are there"),
    ("qwen3_next", 20, plain(4, beams=4), {"device_pages": (40, 4)}, "of the layer group 'state', 4 are there"),
]


@pytest.mark.parametrize(("name", "length", "sampling", "settings", "message"), BAD_REQUESTS)
def test_what_can_never_be_served(
    name: str, length: int, sampling: Sampling, settings: dict[str, Any], message: str
) -> None:
    """Refused before it is queued, and nothing has changed: the next one is served."""
    settings = {"device_pages": 24, "events": True, "max_num_tokens": 64} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        engine = open_engine(name, settings.pop("device_pages"), **settings)
    before = facts(engine)
    with pytest.raises(InputError, match=message):
        engine.submit(words(0, length), sampling)
    assert facts(engine) == before and not len(engine.cache.take_events()) and engine.step() is None
    good = engine.submit(words(0, 12), plain(4))
    finish(engine)
    assert_exact(name, [good])
    engine.close()


def test_options_of_a_wrong_kind(llama: Engine) -> None:
    before = facts(llama)
    wrong: list[dict[str, Any]] = [{"retention": 7}, {"scope": "mine"}]
    for options in wrong:
        with pytest.raises(InputError):
            llama.submit(words(0, 9), plain(4), **options)
    assert facts(llama) == before


@pytest.mark.parametrize(
    "tokens", [range(20, 30), (20, 21), np.arange(20, 30)[::2], np.arange(20, 30, dtype=np.uint8), torch.arange(20, 30)]
)
def test_token_ids_of_many_forms(llama: Engine, tokens: Any) -> None:
    run = llama.submit(tokens, plain(3))
    assert run.prompt.dtype == np.int32 and run.prompt.tolist() == [int(token) for token in tokens]
    finish(llama)
    assert_exact("llama", [run])


@pytest.mark.parametrize("host", [0, 12])
def test_a_prompt_is_the_engines_own(host: int) -> None:
    """The caller's array changes after submit: neither the prompt nor what the cache knows it by changes with it."""
    engine = open_engine("llama", 10, host, block_size=4, max_num_tokens=5, max_sequences=4, max_length=40)
    older = engine.submit(words(0, 4), plain(28))
    given = np.array(words(50, 32), np.int32)
    run = engine.submit(given, plain(4))
    given[:] = words(150, 32)
    while not run.num_preemptions:
        assert step(engine) is not None
    assert run.computed and not run.answers[0].tokens, "it was not preempted in the middle of its prompt"
    finish(engine)
    assert run.prompt.tolist() == list(words(50, 32))
    assert run.reused == 0, "what it computed itself does not count"
    assert_exact("llama", [older, run])
    later = engine.submit(given, plain(4))
    finish(engine)
    assert later.reused == 0
    assert_exact("llama", [later])
    engine.close()


def test_a_full_engine_says_so() -> None:
    engine = open_engine("llama", 24, max_waiting=3)
    runs = [engine.submit(words(start, 9), plain(2)) for start in (0, 20, 40)]
    before = facts(engine)
    with pytest.raises(EngineBusy, match="max_waiting is 3"):
        engine.submit(words(60, 9), plain(2))
    assert facts(engine) == before
    engine.cancel(runs[1])
    runs[1] = engine.submit(words(60, 9), plain(2))
    finish(engine)
    runs.append(engine.submit(words(80, 9), plain(2)))
    finish(engine)
    assert_exact("llama", runs)
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_attention_belongs_to_an_engine(name: str) -> None:
    """Called by hand the model says what is wrong, instead of attending to nothing."""
    with pytest.raises(InputError, match="outside an engine"):
        model_of(name).module(torch.tensor([[20, 21, 22]]))


# -- how answers end ---------------------------------------------------------------------------------------------------

STRAIGHT = [
    Sampling(max_tokens=1), plain(1), plain(1, n=3), plain(1, beams=3, n=2), plain(1, drafts=4), plain(30),
    Sampling(max_tokens=30), plain(30, drafts=4), Sampling(max_tokens=12, n=3), plain(9, beams=4, n=3),
    Sampling(max_tokens=12, n=4, temperature=0.9, seed=3), Sampling(max_tokens=20, beams=3, n=3),
    Sampling(max_tokens=30, temperature=0.7, top_k=20, top_p=0.9, seed=11),
]  # fmt: skip


def ends_early(name: str) -> tuple[int, ...]:
    """A prompt whose answer ends with eos."""
    prompts = (words(start, 9) for start in range(100))
    return next(prompt for prompt in prompts if reference_of(name).answers(prompt, Sampling(30))[0][-1] in families.EOS)


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_answer(name: str) -> None:
    """All at once in one engine: each is the reference's, and says why it ended."""
    engine = open_engine(name, 200, max_num_tokens=96, max_sequences=16)
    samplings = [sampling for sampling in STRAIGHT if not (sampling.drafts and engine.model.recurrent)]
    runs = [engine.submit(words(7 * nth, 11 + nth), sampling) for nth, sampling in enumerate(samplings)]
    runs.append(engine.submit(ends_early(name), Sampling(30)))
    finish(engine)
    assert_exact(name, runs)
    for run in runs:
        for answer in run.answers:
            eos = answer.tokens[-1] in families.EOS and not run.sampling.ignore_eos
            assert answer.finish == ("eos" if eos else "length")
            assert eos or len(answer.tokens) == run.sampling.max_tokens
            assert (answer.score is not None) == (run.sampling.beams > 1)
        assert run.times.submitted <= run.times.first_token <= run.times.finished
    assert {answer.finish for run in runs for answer in run.answers} == {"eos", "length"}
    engine.close()


@pytest.mark.parametrize("drafts", [0, 5])
def test_stop_ids(llama: Engine, drafts: int) -> None:
    """The answer ends with the token, wherever among accepted drafts it stands; eos is only one when it may be."""
    prompt = words(3, 6) * 5
    (whole,) = reference_of("llama").answers(prompt, plain(24))
    unseen = next(token for token in range(families.VOCAB) if token not in whole)
    for place in (0, 1, 5, 11, 23):
        end = whole[place]
        run = llama.submit(prompt, plain(24, stop_ids=(end, unseen), drafts=drafts))
        finish(llama)
        assert run.answers[0].tokens == list(whole[: whole.index(end) + 1])
        assert run.answers[0].finish == "stop"
    short = ends_early("llama")
    (ended,) = reference_of("llama").answers(short, Sampling(30))
    both = llama.submit(short, Sampling(max_tokens=30, stop_ids=(ended[-1],), drafts=drafts))
    only = llama.submit(short, plain(30, stop_ids=(ended[-1],), drafts=drafts))
    finish(llama)
    assert (both.answers[0].finish, only.answers[0].finish) == ("eos", "stop")
    assert tokens_of(both) == tokens_of(only) == [list(ended)]


class Ear:
    """Hears everything; may end or cancel an answer at its n-th hearing."""

    def __init__(self, stop_at: int = 0, engine: Engine | None = None) -> None:
        self.heard: dict[int, list[int]] = {}
        self.stop_at, self.engine = stop_at, engine
        self.num_heard = self.num_over = 0

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        assert not run.done and tokens
        self.heard.setdefault(branch, []).extend(tokens)
        self.num_heard += 1
        if self.num_heard != self.stop_at:
            return False
        if self.engine is not None:
            assert self.engine.cancel(run)
            return False
        return True

    def over(self, run: Run) -> None:
        assert run.done and all(answer.finish for answer in run.answers)
        self.num_over += 1


@pytest.mark.parametrize(
    "sampling", [plain(9), plain(9, drafts=4), plain(9, n=3, temperature=1.0, seed=2), plain(9, beams=3)]
)
def test_listeners_hear_every_token_once(llama: Engine, sampling: Sampling) -> None:
    ear = Ear()
    run = llama.submit(words(0, 4) * 4, sampling, listener=ear)
    finish(llama)
    assert [ear.heard[branch] for branch in sorted(ear.heard)] == tokens_of(run) and ear.num_over == 1
    assert_exact("llama", [run])


def test_a_listener_ends_an_answer(llama: Engine) -> None:
    ear = Ear(stop_at=3)
    run = llama.submit(words(0, 9), plain(20), listener=ear)
    other = llama.submit(words(0, 9), plain(20))
    finish(llama)
    assert run.answers[0].finish == "stop" and len(run.answers[0].tokens) == 3 and ear.num_over == 1
    assert_begun("llama", run)
    assert_exact("llama", [other])


@pytest.mark.parametrize(
    "sampling", [plain(9), plain(9, drafts=4), plain(9, n=3), plain(9, n=8), plain(4, beams=3, n=3)]
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_listener_may_cancel(sampling: Sampling, at: int) -> None:
    """In the middle of a step: it is over once, nothing of it is left, and the others never notice."""
    engine = open_engine("llama", 40)
    ear = Ear(stop_at=at, engine=engine)
    others = [engine.submit(words(start, 12), plain(12)) for start in (40, 60)]
    run = engine.submit(words(0, 4) * 3, sampling, listener=ear)
    finish(engine)
    assert run.done and ear.num_over == 1
    assert_begun("llama", run)
    assert_exact("llama", others)
    again = engine.submit(words(0, 4) * 3, plain(5))
    finish(engine)
    assert_exact("llama", [again])
    engine.close()


class Asker(Ear):
    """Submits more whenever it hears something, up to a number."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.more: list[Run] = []
        self.door = engine

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        self._ask(plain(3, n=2))
        return super().hear(run, branch, tokens)

    def over(self, run: Run) -> None:
        assert not self.door.cancel(run)
        self._ask(plain(3, beams=2))
        super().over(run)

    def _ask(self, sampling: Sampling) -> None:
        if len(self.more) < 6:
            self.more.append(self.door.submit(words(9 * len(self.more), 9), sampling, listener=self))


def test_a_listener_may_submit(llama: Engine) -> None:
    """In the middle of a step, and at the end of a run: what it asks for is served like anything else."""
    ear = Asker(llama)
    runs = [llama.submit(words(80, 9), plain(4, n=2), listener=ear), llama.submit(words(100, 9), plain(4, beams=3))]
    finish(llama)
    assert len(ear.more) == 6
    assert_exact("llama", [*runs, *ear.more])


# -- leaving -----------------------------------------------------------------------------------------------------------

KINDS = {"plain": plain(6), "answers": plain(6, n=3), "beams": plain(5, beams=3, n=2)}
MOMENTS = [*(("llama", kind) for kind in KINDS), ("gemma3", "answers"), ("qwen3_next", "beams")]
MOMENTS += [slow(name, kind) for name in NAMES for kind in KINDS if (name, kind) not in MOMENTS]


def crowd(name: str, kind: str) -> tuple[Engine, Run, list[Run]]:
    """One run to cancel between two others, in so few pages that they take them from each other."""
    pages = {"llama": 15, "gemma3": (15, 12), "qwen3_next": (15, 7)}[name]
    engine = open_engine(name, pages, block_size=4, max_num_tokens=16, max_sequences=6, max_length=48)
    first = engine.submit(words(0, 22), plain(8))
    run = engine.submit(words(100, 17), KINDS[kind])
    return engine, run, [first, engine.submit(words(100, 9), plain(8, n=2))]


@pytest.mark.parametrize(("name", "kind"), MOMENTS)
def test_cancel_at_every_moment(name: str, kind: str) -> None:
    """Before every step of its life: it leaves with what it has, its pages come back, the others are exact."""
    seen: set[str] = set()
    moment = 0
    while True:
        engine, run, others = crowd(name, kind)
        for _ in range(moment):
            step(engine)
        if run.done:
            assert not engine.cancel(run)
            engine.close()
            break
        seen |= places_of(engine, run)
        ended = [answer.finish or "cancelled" for answer in run.answers]
        assert engine.cancel(run) and not engine.cancel(run)
        assert run.done and not run.branches and all(branch.run is not run for branch in holders(engine))
        assert [answer.finish for answer in run.answers] == ended and "cancelled" in ended
        assert_begun(name, run)
        finish(engine)
        assert_exact(name, others)
        engine.close()
        moment += 1 if name == "llama" else 4
    assert name != "llama" or seen >= {"waiting", "prompts", "ready", *(["held"] if kind == "beams" else [])}


def test_an_answer_that_is_complete_stays_so() -> None:
    """One of two answers has ended when the run is cancelled: it keeps its end."""
    engine = open_engine("llama", 24)
    sampling = Sampling(max_tokens=40, n=4, temperature=1.2, seed=9)
    run = engine.submit(words(0, 9), sampling)
    while not any(answer.finish for answer in run.answers):
        assert step(engine) is not None
    ended = [answer.finish for answer in run.answers]
    assert None in ended
    engine.cancel(run)
    assert [answer.finish for answer in run.answers] == [finish or "cancelled" for finish in ended]
    assert_begun("llama", run)
    finish(engine)
    engine.close()


def test_runs_of_another_engine_are_not_ours(llama: Engine) -> None:
    other = open_engine("llama", 8)
    run, own = other.submit(words(0, 9), plain(3)), llama.submit(words(0, 9), plain(3))
    assert not llama.cancel(run) and not run.done
    finish(llama)
    finish(other)
    assert_exact("llama", [run, own])
    other.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_close_with_runs_inside(steps: int) -> None:
    """Waiting, in their prompts, decoding, as beams: all are cancelled and told, and memory goes."""
    engine = open_engine("llama", 15, 8, block_size=4, max_num_tokens=16, max_sequences=6, max_length=48)
    ears = [Ear() for _ in range(4)]
    samplings = [plain(6), plain(6, n=3), plain(6, beams=3), plain(6, drafts=2)]
    runs = [engine.submit(words(9 * nth, 14), sampling, listener=ears[nth]) for nth, sampling in enumerate(samplings)]
    for _ in range(steps):
        step(engine)
    engine.close()
    assert all(run.done for run in runs) and [ear.num_over for ear in ears] == [1] * 4
    assert {answer.finish for run in runs for answer in run.answers} == {"cancelled"}
    assert_clean(engine)
    engine.close()
    with pytest.raises(StateError, match="closed"):
        engine.submit(words(0, 9), plain(3))
    assert engine.step() is None


# -- numbers that are none ---------------------------------------------------------------------------------------------

POISON = 99


def poisoned(name: str, token: int = POISON) -> Model:
    """A model that gives NaN for everything behind one token."""
    module = families.build(name)
    with torch.no_grad():
        module.get_input_embeddings().weight[token] = float("nan")
    return from_module(module, share_pool=False)


@pytest.mark.parametrize("name", NAMES)
def test_only_runs_with_broken_logits_fail(name: str) -> None:
    """In one batch, with forks, beams and long prompts: they end with the reason, the others never notice."""
    engine = open_engine(poisoned(name), (60,) * len(model_of(name).shapes), max_num_tokens=48)
    bad_prompt = (*words(0, 20), POISON, *words(20, 8))
    good, bad = [], []
    for nth, sampling in enumerate([plain(5), plain(5, n=2), plain(5, beams=3), plain(20)]):
        good.append(engine.submit(words(120 + 9 * nth, 14 + nth), sampling))
        bad.append(engine.submit(bad_prompt[nth:], sampling))
    finish(engine)
    for run in bad:
        assert run.error is not None and "NaN" in run.error
        assert {answer.finish for answer in run.answers} == {"error"} and not any(tokens_of(run))
    assert_exact(name, good)
    engine.close()


@pytest.mark.parametrize("drafts", [0, 4])
def test_a_run_fails_when_its_own_answer_breaks_it(drafts: int) -> None:
    """The token that breaks the model is one it generates: what came before stays readable."""
    prompt = words(0, 4) * 4
    (whole,) = reference_of("llama").answers(prompt, plain(24))
    place = next(at for at in range(3, 24) if whole[at] not in (*prompt, *whole[:at]))
    engine = open_engine(poisoned("llama", whole[place]), 24)
    run = engine.submit(prompt, plain(24, drafts=drafts))
    other = engine.submit(words(0, 4) * 4, plain(place, drafts=drafts))
    finish(engine)
    assert run.error is not None and run.answers[0].finish == "error"
    assert run.answers[0].tokens == list(whole[: place + 1])
    assert_exact("llama", [other])
    engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_pages_of_a_failed_run_are_fit_for_use(name: str) -> None:
    """What it has left in them is never read: NaN times nothing would still be NaN."""
    engine = open_engine(poisoned(name), (4, 4)[: len(model_of(name).shapes)], block_size=16, max_length=40)
    for nth in range(4):
        bad = engine.submit((*words(9 * nth, 20), POISON, *words(0, 9)), plain(4))
        finish(engine)
        good = engine.submit(words(140 + 9 * nth, 18), plain(8))  # none of whose answers has the poison in it
        finish(engine)
        assert bad.error is not None
        assert_exact(name, [good])
    engine.close()


# -- chance ------------------------------------------------------------------------------------------------------------

DRAWN = Sampling(max_tokens=14, temperature=0.9, top_p=0.95, top_k=60, seed=77, ignore_eos=True)
WAYS: dict[str, dict[str, Any]] = {"plain": {}, "drafts": {"drafts": 4}, "several": {"n": 3}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_an_answer(name: str, way: str) -> None:
    """In a crowd, preempted, with drafts, as one of several answers: the same seed gives the tokens it gives alone."""
    prompt = words(5, 4) * 4
    wanted = reference_of(name).answers(prompt, DRAWN)[0]
    pages = {"llama": 12, "gemma3": (12, 12), "qwen3_next": (12, 5)}[name]
    engine = open_engine(name, pages, block_size=4, max_num_tokens=32, max_sequences=6, max_length=48)
    if engine.model.recurrent and way == "drafts":
        engine.close()
        return
    others = [engine.submit(words(100 + 20 * nth, 14), plain(14)) for nth in range(3)]
    run = engine.submit(prompt, replace(DRAWN, **WAYS[way]))
    finish(engine)
    assert tuple(run.answers[0].tokens) == wanted and run.num_preemptions
    assert len({tuple(tokens) for tokens in tokens_of(run)}) == run.sampling.n, "answers have chances of their own"
    assert_exact(name, [*others, run])
    engine.close()


def test_without_a_seed_one_is_drawn(llama: Engine) -> None:
    """And kept: with it the answer can be had again."""
    sampling = plain(8, temperature=1.0)
    one, other = (llama.submit(words(0, 9), sampling) for _ in range(2))
    finish(llama)
    assert one.seed != other.seed and tokens_of(one) != tokens_of(other)
    again = llama.submit(words(0, 9), plain(8, temperature=1.0, seed=one.seed))
    finish(llama)
    assert tokens_of(again) == tokens_of(one)


def test_scopes_and_retention_pass_through(llama: Engine) -> None:
    """Another salt shares nothing; the answers are the same."""
    from quire import Scope

    first = llama.submit(words(0, 30), plain(3), retention=Retention(decode_priority=90))
    finish(llama)
    same, apart = llama.submit(words(0, 30), plain(3)), llama.submit(words(0, 30), plain(3), scope=Scope(salt="b"))
    finish(llama)
    assert (first.reused, same.reused, apart.reused) == (0, 29, 0)
    assert_exact("llama", [first, same, apart])
    assert_same(reference_of("llama"), words(0, 30), plain(3), tokens_of(apart))


def test_a_listener_that_fails_costs_its_own_run(llama: Engine) -> None:
    class Deaf(Ear):
        def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
            raise ValueError("no ear")

    good, bad = llama.submit(words(0, 12), plain(6)), llama.submit(words(1, 12), plain(6), listener=Deaf())
    finish(llama)
    assert bad.error is not None and "no ear" in bad.error
    assert_exact("llama", [good])


def test_a_run_that_nobody_brings_ends(llama: Engine) -> None:
    """`away` without a peer: it is failed, and nobody else with it."""
    lost = llama.submit(words(0, 12), plain(6), begun=AWAY)
    good = llama.submit(words(1, 12), plain(6))
    llama.drain()
    assert lost.error is not None and good.error is None
    assert_exact("llama", [good])


def test_what_gave_nan_is_not_found_again(llama: Engine) -> None:
    """Committed pages turn bad: who runs into them fails, and the next one computes its prompt anew."""
    prompt = words(0, 40)
    first = llama.submit(prompt, plain(4))
    finish(llama)
    llama.pages.kv[0].fill_(float("nan"))
    bad = llama.submit(prompt, plain(4))
    llama.drain()
    assert bad.error is not None and "NaN" in bad.error and bad.reused
    again = llama.submit(prompt, plain(4))
    llama.drain()
    assert again.error is None and again.reused == 0
    assert_exact("llama", [first, again])
