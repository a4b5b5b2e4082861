"""Structured output: answers have the form that was asked for, whatever the engine does to them on the way."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import InputError, MissingExtra  # noqa: E402
from quire.core.records.request import Int32  # noqa: E402
from quire.engine import LLM, Engine, EngineConfig, Model, RunFailed, Sampling, StructuredOutputs, from_module, load  # noqa: E402
from quire.engine.model import smollm2  # noqa: E402
from quire.engine.sampling.edit_logits import edit  # noqa: E402
from quire.engine.sampling.sample_row import SampleRow  # noqa: E402
from quire.engine.structured_outputs import grammar  # noqa: E402
from quire.engine.structured_outputs.grammar import GrammarMask, Grammars  # noqa: E402
from quire.engine.structured_outputs.grammar_faults import MOST_OPTIONAL  # noqa: E402

from ...waits import PATIENCE  # noqa: E402
from .. import families  # noqa: E402
from ..steps import finish, open_engine, words  # noqa: E402
from ..words import byte_tokenizer  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "age"],
    "additionalProperties": False,
}
FORMS = {
    "json": StructuredOutputs(json=SCHEMA),
    "regex": StructuredOutputs(regex="[0-9]{3}-[a-f]+x"),
    "choice": StructuredOutputs(choice=["yes", "no", 'a "maybe"\n', "grün"]),
}


def fits(form: str, text: str) -> bool:
    if form == "json":
        found = json.loads(text)
        return set(found) == {"ok", "age"} and type(found["ok"]) is bool and 0 <= found["age"] <= 99
    if form == "regex":
        return re.fullmatch("[0-9]{3}-[a-f]+x", text) is not None
    return text in FORMS["choice"].choice


# -- without a library -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({}, "nothing is given; give one of json, regex and choice"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice are given"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": "[1]"}, "json is [1]; give a JSON schema, which is an object"),
        ({"json": {"a": {1, 2}}}, "json is not JSON"),
        ({"json": {"a": "x" * 70_000}}, "the schema has 70009 characters; give one of at most 65536"),
        ({"regex": "a" * 5000}, "give a string of at most 4096 characters"),
        ({"regex": 5}, "regex is 5"),
        ({"choice": "yes"}, "choice is 'yes'; give a list of strings"),
        ({"choice": ["yes", ""]}, "none of them empty"),
        ({"choice": ["x"] * 257}, "choice has 257 strings"),
        ({"choice": ["x" * 257]}, "the longest of 257 characters"),
    ],
)
def test_what_is_no_form(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(InputError) as told:
        StructuredOutputs(**given)
    assert fact in str(told.value) and len(str(told.value)) < 200


def test_a_form_is_a_frozen_record() -> None:
    one = StructuredOutputs(json={"type": "object"})
    assert one == StructuredOutputs(json='{"type":  "object"}') and hash(Sampling(structured_outputs=one))
    assert repr(one) == "StructuredOutputs(json=<18>)" and repr(FORMS["choice"]) == "StructuredOutputs(choice=<4>)"
    with pytest.raises(InputError, match=r"structured_outputs is \{'regex': 'a'\}; give StructuredOutputs\(json="):
        Sampling(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="with beams 2: structured_outputs is"):
        Sampling(beams=2, structured_outputs=one)


def test_without_the_library_the_error_has_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"they need llguidance.*pip install 'quire-kv\[grammar\]'"):
        Grammars(byte_tokenizer(), frozenset([2])).mask(FORMS["choice"])


def test_masks_of_a_batch() -> None:
    """32 tokens to a number; what a mask does not know is forbidden; other rows are left alone."""
    logits = torch.randn(3, 70)
    before = logits.clone()
    allowed = [{0, 31, 32, 63}, {5, 40}]
    masks = [np.zeros(2, np.uint32), np.zeros(4, np.uint32)]
    for mask, tokens in zip(masks, allowed, strict=True):
        for token in tokens:
            mask[token // 32] |= np.uint32(1 << token % 32)
    rows = [SampleRow(Sampling(), 0, 0, 0, mask=mask.view(np.int32)) for mask in masks]
    edit(logits, [(0, rows[0]), (2, rows[1])])
    assert torch.equal(logits[1], before[1])
    for nth, tokens in ((0, allowed[0]), (2, allowed[1])):
        assert set(torch.isfinite(logits[nth]).nonzero().flatten().tolist()) == tokens
        assert all(logits[nth, token] == before[nth, token] for token in tokens)


class Rising:
    """A mask of one's own: every token is larger than the one before it."""

    error = ""

    def __init__(self, last: int = 16, left: int = 16) -> None:
        self.last, self.left = last, left

    def words(self) -> Int32:
        bits = np.zeros(256, np.uint8)
        bits[self.last + 1 : self.last + 13] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def accept(self, token: int) -> None:
        assert self.last < token < self.last + 13
        self.last, self.left = token, self.left - 1

    def copy(self) -> Rising:
        return Rising(self.last, self.left)

    @property
    def complete(self) -> bool:
        return not self.left


@pytest.mark.parametrize("pages", [10, 60])
@pytest.mark.parametrize("reuse", [True, False])
def test_the_hook_with_preemption_reuse_and_several_answers(pages: int, reuse: bool) -> None:
    """And with drafts, which such a run does not take."""
    with open_engine("llama", pages, reuse=reuse) as engine:
        sampling = Sampling(max_tokens=20, temperature=1.5, seed=3, n=3, drafts=4, ignore_eos=True)
        runs = [engine.submit(words(0, 24) * 2, sampling, mask=Rising()) for _ in range(2)]
        finish(engine)
        assert bool(engine.scheduler.num_preemptions) == (pages == 10) and not engine.scheduler.num_drafts
        with open_engine("llama", 60) as plain:
            alone = plain.submit(words(0, 24) * 2, sampling, mask=Rising())
            finish(plain)
        for run in runs:
            assert [answer.tokens for answer in run.answers] == [answer.tokens for answer in alone.answers]
            for answer in run.answers:
                assert len(answer.tokens) == 16 and answer.finish == "stop"
                assert all(first < second for first, second in pairwise([16, *answer.tokens]))
        with pytest.raises(InputError, match="a mask of tokens with beams 2"):
            engine.submit(words(0, 24), Sampling(beams=2), mask=Rising())


def test_a_mask_that_is_given_is_the_one_that_counts() -> None:
    """A loop gives that of `structured_outputs` ready made: the engine's thread compiles none. Here there is no
    tokenizer to compile for, and it is not missed."""
    with open_engine("llama", 60) as engine:
        sampling = Sampling(max_tokens=20, structured_outputs=StructuredOutputs(choice=["yes"]))
        with pytest.raises(InputError):
            engine.submit(words(0, 24), sampling)
        run = engine.submit(words(0, 24), sampling, mask=Rising())
        finish(engine)
        assert len(run.answers[0].tokens) == 16


# -- llguidance --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Model:
    pytest.importorskip("llguidance")
    return from_module(families.build("llama"), byte_tokenizer())


CONFIG = EngineConfig(80, block_size=8, max_num_tokens=64, max_sequences=8, max_length=256)


@pytest.fixture(scope="module")
def llm(tiny: Model) -> Iterator[LLM]:
    with LLM(tiny, config=CONFIG) as made:
        yield made


@pytest.mark.parametrize("form", FORMS)
def test_every_answer_has_the_form(llm: LLM, form: str) -> None:
    """Of a model that talks nonsense: greedy, hot, several at once, beside one without a form."""
    for fields in ({}, {"temperature": 2.0, "seed": 7, "n": 4}, {"temperature": 1.0, "seed": 1, "drafts": 3}):
        streams = [
            llm.stream("abc", Sampling(max_tokens=100, structured_outputs=FORMS[form], **fields)),  # type: ignore[arg-type]
            llm.stream("abc", Sampling(max_tokens=100)),
        ]
        for stream in streams:
            stream.wait(PATIENCE)
        run = streams[0].wait()
        assert run.error is None
        for answer, transcript in zip(run.answers, streams[0].transcripts, strict=True):
            if answer.finish != "length":
                assert fits(form, transcript.text), transcript.text
            assert form == "regex" or answer.finish in ("stop", "eos")


def test_stop_strings_end_an_answer_inside_its_form(llm: LLM) -> None:
    form = StructuredOutputs(regex="[a-c]{40}")
    (whole,) = llm.generate("abc", max_tokens=60, structured_outputs=form)
    assert re.fullmatch("[a-c]{40}", whole.text) and whole.finish == ("stop",)
    stop = whole.text[10:13]
    (cut,) = llm.generate("abc", max_tokens=60, structured_outputs=form, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish == ("stop",)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"regex": "(a"}, "structured outputs by a regex: .*unclosed group"),
        ({"json": {"type": 5}}, "structured outputs by a JSON schema: type must be a string"),
        ({"json": {"type": "object", "not": {}, "x-guidance": {"lenient": True}}}, "by a JSON schema: .*not"),
        ({"json": {"$ref": "http://127.0.0.1:1/schema"}}, "by a JSON schema: .*not present"),
    ],
)
def test_what_is_no_grammar_is_told_before_anything_is_queued(llm: LLM, form: dict[str, Any], words: str) -> None:
    sampling = Sampling(structured_outputs=StructuredOutputs(**form))
    with pytest.raises(InputError, match=words):
        llm.generate("abc", sampling)
    with pytest.raises(InputError, match=words):
        asyncio.run(llm.loop.submit_async([100], sampling))
    assert not llm.loop.call(lambda engine: engine.runs) and llm.loop.gate.enter(timeout=0)
    llm.loop.gate.leave()


def test_a_model_without_words_has_no_grammar() -> None:
    with Engine(from_module(families.build("llama")), CONFIG) as engine:
        with pytest.raises(InputError, match="structured outputs: the model has no tokenizer"):
            engine.submit([100], Sampling(structured_outputs=FORMS["choice"]))
        assert not engine.runs


def test_fields_that_contradict_a_form_end_the_run(llm: LLM) -> None:
    with pytest.raises(RunFailed, match="its fields leave no token to go on with"):
        llm.generate("abc", allowed_token_ids=[50, 51], structured_outputs=StructuredOutputs(choice=["yes", "no"]))
    assert llm.generate("abc", max_tokens=4)[0].tokens


def test_a_grammar_that_costs_too_much_ends_its_own_run(llm: LLM) -> None:
    """Each token is bounded: the first one of this regex would take too long."""
    with pytest.raises(RunFailed, match="its grammar cannot go on: lexer error: too many expressions constructed"):
        llm.generate("abc", structured_outputs=StructuredOutputs(regex="(a?){3000}a{3000}"))
    assert llm.generate("abc", max_tokens=4)[0].tokens


def test_compiled_grammars_are_kept_and_not_shared(tiny: Model) -> None:
    grammars = Grammars(tiny.tokenizer, tiny.eos_ids)
    first, second = grammars.mask(FORMS["choice"]), grammars.mask(FORMS["choice"])
    (token,) = tiny.tokenizer.encode("n")
    first.accept(token)
    assert not np.array_equal(first.words(), second.words())
    assert np.array_equal(second.words(), grammars.mask(FORMS["choice"]).words())
    for number in range(40):
        grammars.mask(StructuredOutputs(choice=[f"word {number}"]))
    assert len(grammars._kept) == 16
    third = grammars.mask(FORMS["choice"])
    third.accept(tiny.tokenizer.encode("%")[0])
    assert "its grammar cannot go on" in third.error and not third.complete and not third.words().any()


def spell(mask: GrammarMask, tiny: Model, text: str) -> str:
    """Its tokens, one by one, as an answer would have them; why it cannot go on, if so."""
    for token in tiny.tokenizer.encode(text):
        mask.words()
        mask.accept(token)
        if mask.error:
            break
    return mask.error


def test_others_answers_use_up_nothing_of_mine(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """States that a grammar builds are shared by all of its answers, and bounded for all of them together."""
    monkeypatch.setitem(grammar.LIMITS, "max_lexer_states", 400)
    grammars = Grammars(tiny.tokenizer, tiny.eos_ids)
    fields = {name: {"type": "string", "maxLength": 200 + at} for at, name in enumerate("abcd")}
    form = StructuredOutputs(json={"type": "object", "properties": fields, "required": list(fields)})

    def text(long: str) -> str:
        return json.dumps({name: "x" * (24 if name == long else 2) for name in fields})

    mine, copied = grammars.mask(form), grammars.mask(form).copy()
    for long in "abcdabcd":
        assert spell(grammars.mask(form), tiny, text(long)) == ""
    assert spell(mine, tiny, text("c")) == "" and mine.complete
    assert spell(copied, tiny, text("d")) == ""
    greedy = spell(grammars.mask(form), tiny, json.dumps({"a": "x" * 190}))
    assert "too many states" in greedy  # its own needs are still bounded
    assert spell(grammars.mask(form), tiny, text("b")) == ""


@pytest.mark.parametrize(
    "form",
    [
        {"json": json.loads('{"a":' * 400 + "1" + "}" * 400)},
        {"json": {"enum": ["\ud800"]}},
        {"regex": "\ud800"},
        {"regex": "a{4}{"},
        {"choice": ["\udfff"]},
    ],
    ids=["deep", "half a character", "half in a regex", "no regex", "half in a choice"],
)
def test_what_no_grammar_can_be_made_of(tiny: Model, form: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="structured outputs"):
        mask = Grammars(tiny.tokenizer, tiny.eos_ids).mask(StructuredOutputs(**form))
        assert not mask.words().any() or mask.error


@pytest.mark.slow
@pytest.mark.skipif(bool(smollm2.missing()), reason="the embedded model is not installed")
def test_the_embedded_model_fills_in_a_form() -> None:
    pytest.importorskip("llguidance")
    model = load(smollm2.folder(lambda _: None))
    with LLM(model, config=EngineConfig(200, max_length=512)) as llm:
        asks = [{"role": "user", "content": "Is Paris in France, and how many letters has the word? Answer in JSON."}]
        (answer,) = [llm.chat(asks, max_tokens=60, structured_outputs=FORMS["json"])]
        assert fits("json", answer.text), answer.text
        (choice,) = llm.generate("Is water wet? ", max_tokens=10, structured_outputs=FORMS["choice"])
        assert fits("choice", choice.text)


PLAIN_WORDS: list[tuple[dict[str, Any], str]] = [
    ({"json": {"$ref": "#"}}, "a \\$ref leads back to itself, so nothing can match it"),
    ({"json": {"allOf": [{"$ref": "#"}]}}, "a \\$ref leads back to itself"),
    ({"json": {"$ref": "#/$defs/x"}}, "the \\$ref '#/\\$defs/x' leads nowhere"),
    ({"json": {"type": "string", "pattern": "a^b"}}, "a pattern has \\^ or \\$ inside, or looks around"),
    ({"json": {"type": "string", "pattern": "^a$", "minLength": 5}}, "no string has both its pattern and its other"),
    ({"json": {"type": "string", "pattern": "(("}}, "a pattern cannot be read: unclosed group"),
    ({"json": {"enum": []}}, "an enum or an anyOf is empty"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "nothing can match it: minimum \\(5\\) is greater"),
    ({"json": {"type": "array", "uniqueItems": True}}, 'keywords that cannot be kept to: "uniqueItems"'),
    ({"regex": "[^\\s\\S]"}, "by a regex: nothing can match it"),
    ({"regex": "(?=a)b"}, "a pattern cannot be read: look-around"),
    ({"regex": "a\ud800"}, "by a regex: character 1 of it is half of a pair"),
    ({"choice": ["a\ud800"]}, "by a choice: character 1 of it is half of a pair"),
    ({"json": {"const": "\ud800"}}, "by a JSON schema: character 11 of it is half of a pair"),
]


@pytest.mark.parametrize(("form", "message"), PLAIN_WORDS)
def test_what_nothing_can_match_is_refused_in_plain_words(tiny: Model, form: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Grammars(tiny.tokenizer, tiny.eos_ids).mask(StructuredOutputs(**form))


def test_an_object_may_leave_out_some_properties_only(tiny: Model) -> None:
    """Each of them may come next, at every one of them: what is compiled must also be written to its end."""
    grammars = Grammars(tiny.tokenizer, tiny.eos_ids)
    names = [f"p{nth:04}" for nth in range(MOST_OPTIONAL + 1)]
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    for whole in (schema, {"anyOf": [{"type": "array", "items": schema}]}):
        with pytest.raises(InputError, match="401 properties that may be left out; give at most 400, or require them"):
            grammars.mask(StructuredOutputs(json=whole))
    mask = grammars.mask(StructuredOutputs(json={**schema, "required": names[:1]}))
    for token in tiny.tokenizer.encode('{"p0000":null,"'):
        mask.accept(token)
    assert mask.words().any() and not mask.error
