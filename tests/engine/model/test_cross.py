"""Cross attention with a real model: Whisper's decoder reads both its own KV and the encoder's from our pages.

A small runner drives a tiny random Whisper: the encoder runs only when the cache has not all of its KV, forks and beams
share cross pages, and a host tier under pressure moves them as real bytes. Tokens must equal transformers' `generate`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import EncoderDecoderCache, GenerationMixin  # noqa: E402
from transformers.cache_utils import CacheLayerMixin  # noqa: E402

from quire import (  # noqa: E402
    Cache,
    CacheConfig,
    Encoder,
    LayerGroup,
    Plan,
    Request,
    Sequence,
    Span,
    TierConfig,
    check,
)
from quire.engine.step.runs.beam import Beams  # noqa: E402
from quire.tiers import ArenaTier, Mover, PageLayout  # noqa: E402

from ...effort import cases  # noqa: E402
from ..families import FIRST_WORD, MELS, PLACES, VOCAB, build_whisper  # noqa: E402

START, EOS = 1, 2
SELF, CROSS = 0, 1
NUM_CASES = cases(7, 60)


class OwnLayer(CacheLayerMixin):  # type: ignore[misc]
    """One decoder layer's own KV: written into pages, read back from pages."""

    def __init__(self, pages: Any, layer: int, slots: list[int], start: int) -> None:
        super().__init__()
        self.pages, self.layer, self.slots, self.num_tokens, self.is_initialized = pages, layer, slots, start, True

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        pass

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        first, self.num_tokens = self.num_tokens, self.num_tokens + key_states.shape[2]
        return (
            write(self.pages, 2 * self.layer, self.slots, (first, self.num_tokens), key_states),
            write(self.pages, 2 * self.layer + 1, self.slots, (first, self.num_tokens), value_states),
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.num_tokens

    def get_max_length(self) -> int:
        return -1


class HeardLayer(OwnLayer):
    """One decoder layer's KV of the encoder: only read."""

    def __init__(self, pages: Any, layer: int, slots: list[int]) -> None:
        super().__init__(pages, layer, slots, PLACES)
        self.keys, self.values = (read(pages, plane, slots, PLACES) for plane in (2 * layer, 2 * layer + 1))

    def update(self, *_: Any, **__: Any) -> tuple[Any, Any]:
        raise AssertionError("the model must not compute the encoder's KV itself")


def read(pages: Any, plane: int, slots: list[int], end: int) -> Any:
    """[1, heads, end, head_dim], gathered."""
    return pages[slots, plane].flatten(0, 1)[:end].transpose(0, 1)[None]


def write(pages: Any, plane: int, slots: list[int], places: tuple[int, int], states: Any) -> Any:
    """Put states [1, heads, tokens, head_dim] at places of a plane; everything up to there, gathered."""
    block = pages.shape[2]
    at = np.arange(*places)
    pages[np.array(slots)[at // block], plane, at % block] = states[0].transpose(0, 1)
    return read(pages, plane, slots, places[1])


@dataclass(frozen=True)
class Job:
    """One thing to transcribe: a prompt for the decoder, a recording, and how many answers."""

    prompt: tuple[int, ...]
    audio: int
    max_tokens: int = 8
    forks: int = 1  # answers that begin with the best, second best ... token and go on greedily
    beams: int = 1


@dataclass(eq=False)
class Task:
    """A job under way. Forks are tasks of their own from their first token on."""

    job: Job
    tokens: list[int] = field(default_factory=list)
    branches: list[Sequence] = field(default_factory=list)
    beams: Any = None
    resume: Request | None = None


class Scribe:
    """Whisper over a cache of ours. Sequences are computed one by one; many are alive."""

    def __init__(self, model: Any, block: int, device: tuple[int, int], host: tuple[int, int], chunk: int = 64) -> None:
        config = model.config
        self.model, self.block, self.chunk = model, block, chunk
        self.shape = (2 * config.decoder_layers, block, config.decoder_attention_heads, -1)
        page_bytes, planes = 2 * config.decoder_layers * block * config.d_model * 4, 2 * config.decoder_layers
        sizes = {"page_bytes": page_bytes, "planes": planes}
        self.cache = Cache(
            CacheConfig(
                (TierConfig("device", device), TierConfig("host", host)),
                block_size=block,
                groups=(LayerGroup("full", **sizes), LayerGroup("cross", cross=True, **sizes)),
                max_sequences=16,
                max_length=config.max_target_positions,
                max_encoder_length=PLACES,
            )
        )
        self.tiers = [ArenaTier(name, slots, [page_bytes] * 2) for name, slots in (("device", device), ("host", host))]
        self.mover = Mover(self.tiers, [PageLayout(page_bytes, planes)] * 2, block)
        self.pages = [self.view(0, group) for group in (SELF, CROSS)]
        self.waiting: deque[Task] = deque()
        self.running: list[Task] = []
        self.answers: dict[Job, list[list[int]]] = {}
        self.counts: Counter[str] = Counter()
        self.num_ids = 0

    def view(self, tier: int, group: int) -> Any:
        """A tier's pages of one group as floats."""
        return torch.from_numpy(self.tiers[tier].view(group).view(np.float32)).unflatten(1, self.shape)

    def close(self) -> None:
        self.mover.close()

    # -- plans and names ---------------------------------------------------------------------------------------------

    def run_plan(self, plan: Plan) -> None:
        for move in plan:
            self.counts[f"{move.kind.name.lower()} {'cross' if move.group == CROSS else 'own'}"] += 1
        assert not self.mover.run(plan)
        assert not self.cache.finish(plan).setbacks

    def name(self) -> int:
        self.num_ids += 1
        return self.num_ids

    def request(self, job: Job, tokens: list[int]) -> Request:
        """What a decoder wrote depends on what was heard, from its first token on: the cache keeps recordings apart."""
        digest = digest_of(job.audio)
        prompt = np.array([*job.prompt, *tokens], np.int32)
        encoder = Encoder(PLACES, digest=digest)
        return Request(self.name(), prompt, encoder=encoder, beams=max(job.forks, job.beams))

    # -- the model ---------------------------------------------------------------------------------------------------

    def listen(self, sequence: Sequence, audio: int, start: int) -> None:
        """Run the encoder and write its KV into the pages that are not there yet."""
        self.counts["encoder runs"] += 1
        heard = self.model.model.encoder(recording(audio)).last_hidden_state
        first = start // self.block * self.block
        for nth, layer in enumerate(self.model.model.decoder.layers):
            for plane, project in ((2 * nth, layer.encoder_attn.k_proj), (2 * nth + 1, layer.encoder_attn.v_proj)):
                states = project(heard).unflatten(2, self.shape[2:]).transpose(1, 2)
                slots = sequence.slots(CROSS).tolist()
                write(self.pages[CROSS], plane, slots, (first, PLACES), states[:, :, first:])

    def logits(self, sequence: Sequence, start: int, end: int) -> Any:
        """One forward over tokens [start, end), everything before it out of pages; the last token's logits."""
        tokens = torch.from_numpy(self.cache.tokens(sequence)[start:end]).long()[None]
        own, heard = (sequence.slots(group).tolist() for group in (SELF, CROSS))
        layers = range(self.model.config.decoder_layers)
        past = EncoderDecoderCache(
            transformers.Cache(layers=[OwnLayer(self.pages[SELF], nth, own, start) for nth in layers]),
            transformers.Cache(layers=[HeardLayer(self.pages[CROSS], nth, heard) for nth in layers]),
        )
        nothing = torch.full((1, PLACES, self.model.config.d_model), torch.nan)  # whoever reads it shall be seen
        states = self.model.model.decoder(tokens, encoder_hidden_states=nothing, past_key_values=past, use_cache=True)
        return self.model.proj_out(states.last_hidden_state[0, -1])

    # -- one turn: admit, compute prompts, decode ----------------------------------------------------------------------

    def run(self, jobs: list[Job]) -> dict[Job, list[list[int]]]:
        """All jobs, each of them once, to their end; the answers."""
        self.answers = {}
        self.waiting.extend(Task(job) for job in jobs)
        while self.waiting or self.running:
            self.admit()
            for task in list(self.running):
                if task in self.running:  # it may have had to make room for one before it
                    self.decode(task)
            check(self.cache)
        assert self.cache.num_sequences == 0
        return self.answers

    def admit(self) -> None:
        """New ones, as many as fit; prompts are computed in chunks."""
        unfinished = [task for task in self.running if not ready(task)]
        new = list(self.waiting)[: max(0, 6 - len(self.running))]
        requests = [task.resume or self.request(task.job, task.tokens) for task in new]
        with self.cache.claim(requests) as claims:
            starts = {claim.request.id: claim.encoder_start for claim in claims}
            continuing = [task.branches[0] for task in unfinished]
            batch = self.cache.admit(claims, token_budget=32, max_chunk=self.chunk, continuing=continuing)
        assert batch.num_tokens <= 32 and not any(refusal.never for refusal in batch.refused)
        self.run_plan(batch.plan)
        for sequence in batch.sequences:
            task = self.waiting.popleft()
            task.branches, task.resume = [sequence], None
            self.running.append(task)
            self.counts["own tokens reused"] += sequence.start
            self.counts["encoder spared"] += starts[sequence.id] == PLACES
            self.counts["encoder in part"] += 0 < starts[sequence.id] < PLACES
            if starts[sequence.id] < PLACES:
                self.listen(sequence, task.job.audio, starts[sequence.id])
        for task in list(self.running):
            if task.branches and (span := batch.spans.get(task.branches[0])) is not None:
                self.compute_prompt(task, span)

    def compute_prompt(self, task: Task, span: Span) -> None:
        (sequence,) = task.branches
        logits = self.logits(sequence, span.start, span.end)
        self.counts["chunks"] += span.end < sequence.prompt_end
        self.cache.commit(sequence)
        if not ready(task):
            return
        if task.job.beams > 1:
            task.beams = Beams(task.job.beams, task.job.max_tokens, frozenset({EOS}), 1.0)
            self.spread(task, logits[None])
        elif task.job.forks > 1 and not task.tokens:
            self.fork(task, logits)
        else:
            self.add(task, int(logits.argmax()))

    def decode(self, task: Task) -> None:
        """One more token for every branch of a task whose prompt is computed."""
        if not ready(task):
            return
        if task.job.beams > 1:
            steps = [self.logits(beam, beam.length - 1, beam.length) for beam in task.branches]
            self.cache.commit(task.branches)
            self.spread(task, torch.stack(steps))
            return
        (sequence,) = task.branches
        plan = self.cache.grow(sequence, np.array(task.tokens[-1:], np.int32))
        if plan is None:
            self.make_room(self.running[-1])  # itself, perhaps
            return
        self.run_plan(plan)
        logits = self.logits(sequence, sequence.length - 1, sequence.length)
        self.cache.commit(sequence)
        self.add(task, int(logits.argmax()))

    def add(self, task: Task, token: int) -> None:
        task.tokens.append(token)
        if token == EOS or len(task.tokens) == task.job.max_tokens:
            self.running.remove(task)
            self.cache.release(task.branches.pop())
            self.answers.setdefault(task.job, []).append(task.tokens)

    # -- branches ----------------------------------------------------------------------------------------------------

    def fork(self, task: Task, logits: Any) -> None:
        """One task per answer; all of them read the same cross pages."""
        (sequence,) = task.branches
        made = self.cache.fork(sequence, [self.name() for _ in range(task.job.forks - 1)])
        assert made is not None, "room for its forks was charged at admission"
        forks, plan = made
        self.run_plan(plan)
        self.counts["forks"] += len(forks)
        assert all(np.array_equal(fork.slots(CROSS), sequence.slots(CROSS)) for fork in forks)
        twins = [task, *(Task(task.job, branches=[fork]) for fork in forks)]
        self.running.extend(twins[1:])
        for twin, token in zip(twins, logits.topk(task.job.forks).indices.tolist(), strict=True):
            self.add(twin, token)

    def spread(self, task: Task, logits: Any) -> None:
        """One turn of beam search: beams without children end, beams with several are forked."""
        children = task.beams.advance(logits.float().log_softmax(-1))
        if task.beams.done:
            self.running.remove(task)
            for beam in task.branches:
                self.cache.release(beam)
            best = task.beams.best(task.job.beams)
            self.answers[task.job] = [list(hypothesis.tokens) for hypothesis in best]
            return
        parents = Counter(parent for parent, _ in children)
        for place, beam in enumerate(task.branches):
            if place not in parents:
                self.cache.release(beam)
        rows = {place: [task.branches[place]] for place in parents}
        task.branches = [beam for beam in task.branches if beam.live]
        for place, count in parents.items():
            made = self.with_room(task, lambda p=place, n=count: self.cache.fork(rows[p][0], self.names(n - 1)))
            if made is None:
                return
            rows[place] += made[0]
            task.branches += made[0]
            self.run_plan(made[1])
            self.counts["beam forks"] += len(made[0])
        task.branches = [rows[parent].pop() for parent, _ in children]
        tokens = np.array([[token] for _, token in children], np.int32)
        plan = self.with_room(task, lambda: self.cache.grow(task.branches, tokens))
        if plan is not None:
            self.run_plan(plan)

    def names(self, count: int) -> list[int]:
        return [self.name() for _ in range(count)]

    def with_room(self, task: Task, act: Any) -> Any:
        """Do it, if need be after others made room; None when this task had to."""
        while (done := act()) is None:
            last = self.running[-1]
            self.make_room(last)
            if last is task:
                return None
        return done

    def make_room(self, task: Task) -> None:
        """Preempt: one answer goes on where it is, a beam search begins again."""
        assert len(self.running) > 1, "it does not fit alone"
        self.counts["preemptions"] += 1
        self.running.remove(task)
        if len(task.branches) == 1 and task.beams is None:
            tokens = np.array([*task.job.prompt, *task.tokens], np.int32)  # the last one may not have had a slot yet
            request = self.cache.suspend(task.branches.pop())
            task.resume = replace(request, tokens=tokens, beams=1 if task.tokens else request.beams)
        else:
            for beam in task.branches:
                self.cache.release(beam)
            task.branches, task.beams = [], None
        self.waiting.appendleft(task)


def ready(task: Task) -> bool:
    """Its prompt is computed."""
    return task.branches[0].computed >= task.branches[0].prompt_end


# -- what is heard, and what must be written ---------------------------------------------------------------------------


def recording(audio: int) -> Any:
    return torch.from_numpy(np.random.default_rng(audio).standard_normal((1, MELS, 2 * PLACES), np.float32))


def digest_of(audio: int) -> bytes:
    return blake2b(recording(audio).numpy().tobytes(), digest_size=32).digest()


class Written:
    """What transformers writes for a job, without any cache of ours."""

    def __init__(self) -> None:
        self.model = build_whisper()
        self.known: dict[Job, list[list[int]]] = {}

    def of(self, job: Job) -> list[list[int]]:
        if job not in self.known:
            self.known[job] = self.generate(job)
        return self.known[job]

    def confirms(self, job: Job, answers: list[list[int]]) -> bool:
        """Whether that is what greedy answers come to: one pass over each, instead of one for every token of it."""
        if job.beams > 1 or len(answers) != job.forks:
            return False
        by_first: dict[int, list[int]] = {}
        for answer in answers:
            if EOS in answer[:-1] or not (answer[-1] == EOS or len(answer) == job.max_tokens):
                return False
            ids = torch.tensor([[*job.prompt, *answer[:-1]]])
            made = self.model(input_features=recording(job.audio), decoder_input_ids=ids).logits[
                0, len(job.prompt) - 1 :
            ]
            firsts = made[0].topk(job.forks).indices.tolist()
            if answer[1:] != made[1:].argmax(-1).tolist():
                return False
            by_first[answer[0]] = answer
        if set(by_first) != set(firsts):
            return False
        self.known[job] = [by_first[token] for token in firsts]
        return True

    def generate(self, job: Job) -> list[list[int]]:
        if job.forks == 1:
            return self.call(job, job.prompt, job.max_tokens)
        inputs = {"input_features": recording(job.audio), "decoder_input_ids": torch.tensor([job.prompt])}
        firsts = self.model(**inputs).logits[0, -1].topk(job.forks).indices.tolist()
        return [[token, *self.rest(job, token)] for token in firsts]

    def rest(self, job: Job, token: int) -> list[int]:
        if token == EOS or job.max_tokens == 1:
            return []
        return self.call(job, (*job.prompt, token), job.max_tokens - 1)[0]

    def call(self, job: Job, prompt: tuple[int, ...], max_tokens: int) -> list[list[int]]:
        options = {"num_beams": job.beams, "num_return_sequences": job.beams, "do_sample": False}
        ids = torch.tensor([prompt])
        made = GenerationMixin.generate(
            self.model, recording(job.audio), decoder_input_ids=ids, max_new_tokens=max_tokens, **options
        )
        return [cut(row) for row in made[:, len(prompt) :].tolist()]


def cut(tokens: list[int]) -> list[int]:
    """Without what pads the rows of a batch."""
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


@pytest.fixture(scope="module")
def model() -> Any:
    return build_whisper()


@pytest.fixture
def open_scribe(model: Any) -> Iterator[Any]:
    """Scribes that are closed at the end."""
    opened: list[Scribe] = []

    def make(block: int, device: tuple[int, int], host: tuple[int, int], chunk: int = 64) -> Scribe:
        opened.append(Scribe(model, block, device, host, chunk))
        return opened[-1]

    yield make
    for scribe in opened:
        scribe.close()


def assert_written(scribe: Scribe, written: Written, jobs: list[Job], what: str = "") -> None:
    """Every answer is what transformers writes; forks end in any order."""
    answers = scribe.run(jobs)
    for job in jobs:
        if not written.confirms(job, answers[job]):
            assert sorted(answers[job]) == sorted(written.of(job)), f"{what} {job}"


def words(dice: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(int(word) for word in dice.integers(FIRST_WORD, VOCAB, count))


def draw_jobs(dice: np.random.Generator, texts: list[tuple[int, ...]], count: int) -> list[Job]:
    """Distinct jobs over a few texts and recordings."""
    drawn: dict[Job, None] = {}
    for _ in range(count):
        text = texts[dice.integers(len(texts))]
        forks, beams = [(1, 1), (1, 1), (int(dice.integers(2, 4)), 1), (1, int(dice.integers(2, 4)))][dice.integers(4)]
        drawn[Job(text, int(dice.integers(4)), int(dice.integers(4, 11)), forks, beams)] = None
    return list(drawn)


def run_case(open_scribe: Any, written: Written, seed: int) -> Counter[str]:
    """Two rounds on one cache: the second repeats, changes and goes on with what the first wrote."""
    dice = np.random.default_rng(seed)
    block = int(dice.integers(4, 17))
    heard, least = -(-PLACES // block), -(-26 // block) + 3 * (-(-10 // block) + 1)  # three beams of the longest text
    device = (least + int(dice.integers(0, 5)), heard * int(dice.integers(1, 4)))
    host = (int(dice.integers(0, 4 * least)), heard * int(dice.integers(0, 5)) + int(dice.integers(0, 2)))
    scribe = open_scribe(block, device, host, chunk=int(dice.integers(block, 33)))
    root = (START, *words(dice, 5))
    texts = [root, (*root, *words(dice, 8)), (*root, *words(dice, 2)), (START, *words(dice, int(dice.integers(1, 18))))]
    first = draw_jobs(dice, texts, 4)
    assert_written(scribe, written, first, f"seed {seed}, first round,")
    texts += [(*job.prompt, *written.of(job)[0], *words(dice, 2)) for job in first[:2]]
    again = dict.fromkeys([first[0], *draw_jobs(dice, texts, 4)])
    assert_written(scribe, written, list(again), f"seed {seed}, second round,")
    counts: Counter[str] = scribe.counts
    return counts


@pytest.mark.long
def test_random_recordings(open_scribe: Any, written: Written) -> None:
    """Every token as without the cache; and everything the cache is for did happen."""
    counts: Counter[str] = Counter()
    for seed in range(NUM_CASES):
        counts += run_case(open_scribe, written, seed)
    for feature in (
        "onboard cross", "offload cross", "onboard own", "offload own", "copy own", "encoder spared", "encoder in part",
        "encoder runs", "own tokens reused", "chunks", "forks", "beam forks", "preemptions",
    ):  # fmt: skip
        assert counts[feature] > cases(0, 2), (feature, counts)
    assert not counts["copy cross"], "cross pages are shared whole"


TEXT, OTHER = (START, 40, 50, 60, 70, 80), (START, 90, 91, 92)


def test_a_recording_is_heard_once(open_scribe: Any, written: Written) -> None:
    """Other texts for the same recording, later or at the same time: the encoder has run once."""
    scribe = open_scribe(4, (64, 24), (0, 0))
    assert_written(scribe, written, [Job(TEXT, 0)])
    assert_written(scribe, written, [Job(OTHER, 0), Job((*TEXT, 99), 0), Job(TEXT, 0, forks=3), Job(OTHER, 0, beams=3)])
    assert (scribe.counts["encoder runs"], scribe.counts["encoder spared"]) == (1, 4)


def test_another_recording_shares_nothing(open_scribe: Any, written: Written) -> None:
    """The same text over another recording: other tokens, all of it computed, none of its pages shared."""
    scribe = open_scribe(4, (64, 24), (0, 0))
    assert_written(scribe, written, [Job(TEXT, 0)])
    assert_written(scribe, written, [Job(TEXT, 1)])
    assert written.of(Job(TEXT, 0)) != written.of(Job(TEXT, 1))
    assert (scribe.counts["encoder runs"], scribe.counts["own tokens reused"]) == (2, 0)
    assert_written(scribe, written, [Job(TEXT, 1, 9), Job(TEXT, 0, 9)])
    assert scribe.counts["encoder runs"] == 2 and scribe.counts["own tokens reused"] == 2 * (len(TEXT) - 1)


def fill(scribe: Scribe, tier: int, slots: list[int]) -> None:
    """Other numbers where the encoder's KV is kept."""
    scribe.view(tier, CROSS)[slots] = torch.randn(scribe.view(tier, CROSS)[slots].shape)


def test_wrong_bytes_on_the_device_are_seen(open_scribe: Any, written: Written) -> None:
    """One committed cross page is overwritten between two requests: the second one's tokens are not the reference's."""
    scribe = open_scribe(8, (64, 3), (0, 0))
    assert_written(scribe, written, [Job(TEXT, 0)])
    fill(scribe, 0, [1])
    with pytest.raises(AssertionError, match="after the damage"):
        assert_written(scribe, written, [Job(OTHER, 0)], "after the damage")
    assert scribe.counts["encoder spared"] == 1


def test_wrong_bytes_on_the_host_are_seen(open_scribe: Any, written: Written) -> None:
    """The same while the page is on the host: it is onboarded and read; without damage all is well."""
    for damage in (False, True):
        scribe = open_scribe(8, (64, 3), (0, 6))
        assert_written(scribe, written, [Job(TEXT, 0)])
        assert_written(scribe, written, [Job(TEXT, 1)])
        assert scribe.counts["offload cross"] == 3 and scribe.cache.usage(1, CROSS).empty == 3
        if damage:
            fill(scribe, 1, [0, 1, 2, 3, 4, 5])
            with pytest.raises(AssertionError, match="after the damage"):
                assert_written(scribe, written, [Job(OTHER, 0)], "after the damage")
        else:
            assert_written(scribe, written, [Job(OTHER, 0)])
        assert scribe.counts["onboard cross"] + scribe.counts["exchange cross"] == 3
        assert scribe.counts["encoder runs"] == 2
