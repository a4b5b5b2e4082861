"""LLM: text in, text out, over an engine that runs in the background. The easiest way to use Quire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch

from quire.core.records.errors import InputError, say, shown
from quire.engine.loop.call_options import MergedOptions, Options, check_names, merge_options
from quire.engine.loop.engine_thread import Loop
from quire.engine.loop.prompt_ids import Message, Prompt, listed, prompt_ids, talk_ids
from quire.engine.loop.stream import AsyncStream, RunFailed, Stream
from quire.engine.memory.disk_side import DiskConfig, disk_config
from quire.engine.memory.shared_side import HOST_BYTES, shared_config
from quire.engine.model import smollm2
from quire.engine.model.folders import checked
from quire.engine.model.hub_cache import is_hub_id
from quire.engine.model.layers import Model
from quire.engine.model.load import load
from quire.engine.publishing import EnginePublisher
from quire.engine.runner.engine import PLAIN_SAMPLING, Engine
from quire.engine.sampling.params import Sampling
from quire.engine.sampling.token_logprobs import TokenLogprobs
from quire.engine.setup.engine_config import EngineConfig, PrefillPeer
from quire.engine.setup.fitting import fitting
from quire.engine.step.runs.branch import Run
from quire.engine.step.runs.times import RunTimes
from quire.insight.regret import Regret
from quire.trace.record.recorder import TraceRecorder

if TYPE_CHECKING:
    from quire.events import Publisher
    from quire.tiers.shared import SharedConfig
    from quire.transfer import Tls


@dataclass(frozen=True, slots=True)
class Output:
    """What came of one prompt."""

    texts: tuple[str, ...]  # one per answer; none without a tokenizer
    tokens: tuple[tuple[int, ...], ...]
    finish: tuple[str, ...]  # eos, stop, length, cancelled
    num_prompt_tokens: int
    reused: int  # prompt tokens that need not be computed
    time_to_first_token: float  # seconds in the engine; a wait for a place counts in `times` only
    times: RunTimes  # from the moment it was asked for
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()  # by answer and token, if they were asked for

    def __repr__(self) -> str:
        counts = "+".join(str(len(tokens)) for tokens in self.tokens[:8]) + ("+..." if len(self.tokens) > 8 else "")
        ends = ", ".join(sorted(set(self.finish)))
        return f"Output({counts} tokens, {ends}; prompt {self.num_prompt_tokens} tokens, {self.reused} reused)"

    @property
    def text(self) -> str:
        """The first answer, which is the best one of a beam search."""
        if not self.texts:
            raise InputError(say("the text of an answer", "the model has no tokenizer", "read its tokens"))
        return self.texts[0]


class ModelMemory(TypedDict, total=False):
    """Where a model and its pages are: "cpu", "float32", "512MiB", 0, no disk, one pool if nothing else is said."""

    device: str
    dtype: str
    device_bytes: int | str
    host_bytes: int | str
    disk: DiskConfig | str | Path | None
    disk_bytes: int | str
    share_pool: bool  # layers with full attention and with windows have their pages in one pool


class LLM:
    """A model with its cache: from a folder, or a hub id (`Qwen/Qwen3-0.6B`) that was downloaded before.

    Without either it is the embedded SmolLM2-135M-Instruct. `device_bytes` and `host_bytes` are for pages: "40GB".

    With a `prefill_peer`, an LLM that serves prompts, it decodes what that one computes. With `publish`, an endpoint
    such as "tcp://127.0.0.1:5557", routers hear what it caches, and with `replay`, another one, what they missed.
    With `shared`, a folder or "redis://host:6379/0", it reuses what other machines have computed, and they what it has.
    With `disk`, a folder, and `disk_bytes`, what it has computed is there again when it is started anew.
    """

    def __init__(
        self, model: str | Path | Model | None = None, *, config: EngineConfig | None = None,
        prefill_peer: PrefillPeer | None = None, publish: str | None = None, replay: str | None = None,
        shared: SharedConfig | str | Path | None = None, tell: Callable[[str], None] = lambda _: None,
        **memory: Unpack[ModelMemory],
    ) -> None:  # fmt: skip
        check_names(memory, ModelMemory.__optional_keys__)
        for name, given, kind in (("config", config, EngineConfig), ("prefill_peer", prefill_peer, PrefillPeer)):
            if given is not None and not isinstance(given, kind):
                raise InputError(
                    say("an LLM", f"{name} is {shown(given)}", f"pass {name}={kind.__name__}(...), or None")
                )
        _check_memory(model, config, memory)
        if prefill_peer is not None:
            _check_peer(prefill_peer)
        _check_endpoints(publish, replay)
        shared = None if shared is None else shared_config(shared)
        disk = _checked_disk(config, memory)
        if not isinstance(model, Model):
            model = _loaded(model, memory, tell)
        self.model = model
        if config is None:
            host = memory.get("host_bytes", 0 if shared is None and disk is None else HOST_BYTES)
            device_bytes, disk_bytes = memory.get("device_bytes", "512MiB"), memory.get("disk_bytes", 0)
            config = fitting(model, device_bytes, host, disk_bytes)
        engine = Engine(model, config if publish is None else replace(config, events=True), shared=shared, disk=disk)
        try:
            submit = None if prefill_peer is None else _remote(engine, prefill_peer)
            self.publisher = None if publish is None else _published(engine, publish, replay)
        except BaseException:
            engine.close()
            raise
        self.shared = None if engine.shared_side is None else engine.shared_side.shared
        self.disk = None if engine.disk_side is None else engine.disk_side.keeper
        self.loop = Loop(engine, submit)
        self.watched: Regret | None = None  # what `regret` returns, once it was asked for

    def tokens(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; conversations go through the model's own template."""
        return prompt_ids(prompt, self.model.tokenizer)

    def stream(self, prompt: Prompt, sampling: Sampling = PLAIN_SAMPLING, **options: Unpack[Options]) -> Stream:
        """Pieces of the answer as they come: `for piece in llm.stream(...)`; closing it cancels."""
        merged = merge_options(sampling, options)
        return self.loop.submit(self.tokens(prompt), merged.sampling, **merged.others)

    def stream_async(
        self, prompt: Prompt, sampling: Sampling = PLAIN_SAMPLING, **options: Unpack[Options]
    ) -> AsyncStream:
        """The same for coroutines: `async for piece in llm.stream_async(...)`; or `await` it for its Stream."""
        merged = merge_options(sampling, options)
        return AsyncStream(partial(self.loop.submit_async, self.tokens(prompt), merged.sampling, **merged.others))

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: Sampling = PLAIN_SAMPLING, **options: Unpack[Options]
    ) -> list[Output]:
        """Answers to one prompt or to many, in order; many are computed together."""
        ready = [self.tokens(prompt) for prompt in listed(prompts)]  # all, before the first is queued
        return self._outputs(ready, merge_options(sampling, options))

    def chat(
        self, messages: Sequence[Message], sampling: Sampling = PLAIN_SAMPLING, **options: Unpack[Options]
    ) -> Output:
        """The answer to a conversation: `[{"role": "user", "content": "..."}]`."""
        return self._outputs([talk_ids(messages, self.model.tokenizer)], merge_options(sampling, options))[0]

    def _outputs(self, ready: list[list[int]], merged: MergedOptions) -> list[Output]:
        streams = self.loop.submit_many(ready, merged.sampling, gather=True, **merged.others)
        try:
            return [output(stream) for stream in streams]
        finally:
            for stream in streams:  # when one failed, the others are not waited for
                stream.close()

    def serve_prompts(
        self, listen: str, secret: bytes, *, link: str = "tcp", tell: Callable[[str], None] = lambda _: None,
        tls: Tls | None = None,
    ) -> str:  # fmt: skip
        """Compute prompts for peers that know the secret, besides its own; returns where it listens."""
        from quire.engine.disagg.remote import serve

        self.loop.check_open("prompts for others")
        gate = self.loop.gate
        peer = self.loop.call(lambda engine: serve(engine, listen, secret, link=link, tell=tell, gate=gate, tls=tls))
        return str(peer.link.address)

    def record(self, path: str | Path, *, key_file: str | Path | None = None) -> TraceRecorder:
        """Write a trace of what is served from now on, without text and tokens; see Engine.record."""
        self.loop.check_open("a recording")
        recorder: TraceRecorder = self.loop.call(lambda engine: engine.record(path, key_file=key_file))
        return recorder

    def regret(self) -> Regret:
        """What its cache hits, and would hit with other memory or in another order: watched from the first call on."""
        if self.watched is None:
            self.loop.check_open("regret")
            self.watched = Regret(self.loop.engine.cache)
        return self.watched

    def cancel(self, stream: Stream) -> None:
        """Stop an answer; its stream ends with what has come."""
        stream.close()

    def drain(self, timeout: float | None = None) -> bool:
        """Accept no more prompts; wait until all answers are complete. False: some are not after `timeout` seconds."""
        return self.loop.drain(timeout)

    def close(self) -> None:
        """End the engine; answers under way are cancelled."""
        if self.watched is not None:
            self.watched.close()
        self.loop.close()

    def __repr__(self) -> str:
        return f"LLM({self.loop!r})"

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _loaded(model: str | Path | None, memory: ModelMemory, tell: Callable[[str], None]) -> Model:
    """From its folder; None: the embedded one."""
    device, dtype = memory.get("device", "cpu"), memory.get("dtype", "float32")
    check_device(device)
    place = smollm2.folder(tell) if model is None else checked(model)
    tell(f"loading {model if is_hub_id(model) else place.name}")
    return load(place, device=device, dtype=dtype, share_pool=memory.get("share_pool", True))


def _check_memory(model: object, config: EngineConfig | None, memory: ModelMemory) -> None:
    """Refuse what would be ignored: a config has pages already, and a model that is loaded is where it is."""
    sized = [] if config is None else ["device_bytes", "host_bytes"]
    placed = ["device", "dtype", "share_pool"] if isinstance(model, Model) else []
    for name, fact in [
        *((name, "the config says how many pages there are") for name in sized),
        *((name, "the model is loaded already") for name in placed),
    ]:
        if name in memory:
            raise InputError(say(f"an LLM with {name}={shown(memory.get(name))}", fact, "leave it out"))


def _check_peer(peer: PrefillPeer) -> None:
    from quire.engine.disagg.remote import check_peer

    check_peer(peer)


def _remote(engine: Engine, peer: PrefillPeer) -> Callable[..., Run]:
    from quire.engine.disagg.remote import RemotePrefill  # needs msgspec, which others do without

    return RemotePrefill(engine, peer).submit


def _check_endpoints(publish: str | None, replay: str | None) -> None:
    """What keeps events from being published, before a model is loaded."""
    for name, given in (("publish", publish), ("replay", replay)):
        if not isinstance(given, str | None):
            cure = f"pass {name}='tcp://127.0.0.1:5557', or None"
            raise InputError(say("an LLM", f"{name} is {shown(given)}", cure))
    if replay is not None and publish is None:
        raise InputError(say(f"replay={replay!r}", "nothing is published", "give publish as well"))
    if publish is not None:
        import quire.events  # noqa: F401  # says what is missing


def _checked_disk(config: EngineConfig | None, memory: ModelMemory) -> DiskConfig | None:
    """Where pages last, if anywhere; what keeps them from that, before a model is loaded."""
    ask, disk = "an LLM with a disk", memory.get("disk")
    if disk is None:
        if memory.get("disk_bytes"):
            raise InputError(say("disk_bytes", "nothing says where", "give disk, a folder"))
        return None
    if config is None and not memory.get("disk_bytes"):
        raise InputError(say(ask, "nothing says how much of it", "give disk_bytes, as '200GB'"))
    return disk_config(disk)


def _published(engine: Engine, publish: str, replay: str | None) -> Publisher:
    from quire.events import Publisher

    publisher = Publisher(engine.cache, publish, replay=replay, bind=True)
    EnginePublisher(engine, publisher)
    return publisher


def check_device(device: str) -> None:
    """Refuse what torch has not got here, before anything is loaded."""
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        raise InputError(say(f"device {device!r}", "torch knows no such device", "use cpu or cuda")) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(say(f"device {device!r}", "torch finds no GPU", "use cpu, or install torch for CUDA"))


def output(stream: Stream) -> Output:
    """Wait for a run, and gather its answers."""
    run = stream.wait()
    if run.error is not None:
        raise RunFailed(run.error)
    return Output(
        texts=tuple(transcript.text for transcript in stream.transcripts),
        tokens=tuple(tuple(answer.tokens) for answer in run.answers),
        finish=tuple(str(answer.finish) for answer in run.answers),
        num_prompt_tokens=len(run.prompt),
        reused=run.reused,
        time_to_first_token=run.time_to_first_token,
        times=run.user_times,
        logprobs=tuple(tuple(answer.logprobs) for answer in run.answers if answer.logprobs),
    )
