"""The live page of a server: who may look, what it shows of a real engine, what it leaves alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from quire import InputError
from quire.engine import Sampling
from quire.serve import ApiKeys, ServeSettings, Service
from quire.viewer.page_routes import PATHS, RECEIPT, SNAPSHOT

from ..waits import until
from .rig import HELLO, NAME, Serving, serving

LOCAL = ("localhost", "127.0.0.1")
KEY = "operators-key-0123456789"
TENANT = "alice sk-0a1b2c3d4e5f6a7b8c9d"


def as_operator() -> dict[str, str]:
    return {"authorization": f"Bearer {KEY}"}


def test_it_is_there_for_this_machine_only() -> None:
    keys = ApiKeys([TENANT])
    assert ServeSettings(NAME, hosts=LOCAL).has_viewer
    assert not ServeSettings(NAME).has_viewer  # anybody may connect
    assert not ServeSettings(NAME, hosts=LOCAL, keys=keys).has_viewer
    assert not ServeSettings(NAME, hosts=LOCAL, viewer=False).has_viewer
    assert ServeSettings(NAME, viewer=True).has_viewer
    assert ServeSettings(NAME, keys=keys, viewer_key=KEY).has_viewer
    assert KEY not in repr(ServeSettings(NAME, keys=keys, viewer_key=KEY))
    with pytest.raises(InputError, match="give it a viewer_key"):
        ServeSettings(NAME, keys=keys, viewer=True)
    with pytest.raises(InputError, match="the page's key"):
        ServeSettings(NAME, viewer_key="short")


def test_without_it_there_is_no_such_path(server: Serving) -> None:
    for path in PATHS:
        got = server.get(path)
        assert got.status == 404 and "--viewer-key-file" in got.error["message"]


def test_it_shows_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    with serving(hosts=LOCAL) as server, caplog.at_level(logging.INFO, "quire.serve"):
        page = server.get("/")
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert server.get(SNAPSHOT, host="evil.example").status == 403
        server.chat(max_tokens=4)
        server.chat(max_tokens=4)
        server.until_idle()
        told: dict[str, Any] = server.get(f"{SNAPSHOT}?colour=scope").json
        cache = server.llm.loop.engine.cache
        assert told["name"] == NAME and told["requests"]["running"] == 0
        assert told["pools"][0]["counts"][4] == cache.usage().idle > 0
        assert told["reuse"]["requests"] == 2 and told["reuse"]["reused"] > 0
        assert sum(told["reuse"]["missed"].values()) + told["reuse"]["reused"] == told["reuse"]["tokens"]
        engine = server.llm.loop.engine
        assert sum(step[1] for step in told["steps"]) in range(1, engine.stats.num_tokens + 1)
        assert "model" in told["steps"][0][2]
        assert "Hello" not in server.get(SNAPSHOT).data.decode()
        assert not [record for record in caplog.records if "/viewer" in record.getMessage()]


def test_a_running_request_has_a_receipt() -> None:
    with serving(viewer=True, show_tokens=True, sizes={"max_sequences": 1}) as server:
        server.valve.shut()
        with server.wire() as one, server.wire() as two:
            one.ask("/v1/chat/completions", {**HELLO, "max_tokens": 4})
            until(lambda: server.llm.loop.engine.cache.num_sequences == 1)
            two.ask("/v1/chat/completions", {**HELLO, "max_tokens": 4})
            until(lambda: server.service.num_streams + server.llm.loop.num_waiting >= 1)
            told = server.get(f"{SNAPSHOT}?colour=age").json["requests"]
            number = told["rows"][0][0]
            receipt = server.get(f"{RECEIPT}?request={number}").json
            assert receipt["receipt"]["length"] == told["rows"][0][3] and not receipt["operator"]
            assert "Hello, who are you" in receipt["text"]
            server.valve.open()
            one.read_until(b"chat.completion")
            two.read_until(b"chat.completion")
        server.until_idle()


def test_who_waits_is_told() -> None:
    with serving(viewer=True, sizes={"max_sequences": 1}) as server:
        engine = server.llm.loop.engine
        server.valve.shut()
        server.llm.loop.call(lambda own: [own.submit([1, 2, 3], Sampling(max_tokens=2)) for _ in range(3)])
        assert isinstance(server.service, Service) and server.service.page is not None
        source = server.service.page.snapshots.source
        until(lambda: len(engine.scheduler.waiting) == 2)
        assert [(one.tokens, one.found) for one in source.waiting()] == [(3, -1)] * 2
        assert all(one.seconds >= 0 for one in source.waiting())
        server.valve.open()
        server.until_idle()


def test_with_keys_it_is_the_operators() -> None:
    with serving(keys=ApiKeys([TENANT]), viewer_key=KEY) as server:
        tenant = TENANT.split()[1]
        assert server.get("/").status == 200  # it tells nothing
        assert server.get(SNAPSHOT).status == 401
        assert server.get(SNAPSHOT, authorization=f"Bearer {tenant}").status == 401
        assert server.get("/v1/models", **as_operator()).status == 401
        body = {"prompt": "Once upon a time there was", "max_tokens": 3}
        assert server.post("/v1/completions", body, authorization=f"Bearer {tenant}").status == 200
        server.until_idle()
        got = server.get(f"{SNAPSHOT}?colour=scope", **as_operator())
        assert got.json["scopes"] == ["scope 1"] and "alice" not in got.data.decode()
