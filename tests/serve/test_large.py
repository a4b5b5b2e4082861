"""Large bodies and replies, and strings that are no text: each is refused or answered, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quire import InputError
from quire.serve import ServeSettings, generate, other_routes
from quire.serve.http import exchange
from quire.serve.inputs.prompt_tokens import decoder
from quire.serve.protocol.decode import LARGE, read_body
from quire.serve.protocol.large_work import LargeWork

from ..engine.words import byte_tokenizer
from ..waits import PATIENCE, until
from .rig import HELLO, Serving, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HALF = "\ud800"
CALL = {"id": HALF, "function": {"name": "a", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *[(CHAT, {name: f"a{HALF}b"}) for name in (
            "model", "cache_salt", "user", "session_id", "request_id", "stop", "prompt_cache_key", "safety_identifier",
        )],
        (CHAT, {"stop": ["a", "\udc00"]}),
        (CHAT, {"bad_words": [HALF]}),
        (CHAT, {"metadata": {"a": HALF}}),
        (CHAT, {"metadata": {HALF: "a"}}),
        (CHAT, {"logit_bias": {HALF: 1}}),
        (CHAT, {"chat_template_kwargs": {"mood": HALF}}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "a", "description": HALF}}]}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"const": HALF}}}]}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": HALF, "schema": {}}}}),
        (CHAT, {"structured_outputs": {"json": {"const": HALF}}}),
        (CHAT, {"structured_outputs": {"regex": HALF}}),
        (CHAT, {"structured_outputs": {"choice": [HALF]}}),
        (CHAT, {"messages": [{"role": "user", "content": "x", "name": HALF}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}),
        (TEXT, {"prompt": HALF}),
        (TEXT, {"prompt": ["a", HALF]}),
        (TEXT, {"cache_salt": "\udc00\ud800"}),
        ("/tokenize", {"prompt": HALF}),
        ("/detokenize", {"model": HALF}),
    ],
)  # fmt: skip
def test_half_of_a_character_is_refused_by_name(server: Serving, path: str, fields: dict[str, Any]) -> None:
    """It could not be sent on, hashed or logged."""
    needed: dict[str, dict[str, Any]] = {CHAT: {**HELLO, "max_tokens": 1}, TEXT: {"prompt": "a"}, "/tokenize": {}}
    got = server.post(path, {**needed.get(path, {"tokens": [1]}), **fields})
    assert got.status == 400 and got.error["param"] == next(iter(fields)), got.data
    assert "half of a character" in got.error["message"]
    pair = server.post(CHAT, {**HELLO, "max_tokens": 1, "cache_salt": "\N{CAT}"})
    assert pair.status == 200, "a whole pair is a character"


def test_bytes_that_are_no_text_are_refused_by_name(server: Serving) -> None:
    for name in ("cache_salt", "user", "metadata", "chat_template_kwargs"):
        value = b'{"mood": "\xff"}' if name in ("metadata", "chat_template_kwargs") else b'"\xff"'
        got = server.post(
            CHAT, b'{"messages": [{"role": "user", "content": "a"}], "' + name.encode() + b'": ' + value + b"}"
        )
        assert got.status == 400 and got.error["param"] == name, got.data
    got = server.post(TEXT, b'{"prompt": "\xff"}')
    assert got.status == 400 and got.error["param"] == "prompt"


def test_the_name_of_a_model_is_text() -> None:
    with pytest.raises(InputError, match="the model_name of a server: character 1 of it is half of a pair"):
        ServeSettings("a\ud800")


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP, identity"])
def test_a_compressed_body_is_not_read(server: Serving, encoding: str) -> None:
    data = gzip.compress(json.dumps({**HELLO, "max_tokens": 1}).encode())
    got = server.post(CHAT, data, content_encoding=encoding)
    assert got.status == 415 and "content-encoding" in got.error["message"]
    assert got.headers["accept-encoding"] == "identity"
    plain = server.post(CHAT, {**HELLO, "max_tokens": 1}, content_encoding="identity")
    assert plain.status == 200


def test_a_body_takes_its_room_until_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for their turn to be decoded are counted as well."""
    begun, go_on = threading.Event(), threading.Event()

    def held(data: bytes, kind: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return read_body(data, kind)

    with serving(max_bodies=LARGE * 3) as server, ThreadPoolExecutor(1) as others:
        monkeypatch.setattr(other_routes, "read_body", held)
        large = others.submit(server.chat, user="x" * LARGE)
        assert begun.wait(PATIENCE)
        assert server.service.bodies.left < LARGE * 2
        go_on.set()
        assert large.result().status == 200
        until(lambda: server.service.bodies.left == LARGE * 3)


def test_few_work_on_large_bodies_at_once() -> None:
    async def work() -> tuple[int, int]:
        most = now = 0
        lock, all_in = threading.Lock(), threading.Barrier(2)

        def one() -> None:
            nonlocal most, now
            with lock:
                now += 1
                most = max(most, now)
            all_in.wait(PATIENCE)
            with lock:
                now -= 1

        large = LargeWork(2)
        await asyncio.gather(*(large.do(LARGE + 1, one) for _ in range(6)))
        return most, await large.do(1, threading.get_ident)

    most, thread = asyncio.run(work())
    assert most == 2 and thread == threading.get_ident(), "and a small one is done at once"


def test_large_replies_are_made_in_pieces(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say the same."""
    fields: dict[str, Any] = {
        "echo": True,
        "return_token_ids": True,
        "max_tokens": 2,
        "n": 2,
        "prompt": ["abc", "grün"],
    }

    def replies() -> list[Any]:
        whole = server.complete(**fields).json
        events = server.complete(**fields, stream=True).events
        tokens = server.post("/tokenize", {"prompt": "grün", "return_token_strs": True}).json
        texts = dict.fromkeys(range(4), "")
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += f"{choice['text']}{choice.get('prompt_token_ids', '')}"
        text = server.post("/detokenize", {"tokens": tokens["tokens"]}).json
        return [whole["choices"], whole["usage"]["total_tokens"], texts, tokens, text]

    before = replies()
    monkeypatch.setattr(generate, "LARGE_CHOICE", 1)
    monkeypatch.setattr(exchange, "PIECE", 2)
    assert replies() == before


def test_text_of_tokens_is_what_the_tokenizer_gives() -> None:
    """By the short way and, for a class of a model's own, by the long one."""
    words = byte_tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<|end|>"]})

    class Shouting(type(words)):  # type: ignore[misc]
        def _decode(self, *args: Any, **more: Any) -> str:
            return str(super()._decode(*args, **more)).upper()

    loud = Shouting(tokenizer_object=words.backend_tokenizer)
    for text in ("", "grün 猫", "a <|end|> b"):
        tokens = words(text)["input_ids"]
        for special in (True, False):
            plain = words.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
            assert decoder(words)(tokens, special) == plain
            assert decoder(loud)(tokens, special) == plain.upper()


def test_arguments_of_calls_have_bounds(server: Serving) -> None:
    def asked(arguments: Any) -> Any:
        call = {"function": {"name": "f", "arguments": arguments}}
        return server.chat(messages=[{"role": "assistant", "tool_calls": [call]}], max_tokens=1)

    where = "messages[0].tool_calls[0].function.arguments"
    for arguments in ("[" * 300 + "]" * 300, "[" + "1," * 40_000 + "1]", "9" * 500, "{"):
        got = asked(arguments)
        assert got.status == 400 and got.error["param"] == where, got.data
    assert asked('{"a": 1}').status == asked({"a": 1}).status == asked("").status == 200


# -- forms -----------------------------------------------------------------------------------------------------------


def test_a_schema_that_cannot_be_kept_to_is_refused(server: Serving) -> None:
    pytest.importorskip("llguidance")
    many = {"type": "object", "properties": {f"p{nth:04}": {"type": "string"} for nth in range(1500)}}
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for schema, fact in ((many, "1500 properties that may be left out"), (loop, "a $ref leads back to itself")):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        got = server.chat(response_format=form)
        assert got.status == 400 and got.error["param"] == "response_format" and fact in got.error["message"], got.data
        got = server.complete(structured_outputs={"json": json.dumps(schema)})
        assert got.status == 400 and got.error["param"] == "structured_outputs" and fact in got.error["message"]
        tool = {"type": "function", "function": {"name": "a", "parameters": schema}}
        got = server.chat(tools=[tool], tool_choice="required")
        assert got.status == 400 and got.error["param"] == "tools", got.data


def test_a_form_that_fails_while_it_is_written_is_the_clients(server: Serving) -> None:
    pytest.importorskip("llguidance")
    for stream in (False, True):
        got = server.complete(structured_outputs={"regex": "(a?){3000}a{3000}"}, stream=stream)
        error = got.events[-1]["error"] if stream else got.error
        assert error["param"] == "structured_outputs" and error["type"] == "invalid_request_error", got.data
        assert stream or got.status == 400
    server.until_idle()
