"""Routers hear what an engine caches: a publisher beside it, an index on the other side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from quire import InputError, StateError
from quire.engine import LLM, EnginePublisher, from_module
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.setup.engine_config import EngineConfig
from quire.events import Follower, Index, Publisher, Status

from ..waits import until
from . import families


def test_an_index_follows_an_engine() -> None:
    config = EngineConfig(24, 12, block_size=8, max_num_tokens=48, max_sequences=8, max_length=128, events=True, rank=3)
    engine = Engine(from_module(families.build("llama")), config)
    publisher = Publisher(engine.cache, "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*")
    EnginePublisher(engine, publisher)
    index = Index()
    with Follower(index) as follower:
        assert publisher.replay_endpoint is not None
        follower.follow("worker", publisher.endpoint, publisher.replay_endpoint)
        prompts = [np.random.default_rng(nth % 3).integers(16, 256, 60).astype(np.int32) for nth in range(6)]
        for prompt in prompts:
            engine.submit(prompt, Sampling(max_tokens=4))
        engine.drain()
        start = engine.cache.probe([_request(prompts[-1])])[0].start // 8 * 8

        def has_heard_all() -> bool:
            found = index.find(prompts[-1])
            return index.status("worker") is Status.EXACT and bool(found) and found["worker"].tokens >= start

        until(has_heard_all)
        assert index.find(prompts[-1])["worker"].tokens == start > 0
    engine.close()


def _request(prompt: Any) -> Any:
    from quire import Request

    return Request("probe", prompt)


class Dead:
    """A publisher whose thread has ended."""

    closed = False

    def tell(self) -> int | None:
        raise StateError("tell: its thread ended with OSError(28, 'no space'); make a new publisher")

    def close(self) -> None:
        self.closed = True


def test_a_dead_publisher_is_told_and_stops_no_engine(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(24, block_size=8, max_num_tokens=48, max_sequences=8, max_length=128, events=True)
    engine = Engine(from_module(families.build("llama")), config)
    publisher = Dead()
    publishing = EnginePublisher(engine, publisher)
    engine.submit(np.arange(16, 48, dtype=np.int32), Sampling(max_tokens=4))
    engine.drain()
    assert publishing.error is not None and "no space" in str(publishing.error)
    (record,) = caplog.records
    assert record.levelname == "ERROR" and "routers hear nothing" in record.message and "no space" in record.message
    engine.close()
    assert publisher.closed


def test_an_llm_publishes_with_two_words() -> None:
    """It records events because somebody listens, whatever its config says."""
    model = from_module(families.build("llama"))
    config = EngineConfig(24, block_size=8, max_num_tokens=48, max_sequences=8, max_length=128)
    prompt = np.arange(16, 76, dtype=np.int32)
    index = Index()
    with (
        LLM(model, config=config, publish="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*") as llm,
        Follower(index) as follower,
    ):
        assert llm.publisher is not None and llm.publisher.replay_endpoint is not None
        follower.follow("worker", llm.publisher.endpoint, llm.publisher.replay_endpoint)
        llm.generate(prompt, max_tokens=4)
        until(lambda: bool(index.find(prompt)) and index.find(prompt)["worker"].tokens >= 56)
    with LLM(model, config=config) as silent:
        assert silent.publisher is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"publish": 5557}, "publish is 5557; pass publish='tcp://"),
        ({"replay": "tcp://127.0.0.1:*"}, "nothing is published; give publish as well"),
        ({"publish": "tcp://127.0.0.1:*", "replay": b"x"}, "replay is b'x'; pass replay='tcp://"),
        ({"publsh": "tcp://127.0.0.1:*"}, "there is no such option"),
        ({"device_byte": 5}, "there is no such option; did you mean device_bytes?"),
    ],
)
def test_what_is_no_endpoint_is_told_before_a_model_is_loaded(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as told:
        LLM("/no/such/folder", **options)
    assert words in str(told.value)


def test_an_endpoint_in_use_leaves_nothing_open() -> None:
    model = from_module(families.build("llama"))
    config = EngineConfig(24, block_size=8, max_num_tokens=48, max_sequences=8, max_length=128)
    with LLM(model, config=config, publish="tcp://127.0.0.1:*") as llm:
        assert llm.publisher is not None
        with pytest.raises(Exception, match=r"in use|Address"):
            LLM(model, config=config, publish=llm.publisher.endpoint)
