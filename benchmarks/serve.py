"""What the server costs around a model that returns at once: processor time per request and per streamed token.

    python benchmarks/serve.py                  # 64 clients at once, about a minute
    python benchmarks/serve.py --json --tokens 64 --requests 256

Clients are another process. The event loop's thread is what HTTP adds: reading, checking, tokenizing, text to events.
The engine's thread (scheduling, sampling, characters from tokens) works for any front, and is told beside it.
Per token: what a long answer costs more than a short one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from quire.engine import LLM, EngineConfig, from_module
from quire.serve import Server, ServeSettings, Service, bind

TALK = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
QUESTION = "What does a lighthouse keeper write into the green book every morning, and why are there forty of them?"
SHORT = 1


class Instant(torch.nn.Module):
    """In place of a decoder: the next token is always the letter a."""

    def __init__(self, inner: Any, letter: int) -> None:
        super().__init__()
        self.config, self.dtype, self.device = inner.config, inner.dtype, inner.device
        self.generation_config = inner.generation_config
        self.logits = torch.zeros(1, 512, inner.config.vocab_size)
        self.logits[..., letter] = 1.0

    def forward(self, logits_to_keep: Any, **_: Any) -> Any:
        return SimpleNamespace(logits=self.logits[:, : len(logits_to_keep)])


def tokenizer() -> Any:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: nth for nth, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner)
    made.chat_template = TALK
    return made


def instant_llm(at_once: int, length: int = 4096) -> LLM:
    """An engine whose model takes no time; a request may have `length` tokens."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=length, eos_token_id=None,
    )  # fmt: skip
    words = tokenizer()
    model = from_module(AutoModelForCausalLM.from_config(config, dtype=torch.float32), words)
    object.__setattr__(model, "module", Instant(model.module, words.convert_tokens_to_ids("a")))
    pages = at_once * (length // 64) + 64
    settings = EngineConfig(
        pages, max_sequences=at_once, max_num_tokens=at_once * 8, max_length=length, max_waiting=2 * at_once,
        receipts=True,
    )  # fmt: skip
    return LLM(model, config=settings)


class Serving:
    """A server in a thread of its own, and what its threads have cost so far."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self._ready = llm, threading.Event()
        self.socket = bind("127.0.0.1", 0)
        self.port: int = self.socket.getsockname()[1]
        self.server = Server(Service(llm, ServeSettings("instant")), grace=1)
        self._loop: asyncio.AbstractEventLoop
        self.server.on_ready = self._note
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self._thread.start()
        self._ready.wait()

    def _note(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()

    def spent(self) -> tuple[float, float]:
        """Seconds of processor time: the event loop's thread, the engine's."""
        future: Future[float] = Future()
        self._loop.call_soon_threadsafe(lambda: future.set_result(time.thread_time()))
        return future.result(), self.llm.loop.call(lambda _: time.thread_time())

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join()
        self.socket.close()


async def ask(port: int, requests: list[int], tokens: int, stream: bool) -> int:
    """One client: one connection, one request after the other. Returns events read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    events = 0
    while requests:
        requests.pop()
        message = {"role": "user", "content": QUESTION}
        body = json.dumps({"messages": [message], "max_tokens": tokens, "temperature": 0, "stream": stream}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer[:16], answer
        if not stream:
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            continue
        while size := int((await reader.readline()).strip(), 16):
            events += (await reader.readexactly(size + 2)).count(b"data: {")
        await reader.readline()
    writer.close()
    return events


def clients(port: int, at_once: int, requests: int, tokens: int, stream: bool, told: Any) -> None:
    """All clients, in a process of their own."""

    async def all_of_them() -> int:
        left = list(range(requests))
        return sum(await asyncio.gather(*(ask(port, left, tokens, stream) for _ in range(at_once))))

    told.put(asyncio.run(all_of_them()))


def measure(serving: Serving, at_once: int, requests: int, tokens: int, stream: bool) -> dict[str, float]:
    """Microseconds per request."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    before, began = serving.spent(), time.perf_counter()
    process = context.Process(target=clients, args=(serving.port, at_once, requests, tokens, stream, told))
    process.start()
    events = told.get(timeout=600)
    seconds = time.perf_counter() - began
    process.join()
    front, engine = (after - then for after, then in zip(serving.spent(), before, strict=True))
    per = 1e6 / requests
    return {"front": front * per, "engine": engine * per, "seconds": seconds, "events": events / requests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with instant_llm(options.at_once) as llm:
        serving = Serving(llm)
        try:
            run = (serving, options.at_once, options.requests)
            measure(*run, SHORT, True)  # once, so that everything is imported and warm
            whole, short = measure(*run, SHORT, False), measure(*run, SHORT, True)
            long = measure(*run, options.tokens, True)
        finally:
            serving.close()
    more = options.tokens - SHORT
    found = {
        "request_us": whole["front"],
        "stream_request_us": short["front"],
        "token_us": (long["front"] - short["front"]) / more,
        "engine_request_us": whole["engine"],
        "engine_token_us": (long["engine"] - short["engine"]) / more,
        "events_per_answer": long["events"],
        "tokens_per_second": options.requests * options.tokens / long["seconds"],
    }
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value:12,.1f}")


if __name__ == "__main__":
    main()
