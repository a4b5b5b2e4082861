"""What makes requests of vLLM share pages or not, and what a request may carry that nobody should have sent."""

from __future__ import annotations

from typing import Any

import pytest

from quire.integrations.vllm.common.request_identity import points_of
from tests.integrations.test_vllm_contract import ask, image, kept, run, stored
from tests.integrations.toy_engine import ToyEngine


def test_what_lies_over_each_other_is_told_apart_by_all_of_it() -> None:
    """As the sound of a clip whose tokens are among those of its pictures: two items over the same tokens."""
    engine = ToyEngine(0, hybrid=False)
    clips = {
        "clip": [image(4, 12, "pictures"), image(4, 12, "sound")],
        "same": [image(4, 12, "sound"), image(4, 12, "pictures")],
        "other sound": [image(4, 12, "pictures"), image(4, 12, "noise")],
        "no sound": [image(4, 12, "pictures")],
        "later": [image(4, 12, "pictures"), image(6, 10, "sound")],
        "from elsewhere": [image(4, 12, "\ud800"), image(4, 0, "sound"), image(30, 4, "sound")],
    }
    found = {}
    for name, features in clips.items():
        request = ask(name, mm_features=features)
        engine.side.arrive(request)
        found[name] = engine.side.look(request, 0)
        request.tables = [list(range(1, 7))]
        engine.side.place(request, request.tables, 0)
        engine.side.hear(run(engine, engine.side.order({name: 21}, (), lambda _: request.tables)))  # noqa: B023
        engine.side.finish(request)
    assert found == {"clip": 0, "same": 20, "other sound": 4, "no sound": 4, "later": 4, "from elsewhere": 4}
    engine.nothing_is_held()


POINTS = ({"quire": {"resume_points": "4"}}, {"quire": {"resume_points": [0, 8]}})


@pytest.mark.parametrize(
    "params", [True, 7, "quire", ["quire"], [], {"quire": 7}, {"quire": {3: 4}}, *POINTS], ids=repr
)
def test_params_that_are_none_stop_nobody(params: Any) -> None:
    engine, request = ToyEngine(0, hybrid=False), ask("odd", kv_transfer_params=params)
    engine.side.arrive(request)
    engine.side.hear(run(engine, stored(engine, request)))
    engine.side.finish(request)
    assert kept(engine) == 20


def test_resume_points_that_lie_in_the_prompt_are_named() -> None:
    many = list(range(100, 0, -1))
    for given, named in (([8, 4, 8, 400], (4, 8)), ([], ()), (many, tuple(range(37, 101))), ("4", ()), ([0], ())):
        request = ask("named", kv_transfer_params={"quire": {"resume_points": given}})
        assert points_of(request, 100) == named
    assert points_of(ask("none"), 100) == ()


def test_a_request_without_tokens_shares_nothing() -> None:
    engine, request = ToyEngine(0, hybrid=False), ask("empty", [])
    engine.side.arrive(request)
    assert stored(engine, request).stores == [] and engine.side.finish(request) is None
    engine.nothing_is_held()


def test_a_salt_that_is_no_text_shares_nothing() -> None:
    """vLLM takes whatever a client sends: half of a character can stand in no event and in no page's name."""
    engine, request = ToyEngine(0, hybrid=False), ask("half", cache_salt="a\ud800")
    engine.side.arrive(request)
    assert engine.side.look(request, 0) == 0
    assert stored(engine, request).stores == [] and engine.side.finish(request) is None
    assert kept(engine) == 0
    engine.nothing_is_held()
