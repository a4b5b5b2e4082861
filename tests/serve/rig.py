"""A server under test: a tiny model behind real HTTP, in a thread, so that a test can look into its engine.

Knows no test. Bodies and answers are JSON; `Wire` is a bare connection, for clients that misbehave.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from quire import check
from quire.engine import LLM, EngineConfig, Model, from_module
from quire.serve import Server, ServeSettings, Service, bind
from quire.serve.any_service import AnyService

from ..engine import families
from ..engine.valve import Valve
from ..engine.words import byte_tokenizer
from ..waits import PATIENCE, until

NAME = "tiny"
TALK = (  # a conversation in few tokens, with tools where there are some
    "{% if tools %}t:{{ tools | length }}{{ tools[0].function.name }}, as <tool_call>{...}</tool_call>\n{% endif %}"
    "{% if mood %}{{ mood }}\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'martian' %}{{ raise_exception('no martians') }}{% endif %}"
    "{{ m.role[0] }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
SIZES: dict[str, Any] = {
    "device_pages": 300, "block_size": 8, "max_num_tokens": 128, "max_sequences": 16, "max_length": 400,
    "max_waiting": 64, "receipts": True, "deadlines": 0.9,
}  # fmt: skip
HELLO = {"messages": [{"role": "user", "content": "Hello, who are you and what do you do all day?"}]}


def tiny_model(template: str = TALK) -> Model:
    """Random weights that are always the same; every byte is a token."""
    words = byte_tokenizer()
    words.chat_template = template
    return from_module(families.build("llama"), words)


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        """The error, in the form that every one has."""
        found: dict[str, Any] = self.json["error"]
        assert set(found) == {"message", "type", "param", "code"} and isinstance(found["message"], str)
        return found

    @property
    def events(self) -> list[Any]:
        """Server-sent events, without the last, which is [DONE]."""
        *events, last, rest = self.data.decode().split("\n\n")
        assert last == "data: [DONE]" and rest == ""
        assert all(event.startswith("data: ") for event in events)
        return [json.loads(event.removeprefix("data: ")) for event in events]


class HttpAsker:
    """Asks a server of this process, each time on a connection of its own."""

    port: int
    service: AnyService

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request on a connection of its own; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            named.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, data, named)
            got = connection.getresponse()
            return Reply(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def chat(self, **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", {**HELLO, "max_tokens": 8, "temperature": 0, **fields})

    def complete(self, **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, **fields})

    def wire(self) -> Wire:
        return Wire(self.port)

    def metric(self, name: str, **labels: str) -> float:
        """One number of /metrics, summed over labels that are not named."""
        total = 0.0
        for family in self.service.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total += sample.value
        return total


class Serving(HttpAsker):
    """One server. `valve` holds up or breaks the model's steps."""

    def __init__(
        self, model: Model, settings: dict[str, Any], sizes: dict[str, Any], outside: dict[str, Any], **more: Any
    ) -> None:
        self.valve = Valve(model.module)
        self.llm = LLM(model, config=EngineConfig(**(SIZES | sizes)), **outside)
        self.service = Service(self.llm, ServeSettings(NAME, **settings))
        self.server = Server(self.service, **more)
        self._socket = bind("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        ready = threading.Event()
        self.server.on_ready = ready.set
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE)

    @property
    def num_runs(self) -> int:
        return len(self.llm.loop.engine.runs)

    def until_idle(self) -> None:
        """Nothing is computed, every place is free, and the cache is whole."""
        until(lambda: not self.num_runs and not self.service.num_streams and not self.llm.loop.num_waiting)
        self.llm.loop.call(lambda engine: check(engine.cache))
        assert self.llm.loop.gate._free == self.llm.loop.engine.config.max_waiting

    def end(self) -> None:
        """As a signal would."""
        self.server.should_exit = True

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.valve.open()
        self.end()
        self.join()
        self._socket.close()
        self.llm.close()
        self.valve.hook.remove()


class Wire:
    """A connection, byte by byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)

    def send_head(self, path: str, length: int) -> None:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        self.socket.sendall(head.encode())

    def ask(self, path: str, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_head(path, len(data))
        self.socket.sendall(data)

    def read_until(self, mark: bytes) -> bytes:
        got = b""
        while mark not in got:
            more = self.socket.recv(65536)
            assert more, f"it ended before {mark!r}: {got[-200:]!r}"
            got += more
        return got

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def serving(model: Model | None = None, sizes: Any = None, outside: Any = None, **settings: Any) -> Iterator[Serving]:
    """A server that is gone behind the block.

    `outside` is for the LLM (its disk, a store, a peer), `grace` and `tls` for the Server, the rest for the Service.
    """
    more = {name: settings.pop(name) for name in ("grace", "tls") if name in settings}
    made = Serving(model or tiny_model(), settings, sizes or {}, outside or {}, **more)
    try:
        yield made
    finally:
        made.close()
