"""Clients that leave, whenever they do, leave no run behind; storms over the limit get 429; every place comes back."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import socket
import struct
from collections import Counter
from typing import Any

import pytest

from ..engine.threads import Crew
from ..waits import until
from .rig import HELLO, Serving, Wire, serving

CHAT = "/v1/chat/completions"
LONG: dict[str, Any] = {**HELLO, "max_tokens": 300, "ignore_eos": True, "temperature": 0}
STREAM = {**LONG, "stream": True}


def test_a_client_that_leaves_in_the_middle_of_its_body(server: Serving) -> None:
    before = server.metric("quire:http_requests_total", code="499")
    with server.wire() as wire:
        wire.send_head(CHAT, 1000)
        wire.socket.sendall(b'{"messages": ')
        until(lambda: server.metric("quire:http_requests_in_progress") == 1)
    until(lambda: server.metric("quire:http_requests_total", code="499") == before + 1)
    server.until_idle()


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize(
    "body", [STREAM, LONG, {**STREAM, "n": 3}, {**LONG, "n": 3}], ids=["stream", "whole", "3", "3w"]
)
def test_a_client_that_leaves_while_it_is_computed(server: Serving, body: dict[str, Any], how: str) -> None:
    before = server.metric("quire:http_requests_total", code="499")
    with server.wire() as wire:
        wire.ask(CHAT, body)
        if body.get("stream"):
            wire.read_until(b"data: ")
        until(lambda: server.num_runs == 1)
        if how == "resets":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: server.metric("quire:http_requests_total", code="499") == before + 1)
    server.until_idle()


def test_a_client_that_leaves_while_it_waits_for_a_place() -> None:
    with serving(sizes={"max_waiting": 1}, queue_seconds=60) as server:
        with server.wire() as first, server.wire() as second:
            first.ask(CHAT, STREAM)
            first.read_until(b"data: ")
            second.ask(CHAT, STREAM)
            until(lambda: server.llm.loop.num_waiting == 1)
            second.close()
            until(lambda: server.llm.loop.num_waiting == 0)
            assert server.num_runs == 1, "the first goes on"
        server.until_idle()
        assert server.chat().status == 200


def test_a_client_that_leaves_behind_the_last_byte(server: Serving) -> None:
    with server.wire() as wire:
        wire.ask(CHAT, {**STREAM, "max_tokens": 2})
        wire.read_until(b"[DONE]")
    server.until_idle()


def test_one_connection_serves_many_requests(server: Serving) -> None:
    with server.wire() as wire:
        for _ in range(3):
            wire.ask(CHAT, {**STREAM, "max_tokens": 2})
            assert b"[DONE]" in wire.read_until(b"0\r\n\r\n")


def test_a_full_engine_sends_others_away_and_says_when_to_come_back() -> None:
    with serving(sizes={"max_waiting": 2}) as server:
        server.valve.shut()
        wires = [Wire(server.port) for _ in range(2)]
        for wire in wires:
            wire.ask(CHAT, STREAM)
        until(lambda: server.llm.loop.gate._free == 0)
        # no more than the two are let in, and their steps wait: others are told so at once
        got = [server.chat() for _ in range(5)]
        assert [one.status for one in got] == [429] * 5
        assert got[0].headers["retry-after"] == "1" and got[0].error["code"] == "engine_full"
        assert got[0].error["type"] == "rate_limit_error"
        server.valve.open()
        for wire in wires:
            wire.close()
        server.until_idle()
        assert server.chat().status == 200


def test_many_prompts_of_one_request_take_many_places() -> None:
    with serving(sizes={"max_waiting": 3}) as server:
        assert server.complete(prompt=["a", "b", "c"], max_tokens=2).status == 200
        got = server.complete(prompt=["a", "b", "c", "d"], max_tokens=200, ignore_eos=True)
        assert got.status == 429, "all or none"
        server.until_idle()


async def one_client(server: Serving, seed: int, told: Counter[str]) -> None:
    """Asks, and leaves somewhere; or reads to the end."""
    dice = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    data = json.dumps({**STREAM, "max_tokens": dice.randint(1, 40), "n": dice.choice([1, 1, 2])}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    whole = head.encode() + data
    try:
        leaves = dice.choice(["body", "start", "middle", "never", "never"])
        writer.write(whole[: dice.randrange(len(whole))] if leaves == "body" else whole)
        await writer.drain()
        if leaves == "middle":
            await reader.read(dice.randint(1, 4000))
        elif leaves == "never":
            got = await reader.readuntil(b"\r\n\r\n")
            told[got.split(b" ")[1].decode()] += 1
            if b" 200 " in got[:16]:
                rest = await reader.readuntil(b"\r\n0\r\n\r\n")
                told["ended"] += b"data: [DONE]" in rest
        if leaves != "never" and dice.random() < 0.5:
            writer.transport.abort()
    finally:
        writer.close()


async def storm(server: Serving, clients: int, first: int) -> Counter[str]:
    told: Counter[str] = Counter()
    await asyncio.gather(*(one_client(server, first + place, told) for place in range(clients)))
    return told


def test_random_clients_leave_nothing_behind() -> None:
    with serving(sizes={"max_waiting": 12}) as server:
        told = asyncio.run(storm(server, 40, 0))
        server.until_idle()
        assert told["ended"] == told["200"] > 0 and set(told) <= {"200", "429", "ended"}
        assert server.chat().status == 200


@pytest.mark.slow
def test_200_streams_at_once_again_and_again() -> None:
    """No run is left, and memory stays where it is."""
    with serving(
        sizes={"max_waiting": 256, "max_sequences": 64, "max_num_tokens": 256, "device_pages": 2000}
    ) as server:
        peaks = []
        for turn in range(6):
            told = asyncio.run(storm(server, 200, 1000 * turn))
            server.until_idle()
            assert told["ended"] == told["200"] > 0 and "429" not in told
            gc.collect()
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert peaks[-1] - peaks[2] < 32 << 10, peaks  # kilobytes
    with serving(sizes={"max_waiting": 4}) as server:
        told = asyncio.run(storm(server, 200, 7))
        server.until_idle()
        assert told["429"] > 0 and set(told) <= {"200", "429", "ended"}


@pytest.mark.slow
def test_a_client_that_does_not_read_is_given_up() -> None:
    """Its pieces are kept up to max_unread, and not for ever."""
    with serving(sizes={"max_unread": 8, "max_length": 4000, "device_pages": 600}) as server:
        with server.wire() as wire:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            fields = {"max_tokens": 450, "logprobs": True, "top_logprobs": 20, "n": 4}
            wire.ask(CHAT, {**STREAM, **fields})
            until(lambda: server.num_runs == 1)
            until(lambda: server.num_runs == 0)
            assert server.llm.loop.error is None
        server.until_idle()


def test_streams_at_the_same_time_are_each_their_own(server: Serving) -> None:
    def ask(place: int) -> str:
        got = server.chat(messages=[{"role": "user", "content": f"number {place}"}], stream=True)
        return "".join(choice["delta"].get("content", "") for event in got.events for choice in event["choices"])

    alone = [ask(place) for place in range(8)]
    with Crew() as crew:
        together = [crew.start(ask, place) for place in range(8)]
    assert [one.result() for one in together] == alone
