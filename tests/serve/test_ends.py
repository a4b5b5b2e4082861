"""The end: open answers are finished, then cut and told so; a step that fails is told to everybody, and stays told."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main as cli
from quire.net.hosts import is_loopback

from ..engine.threads import Crew
from ..waits import PATIENCE, until
from .rig import HELLO, Serving, Wire, serving, tiny_model

CHAT = "/v1/chat/completions"
ROOT = Path(__file__).resolve().parents[2]
STREAM: dict[str, Any] = {**HELLO, "stream": True, "ignore_eos": True, "temperature": 0}
KEY = "sk-a-key-that-nobody-may-see"


# -- in this process ---------------------------------------------------------------------------------------------------


def test_answers_under_way_are_finished() -> None:
    with serving() as server, server.wire() as wire:
        server.valve.shut()
        wire.ask(CHAT, {**STREAM, "max_tokens": 20})
        wire.read_until(b"assistant")
        server.end()
        until(lambda: server.service.ending)
        server.valve.open()
        rest = wire.read_until(b"[DONE]")
        assert b'"finish_reason":"length"' in rest and b"error" not in rest
        server.join()
        assert server.num_runs == 0 and server.llm.loop.error is None


def test_what_takes_longer_than_the_grace_is_cut_and_told() -> None:
    with serving(grace=0.0) as server, server.wire() as streamed, server.wire() as whole:
        streamed.ask(CHAT, {**STREAM, "max_tokens": 300})
        streamed.read_until(b"assistant")
        whole.ask(CHAT, {**STREAM, "stream": False, "max_tokens": 300})
        until(lambda: server.service.num_streams == 2)
        server.valve.shut()
        server.end()
        until(lambda: server.service.ending)
        server.valve.open()
        rest = streamed.read_until(b"[DONE]")
        assert b"the server shuts down" in rest and b'"code":"shutting_down"' in rest
        assert b" 503 " in whole.read_until(b"\r\n\r\n").split(b"\r\n")[0]
        server.join()
        assert server.num_runs == 0


def test_whoever_comes_at_the_end_is_sent_elsewhere() -> None:
    with serving(sizes={"max_waiting": 1}, queue_seconds=60) as server, server.wire() as busy, server.wire() as waits:
        server.valve.shut()
        busy.ask(CHAT, {**STREAM, "max_tokens": 5})
        busy.read_until(b"assistant")
        waits.ask(CHAT, STREAM)
        until(lambda: server.llm.loop.num_waiting == 1)
        server.service.end()
        head = waits.read_until(b"\r\n\r\n")
        assert b" 503 " in head.split(b"\r\n")[0] and b"retry-after: 1" in head.lower()
        assert server.get("/ready").status == 503 and server.get("/health").status == 200
        late = server.chat()
        assert late.status == 503 and late.error["code"] == "shutting_down"
        server.valve.open()
        busy.read_until(b"[DONE]")


@pytest.fixture(scope="module")
def broken() -> Iterator[tuple[Serving, list[Any]]]:
    """A server whose engine failed while one answer was streamed and two were waited for, and what they heard."""
    with serving() as server:
        assert server.get("/health").status == server.get("/ready").status == 200
        with server.wire() as wire, Crew() as crew:
            wire.ask(CHAT, {**STREAM, "max_tokens": 300})
            heard = [wire.read_until(b"assistant")]
            waited = [crew.start(lambda: server.chat(max_tokens=300, ignore_eos=True)) for _ in range(2)]
            until(lambda: server.service.num_streams == 3)
            server.valve.error = RuntimeError("the device is on fire")
            heard.append(wire.read_until(b"[DONE]"))
            yield server, [*heard, *(one.result(PATIENCE) for one in waited)]


def test_a_failed_step_is_told_in_the_stream(broken: tuple[Serving, list[Any]]) -> None:
    _, (first, rest, *_) = broken
    events = [json.loads(line[6:]) for line in (first + rest).decode().split("\n") if line.startswith("data: {")]
    error = events[-1]["error"]
    assert error["message"] == "a step failed: RuntimeError: the device is on fire"
    assert error["type"] == "server_error" and error["code"] == "run_failed"
    assert all("choices" in event for event in events[:-1])


def test_a_failed_step_is_told_to_who_waits(broken: tuple[Serving, list[Any]]) -> None:
    _, (_, _, *waited) = broken
    assert [one.status for one in waited] == [500, 500]
    assert waited[0].error["message"] == "a step failed: RuntimeError: the device is on fire"


def test_a_failed_engine_is_not_healthy(broken: tuple[Serving, list[Any]]) -> None:
    server, _ = broken
    got = server.get("/health")
    assert got.status == server.get("/ready").status == 503
    assert "the device is on fire" in got.error["message"] and got.error["code"] == "engine_failed"
    late = server.chat()
    assert late.status == 503 and late.error["code"] == "engine_closed"
    assert server.metric("quire:engine_up") == 0 and server.get("/metrics").status == 200
    assert server.get("/v1/models").status == 200 and server.num_runs == 0


def test_one_bad_run_harms_nobody_else() -> None:
    with serving() as server:
        got = server.chat(allowed_token_ids=[2], min_tokens=3, max_tokens=5)
        assert got.status == 500 and "its fields leave no token" in got.error["message"]
        streamed = server.chat(allowed_token_ids=[2], min_tokens=3, max_tokens=5, stream=True)
        assert streamed.status == 200 and "its fields leave no token" in streamed.events[-1]["error"]["message"]
        assert server.chat().status == 200 and server.get("/health").status == 200
        server.until_idle()


def test_with_a_certificate_it_is_https(tmp_path: Path) -> None:
    pytest.importorskip("msgspec")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    from tests.net.certificates import Authority

    authority = Authority(tmp_path)
    own = authority.issue("server")
    known = ssl.create_default_context(cafile=str(authority.ca))
    with serving(tls=(str(own.cert), str(own.key))) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE, context=known)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()


# -- as a program ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("model") / "tiny"
    model = tiny_model()
    model.module.save_pretrained(place)
    model.tokenizer.save_pretrained(place)
    return str(place)


class Shown(io.StringIO):
    """Standard output, and word of its first line."""

    def __init__(self) -> None:
        super().__init__()
        self.url: Future[str] = Future()

    def write(self, text: str) -> int:
        if text.startswith("http"):
            self.url.set_result(text.strip())
        return super().write(text)


def talk_and_end(url: str, end: Callable[[], None]) -> bytes:
    """What a client hears that the server's end finds in the middle of an answer."""
    with Wire(int(url.rpartition(":")[2])) as wire:
        data = json.dumps({**STREAM, "model": "tiny", "max_tokens": 150}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
        wire.socket.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        wire.read_until(b"assistant")
        end()
        return wire.read_until(b"[DONE]")


def ask_and_end(shown: Shown, path: str) -> dict[str, Any]:
    """What the server answers; it ends behind that."""
    connection = http.client.HTTPConnection(shown.url.result(PATIENCE).rpartition("/")[2], timeout=PATIENCE)
    try:
        connection.request("GET", path)
        told: dict[str, Any] = json.loads(connection.getresponse().read())
        return told
    finally:
        connection.close()
        os.kill(os.getpid(), signal.SIGTERM)


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="there is no TERM")


@needs_signals
def test_the_command_finishes_what_it_says_when_it_is_told_to_end(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    shown = Shown()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("QUIRE_API_KEYS", f"alice {KEY}")
    caplog.set_level("INFO", "quire.serve")
    with Crew() as crew:
        term = partial(os.kill, os.getpid(), signal.SIGTERM)
        heard = crew.start(lambda: talk_and_end(shown.url.result(PATIENCE), term))
        events = ["--events", "tcp://127.0.0.1:*"] if find_spec("zmq") and find_spec("msgspec") else []
        if find_spec("xxhash"):
            monkeypatch.setenv("QUIRE_SHARED", str(tmp_path / "store"))
        record = ["--record", str(tmp_path / "trace.jsonl"), "--record-key", str(tmp_path / "key")]
        code = cli.main(["serve", "--port", "0", "--model", folder, "--device-memory", "8MiB", *events, *record])
        rest = heard.result(PATIENCE)
    lines = (tmp_path / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    assert len([one for one in lines if '"output_length":150' in one]) == 1, lines
    assert not find_spec("xxhash") or any((tmp_path / "store").rglob("*"))
    assert code == 0 and b'"finish_reason":"length"' in rest and b"error" not in rest
    told = [record.getMessage() for record in caplog.records]
    assert any("/v1/chat/completions 200" in one for one in told)
    assert not any(KEY in one or "who are you" in one for one in told)


@needs_signals
def test_the_command_has_the_order_of_eviction_that_was_given(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, order in ([], "adaptive"), (["--eviction", "lru"], "lru"):
        shown = Shown()
        monkeypatch.setattr(sys, "stdout", shown)
        with Crew() as crew:
            heard = crew.start(partial(ask_and_end, shown, "/viewer/snapshot"))
            assert cli.main(["serve", "--port", "0", "--model", folder, "--device-memory", "8MiB", *words]) == 0
            assert heard.result(PATIENCE)["eviction"] == order


@needs_signals
@pytest.mark.slow
def test_a_program_that_is_told_to_end_ends(folder: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "QUIRE_API_KEYS": KEY}
    words = ["serve", "--port", "0", "--model", folder, "--device-memory", "8MiB"]
    if find_spec("xxhash"):
        words += ["--disk", str(tmp_path), "--disk-bytes", "8MiB"]
    command = [sys.executable, "-m", "quire.cli", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        seen = Path(f"/proc/{process.pid}/cmdline")
        assert not seen.exists() or KEY.encode() not in seen.read_bytes()
        rest = talk_and_end(url, partial(process.send_signal, signal.SIGTERM))
        _, notes = process.communicate(timeout=240)
    assert process.returncode == 0 and b'"finish_reason":"length"' in rest
    assert not find_spec("xxhash") or any(tmp_path.rglob("manifest*"))
    assert "/v1/chat/completions 200" in notes and KEY not in notes and "who are you" not in notes


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--model", "no/such"], "no/such"),
        (["--host", "203.0.113.7"], "give a free port of this machine"),
        (["--port", "99999999"], "there is no such port"),
        (["--device-memory", "much"], "device memory"),
        (["--api-key-file", "no-such-file"], "no-such-file"),
        (["--tls-cert", "cert.pem"], "a certificate needs its key"),
        (["--tls-cert", "setup.py", "--tls-key", "setup.py"], "give a certificate and its key"),
        (["--queue-seconds", "-1"], "queue_seconds is -1"),
        (["--grace", "-1"], "grace is -1"),
        (["--grace", "nan"], "grace is nan"),
        (["--max-requests", "0"], "max_waiting"),
        (["--max-length", "-5"], "max_length"),
    ],
)
def test_what_the_command_refuses_before_it_loads(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--port", "0", *words]) == 2
    told = capsys.readouterr().err
    assert told.rstrip().splitlines()[-1].startswith("quire serve: ") and fact in told


def test_memory_that_cannot_suffice_is_refused_before_the_model_is_loaded(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--port", "0", "--model", folder, "--device-memory", "1000"]) == 2
    told = capsys.readouterr().err
    assert "device memory of 1000: two blocks take" in told and "loading" not in told


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['starlette'] = None; from quire.cli.main import main; sys.exit(main(['serve']))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith(
        "quire serve: quire.serve: it needs starlette, uvicorn, httptools, msgspec and prometheus_client ("
    )
    assert ran.stderr.endswith("; pip install 'quire-kv[serve]' (in a checkout: pip install '.[serve]')\n")


def test_an_open_address_without_keys_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--host", "0.0.0.0", "--port", "0", "--model", "no/such"]) == 2
    assert "everyone who can reach 0.0.0.0 may use this server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_which_addresses_are_this_machine_only(host: str, local: bool) -> None:
    assert is_loopback(host) is local
