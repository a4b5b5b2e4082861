"""Events with a disk below host memory: pages that come from there are told under the names of who asks for them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from quire import Request, Writer
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.reports.kv_events import BlockNames, StoredBlocks
from tests.integrations.lasting_engine import LastingEngine
from tests.integrations.test_vllm_outer import disk_at, totals
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE, ToyRequest, requests


def anew(request: ToyRequest, name: str) -> ToyRequest:
    """The same prompt, asked again."""
    return ToyRequest(name, request.all_token_ids[: request.num_prompt_tokens], request.num_prompt_tokens, max_tokens=1)


def restarted(at: Path) -> tuple[LastingEngine, ToyRequest]:
    """An engine that has found pages on disk, and the longest of the prompts that an engine before it has served."""
    texts = requests(random.Random(4), 6)
    before = LastingEngine(0, at, disk_at(at), host=96, blocks=60, hybrid=False)  # nothing goes before it is on disk
    before.run(list(texts))
    before.settle()
    before.side.close()
    return LastingEngine(1, at, disk_at(at), host=24, blocks=60, hybrid=False), max(
        texts, key=lambda one: one.num_prompt_tokens
    )


def test_what_was_restored_is_told_when_it_comes_up(tmp_path: Path) -> None:
    engine, text = restarted(tmp_path)
    engine.own = 0.0
    engine._hear_events()
    assert totals(engine)["disk_restored"] and not engine.published  # it is on disk, and in no host memory
    asked = anew(text, "again")
    engine.run([asked])
    whole = (asked.num_prompt_tokens - 1) // SIZE
    assert whole and {(0, name) for name in asked.block_hashes[:whole]} <= engine.published
    assert totals(engine)["disk_read"] >= whole
    engine.side.close()


def test_what_came_for_a_request_that_is_over_is_told_when_another_names_it(tmp_path: Path) -> None:
    engine, text = restarted(tmp_path)
    assert engine.events is not None
    gone, asked = anew(text, "gone"), anew(text, "asked")
    engine.side.arrive(gone)
    engine.side.finish(gone)
    engine.settle()
    engine._hear_events()
    nameless, whole = engine.events.num_nameless, (asked.num_prompt_tokens - 1) // SIZE
    assert not engine.published and nameless == whole > 0
    engine.side.arrive(asked)
    engine._hear_events()
    assert engine.published == {(0, name) for name in asked.block_hashes[:whole]} and not engine.events.num_nameless
    engine.side.finish(asked)
    engine.nothing_is_held()
    engine.side.close()


def test_what_goes_down_to_the_disk_is_told_as_removed(tmp_path: Path) -> None:
    engine, text = restarted(tmp_path)
    engine.own = 0.0
    engine.run([anew(text, "again")])
    names = {(0, name) for name in text.block_hashes[: (text.num_prompt_tokens - 1) // SIZE]}
    assert names <= engine.published
    rng = random.Random(9)
    others = [[rng.randrange(50) for _ in range(5 * SIZE)] for _ in range(12)]
    engine.run([ToyRequest(f"other {nth}", one, len(one), max_tokens=1) for nth, one in enumerate(others)])
    assert not names <= engine.published
    engine.run([anew(text, "once more")])
    assert names <= engine.published and totals(engine)["disk_read"] > len(names)
    engine.side.close()


def test_what_is_named_late_is_told_in_runs_without_gaps() -> None:
    """Blocks came for nobody, one between them did not: whoever names them all is told of two runs."""
    engine, asked = ToyEngine(0, hybrid=False), requests(random.Random(4), 1)[0]
    assert engine.events is not None and asked.num_prompt_tokens >= 4 * SIZE
    tokens = np.array(asked.all_token_ids[: 4 * SIZE], np.int32)
    request = Request("came", tokens)
    writer = engine.cache.writer(request, tier=HOST)
    assert isinstance(writer, Writer)
    with writer:
        writer.written(4 * SIZE, skip={0: [1]})
    assert engine.events.take() == [] and engine.events.num_nameless == 3
    engine.events.learn(BlockNames(asked), tokens, request)
    names = asked.block_hashes
    assert [(one.hashes, one.parent) for one in engine.events.take() if isinstance(one, StoredBlocks)] == [
        ((names[0],), None),
        ((names[2], names[3]), names[1]),
    ]
