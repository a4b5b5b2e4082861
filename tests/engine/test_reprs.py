"""What objects show of themselves, in logs and tracebacks: what they are and their numbers, never what a user wrote."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import quire.engine as public  # noqa: E402
from quire.core.records.span import Span  # noqa: E402
from quire.engine import LLM, EngineConfig, PrefillPeer, RunFailed, Sampling, from_module  # noqa: E402
from quire.engine.step.runs.branch import Branch  # noqa: E402

from . import families  # noqa: E402
from .words import byte_tokenizer  # noqa: E402

PRIVATE = "Zurich PIN 4711 whisper"
WORDS = re.compile("|".join(rf"(?<![\d.]){word}(?!\d)" for word in PRIVATE.split()))  # not digits of some time
LONGEST = 250
SEVERAL = re.compile(r"\d+,\s*\d+,\s*\d+")  # numbers in a row, as token ids would be
PLAIN = Sampling(max_tokens=40, ignore_eos=True, stop=("PIN",), stop_ids=(251, 252), n=2, temperature=1.0, seed=5)


class Silent:
    """A publisher without anybody to tell."""

    def tell(self) -> int | None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def objects() -> Iterator[list[Any]]:
    """One of every public kind, each with a prompt and an answer to give away."""
    model = from_module(families.build("llama"), byte_tokenizer())
    config = EngineConfig(60, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256, events=True)
    with LLM(model, config=config) as llm:
        (output,) = llm.generate(PRIVATE, PLAIN)
        stream = llm.stream(PRIVATE, Sampling(max_tokens=6, beams=2, n=2))
        run = stream.wait(120)
        piece = public.Piece(0, (111, 112, 113, 114), PRIVATE)
        report: Any = None
        engine = public.Engine(model, config)
        held = engine.submit(llm.tokens(PRIVATE), PLAIN)
        for _ in range(3):
            report = engine.step()
        yield [
            llm, llm.loop, engine, model, output, stream, run, held, run.answers[0], held.answers[0], piece, report,
            engine.stats, engine.config, PLAIN, PrefillPeer("host:1", b"a secret of 16 bytes"), RunFailed("it failed"),
            public.EngineBusy("full"), held.branches[0], stream.transcripts[0], llm.stream_async(PRIVATE, PLAIN),
            public.EnginePublisher(engine, Silent()), public.TooLate("late", 2.0, 1.0),
            public.DiskConfig("folder"), output.times, public.StructuredOutputs(choice=["PIN", "Zurich"]),
            public.TokenPrompt((111, 112, 113, 114), (Span(0, 3),)),
            public.TokenLogprobs(111, -0.5, 1, ((111, -0.5), (112, -1.5), (113, -2.5))),
        ]  # fmt: skip
        engine.close()


def test_every_public_kind_is_looked_at(objects: list[Any]) -> None:
    kinds = {one for name in public.__all__ if inspect.isclass(one := getattr(public, name))}
    kinds = {one for one in kinds if Protocol not in one.__mro__}
    assert kinds <= {type(one) for one in objects}


def test_they_are_short_and_keep_what_a_user_wrote_to_themselves(objects: list[Any]) -> None:
    for one in objects:
        text = repr(one)
        assert len(text) < LONGEST and "\n" not in text and text.startswith(type(one).__name__), text
        assert "secret" not in text and not WORDS.search(text), text
        assert not SEVERAL.search(text), text


def test_they_say_something() -> None:
    assert repr(Sampling()) == "Sampling()"
    assert repr(Sampling(max_tokens=5, stop=("a", "b"))) == "Sampling(max_tokens=5, stop=<2>)"
    assert repr(EngineConfig(60, max_length=64)) == "EngineConfig(device_pages=60, max_length=64)"


def test_numbers_are_there(objects: list[Any]) -> None:
    llm, loop, engine, model, output, stream, run = objects[:7]
    assert repr(model) == "Model(LlamaForCausalLM, float32 on cpu, 1 layer groups)"
    assert repr(engine) == f"Engine({model!r}, 1 runs inside, 3 steps)"
    assert re.fullmatch(r"LLM\(Loop\(Engine\(.*, \d+ runs inside, \d+ steps\), 0 wait for a place\)\)", repr(llm))
    made = "+".join(str(len(tokens)) for tokens in output.tokens)
    ends = ", ".join(sorted(set(output.finish)))
    assert repr(output) == f"Output({made} tokens, {ends}; prompt {len(PRIVATE)} tokens, 0 reused)"
    assert re.fullmatch(rf"Run\(\(1, -1\), {len(PRIVATE)} tokens, done\)", repr(run))
    assert re.fullmatch(r"Stream\(Run\(.*\), over, \d+ pieces to read\)", repr(stream)) and repr(loop) in repr(llm)
    assert re.fullmatch(r"Answer\(\d+ tokens, (length|eos), score -\d+\.\d{3}\)", repr(objects[8]))
    assert repr(objects[9]).startswith("Answer(3 tokens, ") and isinstance(objects[18], Branch)
    assert repr(objects[10]) == "Piece(answer 0, 4 tokens, 23 characters)"
