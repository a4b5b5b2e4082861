"""Bodies, paths and headers that are not as they should be: each has its status, and the server goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from math import nan
from typing import Any

import pytest

from quire import InputError
from quire.serve import ServeSettings, make_app, other_routes
from quire.serve.connections import http_connection as connection
from quire.serve.http_endpoint import host_name
from quire.serve.protocol.bodies import CompletionBody
from quire.serve.protocol.decode import read_body

from ..waits import PATIENCE, until
from .rig import HELLO, NAME, Serving, serving

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "it is not JSON from character 0"),
        (b"{", "it is not JSON"),
        (b"\xff\xfe{}", "it is not JSON"),
        (b"[1]", "send a JSON object"),
        (b"null", "send a JSON object"),
        (b'{"messages": NaN}', "it is not JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "seed: it is a number beyond all bounds"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_request(server: Serving, data: bytes, fact: str) -> None:
    got = server.ask("POST", CHAT, data)
    assert got.status == 400 and fact in got.error["message"] and len(got.error["message"]) < 300


def test_a_body_of_another_kind(server: Serving) -> None:
    """A page in a browser may send text without asking first: it is not read."""
    got = server.post(CHAT, json.dumps(HELLO).encode(), content_type="text/plain")
    assert got.status == 415 and "application/json" in got.error["message"]
    assert server.post(CHAT, {**HELLO, "max_tokens": 1}, content_type="Application/JSON; charset=utf-8").status == 200


def test_a_body_that_is_too_large() -> None:
    with serving(max_body=1000) as server:
        got = server.chat(user="x" * 2000)
        assert got.status == 413 and got.error["code"] == "body_too_large"
        with server.wire() as wire:  # in pieces, whose sum nobody has told
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            wire.socket.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for _ in range(3):
                wire.socket.sendall(b"200\r\n" + b" " * 512 + b"\r\n")
            assert b" 413 " in wire.read_until(b"\r\n\r\n").split(b"\r\n")[0]
        assert server.chat().status == 200


def test_bodies_of_all_clients_together_are_bounded() -> None:
    with serving(max_bodies=2000) as server, server.wire() as slow:
        slow.send_head(CHAT, 1900)
        slow.socket.sendall(b" " * 1800)
        until(lambda: server.service.bodies.left < 1000)
        got = server.chat(user="x" * 500)
        assert got.status == 429 and got.error["code"] == "bodies_full" and got.headers["retry-after"] == "1"
        assert server.chat(max_tokens=1).status == 200, "a small one has room"
        slow.close()
        until(lambda: server.service.bodies.left == 2000)
        assert server.chat(user="x" * 500).status == 200


def test_a_body_that_takes_too_long() -> None:
    with serving(body_seconds=0.0) as server, server.wire() as wire:
        wire.send_head(CHAT, 100)
        assert b" 408 " in wire.read_until(b"\r\n\r\n").split(b"\r\n")[0]
        server.until_idle()


def test_paths_and_methods_that_there_are_not(server: Serving) -> None:
    assert server.get("/v1/embeddings").status == 404
    got = server.get(CHAT)
    assert got.status == 405 and got.error["type"] == "invalid_request_error"
    assert server.get("/docs").status == 404, "it would load scripts from elsewhere"
    assert server.get("/openapi.json").json["openapi"].startswith("3.")


def test_the_application_alone_answers_as_the_server_does(server: Serving) -> None:
    """`make_app`, for another ASGI server: through all of Starlette's layers."""
    app, sent = make_app(server.service), []

    async def ask(method: str, path: str) -> None:
        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)

    for method, path in (("GET", "/version"), ("GET", f"/v1/models/{NAME}"), ("GET", "/none"), ("POST", "/version")):
        sent.clear()
        asyncio.run(ask(method, path))
        got = server.ask(method, path)
        assert sent[0]["status"] == got.status
        assert json.loads(b"".join(message.get("body", b"") for message in sent)) == got.json


def test_a_request_has_its_id(server: Serving) -> None:
    assert server.chat().headers["x-request-id"] != server.chat().headers["x-request-id"]
    mine = server.post(CHAT, {**HELLO, "max_tokens": 1, "request_id": "field-1"})
    assert mine.json["id"] == "chatcmpl-field-1" and mine.headers["x-request-id"] == "field-1"
    both = server.post(CHAT, {**HELLO, "max_tokens": 1, "request_id": "field-1"}, X_Request_Id="header-1")
    assert both.json["id"] == "chatcmpl-header-1" and both.headers["x-request-id"] == "header-1"
    odd = server.post(CHAT, {**HELLO, "max_tokens": 1}, X_Request_Id="x" * 200)
    assert odd.headers["x-request-id"] != "x" * 200
    assert server.post(CHAT, {}, X_Request_Id="header-2").headers["x-request-id"] == "header-2", "of errors too"


def test_no_other_pages_scripts_may_ask(server: Serving) -> None:
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in server.ask("OPTIONS", CHAT, **asked).headers
    assert "access-control-allow-origin" not in server.get("/version", Origin="https://page.example").headers
    with serving(origins=("https://page.example",)) as open_server:
        got = open_server.ask("OPTIONS", CHAT, **asked)
        assert got.headers["access-control-allow-origin"] == "https://page.example"
        plain = open_server.get("/version", Origin="https://page.example")
        assert plain.headers["access-control-allow-origin"] == "https://page.example"
        other = open_server.ask("OPTIONS", CHAT, **{**asked, "Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_name_that_leads_here_is_not_enough() -> None:
    """DNS rebinding: a page's own name may lead to this machine."""
    with serving(hosts=("127.0.0.1", "localhost")) as server:
        assert server.get("/version").status == 200
        assert server.get("/version", Host="localhost:9999").status == 200
        got = server.get("/version", Host="page.example")
        assert got.status == 403 and "--allow-host" in got.error["message"]
        assert server.get("/openapi.json", Host="page.example").status == 403
        assert server.get("/openapi.json").json["openapi"]
        assert server.get("/version/", Host="page.example").status == 404  # and no way to page.example/version


@pytest.mark.parametrize(
    ("header", "name"),
    [(b"a.b:80", "a.b"), (b"A.b", "a.b"), (b"[::1]:80", "::1"), (b"[::1]", "::1"), (b"::1", "::1"), (b"", "")],
)
def test_names_in_host_headers(header: bytes, name: str) -> None:
    assert host_name(header) == name


def test_tokens_and_back(server: Serving) -> None:
    got = server.post("/tokenize", {"prompt": "grün", "return_token_strs": True}).json
    assert got["count"] == 5 and len(got["tokens"]) == len(got["token_strs"]) == 5 and got["max_model_len"] == 400
    assert server.post("/detokenize", {"tokens": got["tokens"]}).json == {"prompt": "grün"}
    talk = server.post("/tokenize", HELLO).json
    assert talk["tokens"] == server.llm.tokens(HELLO["messages"])
    assert talk["count"] == server.chat().json["usage"]["prompt_tokens"] and talk["token_strs"] is None
    open_end = server.post("/tokenize", {**HELLO, "add_generation_prompt": False}).json
    assert talk["count"] == open_end["count"] + len("a:")
    assert server.post("/tokenize", {}).error["param"] == "prompt"
    assert server.post("/tokenize", {**HELLO, "prompt": "x"}).error["param"] == "prompt"
    assert server.post("/detokenize", {"tokens": [300]}).error["param"] == "tokens"


def test_what_a_client_wants_to_see_besides_the_text(server: Serving) -> None:
    got = server.complete(return_token_ids=True, echo=True, max_tokens=3).json["choices"][0]
    assert got["text"].startswith("Once upon a time") and len(got["token_ids"]) == 3
    assert server.post("/detokenize", {"tokens": got["prompt_token_ids"]}).json["prompt"] == "Once upon a time"
    events = server.complete(return_token_ids=True, echo=True, max_tokens=3, stream=True).events
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[0]["text"] == "Once upon a time" and choices[0]["prompt_token_ids"] == got["prompt_token_ids"]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == got["token_ids"]
    whole = server.chat(return_token_ids=True, max_tokens=3).json["choices"][0]
    events = server.chat(return_token_ids=True, max_tokens=3, stream=True).events
    streamed = [choice for event in events for choice in event["choices"]]
    assert [token for choice in streamed for token in choice.get("token_ids", [])] == whole["token_ids"]


def test_a_prompt_is_cut_where_it_should_be(server: Serving) -> None:
    def kept(**fields: Any) -> str:
        got = server.complete(prompt="abcdefgh", return_token_ids=True, max_tokens=1, **fields).json["choices"][0]
        return str(server.post("/detokenize", {"tokens": got["prompt_token_ids"]}).json["prompt"])

    assert kept(truncate_prompt_tokens=3) == "fgh"
    assert kept(truncate_prompt_tokens=3, truncation_side="right") == "abc"
    assert kept(truncate_prompt_tokens=-1) == kept(truncate_prompt_tokens=99) == "abcdefgh"
    long = server.complete(prompt="x" * 1000, truncate_prompt_tokens=-1, max_tokens=1)
    assert long.json["usage"]["prompt_tokens"] == 399


def test_few_pages_bound_what_a_request_may_have() -> None:
    """Without max_tokens an answer ends where the memory does, and is not refused for the room that there is not."""
    with serving(sizes={"device_pages": 20, "max_sequences": 2}) as server:
        longest = server.get("/v1/models").json["data"][0]["max_model_len"]
        assert 100 < longest <= 160
        got = server.chat(max_tokens=None, ignore_eos=True)
        assert got.status == 200 and got.json["usage"]["total_tokens"] == longest


def test_usage_in_every_event(server: Serving) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.chat(stream=True, stream_options=options, ignore_eos=True).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 8 and events[-1]["choices"] == []


def test_chance_decides_unless_something_else_is_said(server: Serving) -> None:
    """OpenAI's default: temperature 1."""

    def text(**fields: Any) -> str:
        body = {"prompt": "Once upon a time", "max_tokens": 6, **fields}
        return str(server.post("/v1/completions", body).json["choices"][0]["text"])

    assert len({text(seed=seed) for seed in range(4)}) > 1 and text(seed=3) == text(seed=3)
    assert len({text(seed=seed, temperature=0) for seed in range(3)}) == 1
    assert text(seed=5) == server.llm.generate("Once upon a time", temperature=1.0, seed=5, max_tokens=6)[0].text


def test_beams_are_as_many_as_answers(server: Serving) -> None:
    got = server.complete(use_beam_search=True, n=3, temperature=1, max_tokens=6).json
    texts = [choice["text"] for choice in got["choices"]]
    assert len(texts) == 3
    best = server.llm.generate("Once upon a time", beams=3, n=3, max_tokens=6)[0]
    assert texts == list(best.texts)
    streamed = server.complete(use_beam_search=True, n=3, temperature=1, max_tokens=6, stream=True).events
    heard = dict.fromkeys(range(3), "")
    for choice in (choice for event in streamed for choice in event["choices"]):
        heard[choice["index"]] += choice["text"]
    assert list(heard.values()) == texts


def cached(server: Serving, prompt: str) -> int:
    usage = server.complete(prompt=prompt, max_tokens=1).json["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_pages_are_kept_as_long_as_they_were_asked_for(server: Serving) -> None:
    server.llm.loop.call(lambda engine: engine.cache.clear())
    server.complete(prompt="k" * 64, retention={"seconds": 3600}, max_tokens=1)
    for place in range(12):  # far more than there are pages
        server.complete(prompt=chr(65 + place) * 300, max_tokens=1)
    assert cached(server, "k" * 64) > 48
    assert not all(cached(server, chr(65 + place) * 300) for place in range(12))  # which ones go the order decides


def test_settings_are_checked() -> None:
    wrong: dict[str, Any] = {"queue_seconds": -1, "max_body": "4MB", "max_retain_priority": 101, "body_seconds": nan}
    for name, value in wrong.items():
        with pytest.raises(InputError, match=name):
            ServeSettings(NAME, **{name: value})
    with pytest.raises(InputError):
        ServeSettings("")


# -- what comes before a body ------------------------------------------------------------------------------------------

LINES = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 90) for number in range(200))
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (HEAD, LINES),
        (HEAD + b"x: ", b"a" * 20_000),
        (b"GET /health?", b"a" * 20_000),
        (HEAD + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", LINES),
        (HEAD + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", b"a" * 20_000),
    ],
    ids=["headers", "a header", "a line", "trailers", "a trailer"],
)
def test_a_head_without_end_is_cut(server: Serving, begin: bytes, more: bytes) -> None:
    with server.wire() as wire, pytest.raises(OSError):  # it is closed at our end while we still write
        wire.socket.sendall(begin)
        for _ in range(1000):
            wire.socket.sendall(more)
    assert server.get("/health").status == 200


def test_a_head_that_is_too_long_is_told(server: Serving) -> None:
    with server.wire() as wire:
        wire.socket.sendall(HEAD + LINES * 4 + b"\r\n")
        got = wire.read_until(b"}}")
        assert got.startswith(b"HTTP/1.1 431 ") and b"more than 65536 bytes" in got
        assert wire.socket.recv(1) == b""


def test_a_head_has_to_come_in_time(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.wire() as used:
        used.socket.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert used.read_until(b"}").startswith(b"HTTP/1.1 200 ")
        for seconds in (0.2, 2.0, PATIENCE / 3):  # so late a busy machine may send the first part of a head
            monkeypatch.setattr(connection, "HEAD_SECONDS", seconds)
            with server.wire() as silent, server.wire() as slow:
                slow.socket.sendall(b"GET /hea")
                assert silent.socket.recv(1) == b""
                if (first := slow.socket.recv(12)) == b"HTTP/1.1 408":
                    slow.read_until(b"}}")
                    assert slow.socket.recv(1) == b""
                    break
                assert first == b""
        assert first
        monkeypatch.setattr(connection, "HEAD_SECONDS", PATIENCE)
        used.socket.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")  # silence between requests is another limit
        assert used.read_until(b"}").startswith(b"HTTP/1.1 200 ")


def test_a_large_body_is_checked_beside_the_others(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is, others are answered; lists have their bounds."""
    checked, go_on = threading.Event(), threading.Event()

    def held(data: bytes, kind: Any) -> Any:
        if kind is CompletionBody and len(data) > 1000:
            checked.set()
            assert go_on.wait(PATIENCE)
        return read_body(data, kind)

    monkeypatch.setattr(other_routes, "read_body", held)
    with ThreadPoolExecutor(1) as others:
        large = others.submit(server.complete, prompt=[0] * 40_000)
        assert checked.wait(PATIENCE)
        assert server.get("/health").status == 200 and server.complete(max_tokens=1).status == 200
        go_on.set()
        assert "40000 tokens" in large.result().error["message"]
    got = server.complete(prompt=[0] * ((1 << 20) + 1))
    assert got.status == 400 and "give at most 1048576" in got.error["message"]
    got = server.chat(messages=[{"role": "user", "content": ""}] * 16_385)
    assert got.status == 400 and "it has 16385 entries; give at most 16384" in got.error["message"]
    wrong = server.complete(prompt=[*[0] * 100, 1.5])
    assert wrong.status == 400 and wrong.error["param"] == "prompt[100]"
