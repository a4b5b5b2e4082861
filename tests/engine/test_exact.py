"""Token-exact: whatever is reused, moved, cut, forked, preempted or guessed, answers are those of plain transformers.

Random talks on small engines, for full attention, a mix of windows and full attention, and a mix of recurrent states
and full attention; then a few on a real model. Each test also counts what happened: one that cannot fail proves
nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from quire import InputError  # noqa: E402
from quire.engine import Model, load  # noqa: E402
from quire.engine.model import smollm2  # noqa: E402
from quire.engine.model.attention import OwnForward  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.setup.engine_config import EngineConfig  # noqa: E402

from ..effort import LONG, cases  # noqa: E402
from . import families  # noqa: E402
from .reference import SCORES, Difference, Reference, assert_same  # noqa: E402
from .steps import model_of, reference_of  # noqa: E402
from .talks import Done, Speak, Talk, Tokens, random_words  # noqa: E402

TALKS: dict[str, Sequence[int]] = {  # in the suite the fewest worlds that see it all, in `make slow` most of it twice
    "llama": cases((12, 13, 14, 16, 18), range(8, 20)),
    "gemma3": cases((15, 18, 19, 22), range(11, 23)),
    "gemma3_pool": cases((113, 114, 121, 123), range(110, 124)),
    "qwen3_next": cases((12, 13, 15, 17, 18), range(7, 19)),
}
OVERLAP_TALKS: dict[str, Sequence[int]] = {  # the same, of an engine that launches a step before it reads the last
    "llama": cases((8, 18), range(8, 32)),
    "gemma3": cases((14, 18), range(11, 35)),
    "gemma3_pool": cases((113, 117), range(110, 134)),
    "qwen3_next": cases((8,), range(7, 31)),
}
OTHERS: dict[str, Sequence[int]] = {  # families with a forward of our own that differs from the others in its layers
    "qwen3": cases((13, 14), range(8, 20)),
    "qwen2": cases((13,), range(8, 14)),
    "mistral": cases((15,), range(8, 14)),
}
MANY_TALKS = int(os.environ.get("QUIRE_TALKS", "2000"))
ANSWERS_PER_TIE = 2000
EVERYWHERE = (
    "reused tokens", "reused_full", "onboarded", "offloaded", "dropped", "copied", "preemptions", "forks", "beams",
    "sampled", "ruled", "chunks", "mixed steps", "waits for reuse", "ended by eos", "ended by stop", "ended by length",
    "ended by cancelled", "failed moves", "adaptive order", "lru order", "release_order order", "receipts",
    "evicted by receipt", "ghosts", "disks", "reused_partial",
)  # fmt: skip
OVERLAPPED = ("tokens ahead", "waits for a token", "drained", "computed in vain")
WITHOUT_STATE = (
    "steps of fixed size",
    "drafts accepted",
    "drafts accepted, sampled",
    "drafts accepted, ruled",
    "drafts rejected",
)


@dataclass
class Pair:
    """An engine's model and a reference with the same weights."""

    name: str
    model: Model
    reference: Reference
    speak: Speak = random_words


@pytest.fixture(scope="module", params=(*families.NAMES, *families.POOLED))
def pair(request: pytest.FixtureRequest) -> Pair:
    name = str(request.param)
    return Pair(name, model_of(name), reference_of(name))


def compare(pair: Pair, done: Done, what: str) -> list[Difference]:
    """Where answers differ; ends and beam scores must agree in any case."""
    run, sampling = done.run, done.sampling
    assert run.error is None, f"{what}: {run.error}"
    if any(answer.finish == "cancelled" for answer in run.answers):
        wanted = pair.reference.answers(done.prompt, sampling)
        for answer, whole in zip(run.answers, wanted, strict=True):
            assert tuple(answer.tokens) == whole[: len(answer.tokens)], f"{what}: cancelled, {sampling}"
        return []
    found = pair.reference.differences(done.prompt, sampling, [answer.tokens for answer in run.answers])
    for answer in run.answers:
        assert answer.finish == ending(pair, sampling, answer.tokens), f"{what}: {sampling} {answer}"
    if sampling.beams > 1 and not found:
        scores = [answer.score for answer in run.answers]
        assert scores == pytest.approx(pair.reference.scores(done.prompt, sampling), abs=SCORES), what
    return found


def ending(pair: Pair, sampling: Sampling, tokens: list[int]) -> str:
    """Why such an answer ends."""
    if tokens[-1] in pair.model.eos_ids and not sampling.ignore_eos:
        return "eos"
    return "stop" if tokens[-1] in sampling.stop_ids else "length"


def run_talk(
    pair: Pair, seed: int, *, overlap: bool = False, share: bool = True
) -> tuple[Counter[str], list[Difference]]:
    talk = Talk(pair.model, seed, speak=pair.speak, overlap=overlap, share=share)
    what = f"{pair.name}, seed {seed}, {talk.config}"
    found = [difference for done in talk.run() for difference in compare(pair, done, what)]
    wrong = [difference for difference in found if not difference.tie]
    assert not wrong, f"{what}: " + "; ".join(map(str, wrong))
    return talk.counts, found


def assert_seen(pair: Pair, counts: Counter[str], more: Sequence[str] = ()) -> None:
    """Everything that could change a token has happened."""
    features = [*EVERYWHERE, *more, *(() if pair.model.recurrent else WITHOUT_STATE)]
    missing = [feature for feature in features if not counts[feature]]
    assert not missing, (pair.name, missing, counts)


@pytest.mark.long
def test_random_talks(pair: Pair) -> None:
    """Prompts wait for a common prefix here, and share it below. Processors round differently: on some, one answer of
    all may be a tie."""
    counts: Counter[str] = Counter()
    all_ties: list[Difference] = []
    for seed in TALKS[pair.name]:
        seen, ties = run_talk(pair, seed, share=False)
        counts += seen
        all_ties += ties
    assert len(all_ties) <= 1, [str(tie) for tie in all_ties]
    assert_seen(pair, counts)


@pytest.mark.long
@pytest.mark.parametrize("name", families.OWN_FORWARDS)
def test_random_talks_of_other_families(name: str) -> None:
    pair = Pair(name, model_of(name), reference_of(name))
    assert isinstance(pair.model.forward, OwnForward)
    played = [run_talk(pair, seed, overlap=seed % 2 == 0) for seed in OTHERS[name]]
    assert sum(len(ties) for _, ties in played) <= 1
    counts = sum((seen for seen, _ in played), Counter[str]())
    missing = [feature for feature in ("reused tokens", "reused_full", "chunks", "mixed steps") if not counts[feature]]
    assert not missing, counts


@pytest.mark.long
def test_random_talks_with_overlap(pair: Pair) -> None:
    counts: Counter[str] = Counter()
    all_ties: list[Difference] = []
    for seed in OVERLAP_TALKS[pair.name]:
        seen, ties = run_talk(pair, seed, overlap=True)
        counts += seen
        all_ties += ties
    assert len(all_ties) <= 1, [str(tie) for tie in all_ties]
    assert not [feature for feature in OVERLAPPED if not counts[feature]], counts
    if LONG:
        assert_seen(pair, counts, () if pair.model.recurrent else ("reused_pending",))


@pytest.mark.slow
def test_many_random_talks(pair: Pair) -> None:
    """Rounding may decide between two tokens that are as good as equal, in one answer of 2,000; nothing else may."""
    counts: Counter[str] = Counter()
    all_ties: list[Difference] = []
    for seed in range(24, 24 + MANY_TALKS):
        seen, ties = run_talk(pair, seed)
        counts += seen
        all_ties += ties
    print(f"{pair.name}: {dict(counts)}, ties: {[(tie.gap, tie.place) for tie in all_ties]}")
    assert len(all_ties) * ANSWERS_PER_TIE <= counts["answers"], [str(tie) for tie in all_ties]
    assert_seen(pair, counts)


def test_a_recurrent_state_cannot_be_guessed_ahead(pair: Pair) -> None:
    """Drafts are refused, aloud and before anything is queued, where they could not be taken back."""
    engine = Engine(pair.model, EngineConfig(64, block_size=8, max_length=256))
    sampling = Sampling(max_tokens=4, drafts=2)
    if pair.model.recurrent:
        with pytest.raises(InputError, match="recurrent state"):
            engine.submit(range(20, 40), sampling)
        assert engine.step() is None
    else:
        run = engine.submit(range(20, 40), sampling)
        engine.drain()
        assert_same(pair.reference, range(20, 40), sampling, [run.answers[0].tokens])
    engine.close()


# -- a real model ------------------------------------------------------------------------------------------------------

TEXT = """
The engine keeps what it has computed. When two people ask about the same book, the pages they share are computed once,
and each of them hears an answer as if nobody else had asked. A page that nobody reads may be put away and brought back
later; nothing in the answer tells. Write a short poem about a library at night, where the shelves are full of numbers.
What is the capital of France? What is the capital of Japan? Count from one to ten: one, two, three, four, five, six.
Once upon a time there was a small river that wanted to see the sea, and it asked the hills which way it should go.
"""


@pytest.fixture(scope="module")
def real() -> Pair:
    try:
        folder = smollm2.folder()
    except InputError as reason:
        pytest.skip(f"the embedded model is not there: {reason}")
    model = load(folder, dtype="float32")
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    ids = model.tokenizer(TEXT)["input_ids"]

    def speak(dice: np.random.Generator, count: int) -> Tokens:
        """A passage of the text."""
        first = int(dice.integers(len(ids) - 20))
        return tuple((ids[first:] + ids)[:count])

    return Pair("smollm2", model, Reference(module.eval().requires_grad_(False), steps=True), speak)


def serve(pair: Pair, engine: Engine, asks: list[tuple[Tokens, Sampling]]) -> tuple[list[Tokens], int]:
    """All of them at once, exact; what was said then, and how often a prompt needed one more step."""
    runs = [engine.submit(*ask) for ask in asks]
    chunks = 0
    while engine.step() is not None:
        chunks += len(engine.scheduler.prompts)
    for (prompt, sampling), run in zip(asks, runs, strict=True):
        assert_same(pair.reference, prompt, sampling, [answer.tokens for answer in run.answers], "smollm2")
    return [(*prompt, *run.answers[0].tokens) for (prompt, _), run in zip(asks, runs, strict=True)], chunks


def test_a_real_model(real: Pair) -> None:
    """A crowd on 13 pages, then others who push its pages to the host, then the first one goes on."""
    words = tuple(real.model.tokenizer(TEXT)["input_ids"])
    plain = Sampling(max_tokens=9, ignore_eos=True)
    engine = Engine(real.model, EngineConfig(13, 40, 8, max_num_tokens=32, max_sequences=6, max_length=120))
    crowd = [
        (words[:45], replace(plain, drafts=3)),
        (words[:30] + words[60:75], replace(plain, n=2, temperature=0.8, seed=7)),
        (words[:21], replace(plain, beams=3, n=2)),
        ((*words[80:92], *words[80:92], *words[80:84]), replace(plain, drafts=4)),  # it repeats: drafts hit
    ]
    said, chunks = serve(real, engine, crowd)
    serve(real, engine, [(words[90:130], plain), (words[100:150], plain)])
    serve(real, engine, [((*said[0], *words[70:73]), plain)])
    stats, scheduler, advance = engine.cache.stats(), engine.scheduler, engine.advance
    assert chunks and stats.reused_full and stats.reused_partial and stats.onboarded and stats.offloaded
    assert scheduler.num_preemptions and engine.forks.num_forks and advance.num_accepted
    engine.close()


@pytest.mark.slow
def test_a_real_model_at_length(real: Pair) -> None:
    counts: Counter[str] = Counter()
    all_ties: list[Difference] = []
    for seed in range(100, 100 + max(1, MANY_TALKS // 50)):
        seen, ties = run_talk(real, seed)
        counts += seen
        all_ties += ties
    print(f"{real.name}: {dict(counts)}, ties: {[(tie.gap, tie.place) for tie in all_ties]}")
    assert len(all_ties) * ANSWERS_PER_TIE <= max(ANSWERS_PER_TIE, counts["answers"])
    assert_seen(real, counts)
