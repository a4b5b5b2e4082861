"""What one client's large bodies cost everybody else: the longest wait of GET /health beside each of them.

    python benchmarks/bodies.py                 # each body three times, about two minutes
    python benchmarks/bodies.py --times 10 --only tool

Bodies have up to the 4 MiB that a server reads. Each is built to cost as much as it can where a server decodes, checks,
renders, tokenizes or answers it. The model returns at once. One process has the server, one sends a body after the
other, one asks /health without a pause and notes its longest wait: of several times, the median and the worst. `alone`
is that wait without a body.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import time
from collections.abc import Callable
from statistics import median
from typing import Any

MOST = (4 << 20) - 200  # bytes of what a body repeats
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TALK = b'"messages":[{"role":"user","content":"hello"}],"max_tokens":1'
CALL = b'{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":%s}}]}'
LINE = "{:26} {:10,} {:7} {:9.2f} {:16,.0f} {:10,.0f}"
LISTS, MESSAGE, PART = b"[],", b'{"role":"a","content":""},', b'{"type":"text","text":""},'
Body = tuple[str, bytes]


def repeated(unit: bytes, room: int = MOST) -> bytes:
    """As often as there is room, without the comma behind the last."""
    return (unit * (room // len(unit))).rstrip(b",")


def chat(field: bytes) -> Body:
    """A small conversation and one large field."""
    return CHAT, b"{" + TALK + b"," + field + b"}"


def talk(messages: bytes) -> Body:
    """A conversation of these."""
    return CHAT, b'{"max_tokens":1,"messages":[' + messages + b"]}"


def numbered(unit: bytes, number: int) -> bytes:
    """Entries with names of their own."""
    return b",".join(unit % nth for nth in range(number))


BODIES: dict[str, Callable[[], Body]] = {
    "metadata of empty lists": lambda: chat(b'"metadata":{"a":[' + repeated(LISTS) + b"]}"),
    "380,000 unknown fields": lambda: chat(numbered(b'"%06d":1', 380_000)),
    "380,000 times one field": lambda: chat(repeated(b'"n":1,', 380_000 * 6)),
    "two million brackets": lambda: (CHAT, b"[" * (2 << 20) + b"]" * (2 << 20)),
    "tool arguments of lists": lambda: talk(CALL % (b'{"a":[' + repeated(LISTS, MOST - 100) + b"]}")),
    "tool arguments as text": lambda: talk(CALL % (b'"[' + repeated(LISTS, MOST - 100) + b']"')),
    "40 texts of arguments": lambda: talk(b",".join([CALL % (b'"[' + repeated(LISTS, 98_000) + b']"')] * 40)),
    "tool parameters": lambda: chat(
        b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[' + repeated(LISTS) + b"]}}}]"
    ),
    "integers of 4,300 digits": lambda: chat(
        b'"chat_template_kwargs":{"a":[' + repeated(b"9" * 4300 + b",") + b"]}"
    ),
    "a schema of lists": lambda: chat(
        b'"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"enum":['
        + repeated(LISTS) + b"]}}}"
    ),
    "360,000 biases": lambda: chat(b'"logit_bias":{' + numbered(b'"%d":1', 360_000) + b"}"),
    "stop strings": lambda: chat(b'"stop":[' + repeated(b'"a",') + b"]"),
    "160,000 messages": lambda: talk(repeated(MESSAGE)),
    "160,000 parts": lambda: talk(b'{"role":"user","content":[' + repeated(PART) + b"]}"),
    "16,000 messages": lambda: talk(repeated(MESSAGE, 16_000 * len(MESSAGE))),
    "a text of escapes": lambda: talk(b'{"role":"user","content":"' + repeated(rb"\n") + b'"}'),
    "half of a character": lambda: talk(b'{"role":"user","content":"' + repeated(rb"\u00e9") + rb"\ud800" + b'"}'),
    "two million token ids": lambda: (TEXT, b'{"prompt":[' + repeated(b"1,") + b"]}"),
    "token ids as 1.0": lambda: (TEXT, b'{"prompt":[' + repeated(b"1.0,") + b"]}"),
    "a million prompts": lambda: (TEXT, b'{"prompt":[' + repeated(b'"a",') + b"]}"),
    "echo of 128 x 8,000 ids": lambda: (TEXT, echo()),
    "the same as a stream": lambda: (TEXT, echo(b',"stream":true')),
    "tokenize": lambda: ("/tokenize", b'{"prompt":"' + repeated(b"word ", 500_000) + b'","return_token_strs":true}'),
    "detokenize": lambda: ("/detokenize", b'{"tokens":[' + repeated(b"65,", 3_000_000) + b"]}"),
}  # fmt: skip


def echo(more: bytes = b"") -> bytes:
    """Prompts that come back with the answer, as text and as token ids."""
    prompt = b"[" + repeated(b"65,", 24_000) + b"]"
    prompts = b",".join([prompt] * 128)
    return b'{"echo":true,"return_token_ids":true,"max_tokens":1,"prompt":[' + prompts + b"]" + more + b"}"


def ask(connection: http.client.HTTPConnection, path: str, data: bytes | None = None) -> int:
    """One request; the status of its answer, which is read."""
    headers = {"content-type": "application/json"} if data is not None else {}
    connection.request("GET" if data is None else "POST", path, data, headers)
    reply = connection.getresponse()
    while reply.read(1 << 16):
        pass
    return reply.status


def probe(port: int, orders: Any, waits: Any) -> None:
    """Asks /health until told to stop, and tells its longest wait; again for each order."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    while orders.recv():
        longest = 0.0
        while True:
            began = time.perf_counter()
            ask(connection, "/health")
            longest = max(longest, time.perf_counter() - began)
            if orders.poll():
                break
        orders.recv()
        waits.send(longest)


def send(port: int, orders: Any, answers: Any) -> None:
    """Sends the body of a name as often as ordered; tells status and seconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    while (order := orders.recv()) is not None:
        path, data = BODIES[order]()
        answers.send(len(data))
        orders.recv()  # the other one has begun
        began = time.perf_counter()
        status = ask(connection, path, data)
        answers.send((status, time.perf_counter() - began))


def measure(port: int, names: list[str], times: int) -> list[dict[str, Any]]:
    """Every body in turn."""
    context = multiprocessing.get_context("spawn")
    (probe_orders, probe_end), (waits, waits_end) = context.Pipe(), context.Pipe()
    (send_orders, send_end), (answers, answers_end) = context.Pipe(), context.Pipe()
    prober = context.Process(target=probe, args=(port, probe_end, waits_end))
    sender = context.Process(target=send, args=(port, send_end, answers_end))
    prober.start()
    sender.start()
    rows: list[dict[str, Any]] = []
    for name in ["alone", *names]:
        row: dict[str, Any] = {"body": name, "bytes": 0, "status": 200, "seconds": 0.0}
        longest: list[float] = []
        for _ in range(times):
            if name != "alone":
                send_orders.send(name)
                row["bytes"] = answers.recv()
            probe_orders.send(True)
            time.sleep(0.2)
            if name != "alone":
                send_orders.send(True)
                row["status"], seconds = answers.recv()
                row["seconds"] = max(row["seconds"], seconds)
            probe_orders.send(True)
            longest.append(waits.recv() * 1e3)
        row |= {"usual_ms": median(longest), "worst_ms": max(longest)}
        rows.append(row)
        print(LINE.format(*row.values()), flush=True)
    probe_orders.send(False)
    send_orders.send(None)
    prober.join()
    sender.join()
    return rows


def main() -> None:
    import torch
    from serve import Serving, instant_llm  # the benchmark beside this one

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default="", help="bodies whose names have this in them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in BODIES if options.only in name]
    torch.set_num_threads(1)
    print(f"{'body':26} {'bytes':>10} {'status':>7} {'seconds':>9} {'/health: median':>16} {'worst, ms':>10}")
    with instant_llm(128, 8192) as llm:
        serving = Serving(llm)
        try:
            rows = measure(serving.port, names, options.times)
        finally:
            serving.close()
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
