"""Hints under vLLM: how a request finished, and what it asks for, is told to the cache once its pages are stored."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire.integrations.vllm.common.request_hints import back_of, session_of
from quire.integrations.vllm.reports.request_recording import RequestRecording
from quire.integrations.vllm.requests import session_ends
from quire.integrations.vllm.requests.session_ends import SessionEnd, SessionEnds, num_equal
from quire.trace.read.trace import read_trace
from tests.integrations.test_vllm_contract import PROMPT, ask, image, run, stored
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import SIZE, ToyRequest

FinishReason = IntEnum("FinishReason", "STOP LENGTH ABORT ERROR", start=0)  # as vLLM's


def finished(request: ToyRequest, reason: str) -> ToyRequest:
    """As vLLM's scheduler leaves it."""
    request.get_finished_reason = lambda: FinishReason[reason]  # type: ignore[attr-defined]
    return request


def params(**given: Any) -> dict[str, Any]:
    return {"kv_transfer_params": {"quire": given}}


def hints(*actions: tuple[str, Any], version: str = "1.0") -> Any:
    """An envelope of vLLM 0.33."""
    made = [SimpleNamespace(action_type=kind, action_version=version, payload=payload) for kind, payload in actions]
    return SimpleNamespace(protocol_version="0.1", message_id="m", actions=made)


def serve(engine: ToyEngine, request: ToyRequest, reason: str = "STOP") -> None:
    """From its arrival to its end; all whole blocks are stored, and vLLM loads none."""
    engine.side.arrive(request)
    engine.side.look(request, 0)
    request.tables = [list(range(1, 2 + request.num_tokens // SIZE))]
    engine.side.place(request, request.tables, 0)
    orders = engine.side.order({request.request_id: request.num_tokens}, (), lambda _: request.tables)
    engine.side.hear(run(engine, orders))
    engine.side.finish(finished(request, reason))


def told(engine: ToyEngine) -> tuple[int, ...]:
    """Pages that were hinted: soon, later, never."""
    return engine.cache.stats(0).hinted


@pytest.mark.parametrize(
    ("reason", "given", "pages"),
    [
        ("STOP", {}, (0, 5, 0)),
        ("LENGTH", {}, (0, 0, 0)),
        ("ABORT", {}, (0, 0, 0)),
        ("STOP", params(back="soon"), (5, 0, 0)),
        ("ABORT", params(back="never"), (0, 0, 5)),
        ("LENGTH", params(back="later"), (0, 5, 0)),
        ("STOP", params(back="sooner"), (0, 0, 0)),
    ],
)
def test_the_finish_or_the_caller_says_when_it_comes_back(reason: str, given: Any, pages: tuple[int, ...]) -> None:
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("one", **given), reason)
    assert told(engine) == pages
    assert engine.side.counts.take()["counters"].get("hinted_pages", 0) == sum(pages)
    engine.nothing_is_held()


def test_a_hint_waits_until_all_is_stored() -> None:
    """The request is over before its copies are: pages that cannot be found cannot be spoken of."""
    engine, request = ToyEngine(0, hybrid=False), ask("one")
    engine.side.arrive(request)
    orders = stored(engine, request)
    engine.side.finish(finished(request, "STOP"))
    assert told(engine) == (0, 0, 0)
    engine.side.hear(run(engine, orders))
    assert told(engine) == (0, 5, 0)
    engine.nothing_is_held()


def test_text_that_others_had_stored_before_is_not_spoken_of() -> None:
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("system"), "LENGTH")
    serve(engine, ask("once", [*PROMPT[:16], *range(50, 62)], **params(back="never")))
    assert told(engine) == (0, 0, 3)


def test_one_that_is_preempted_is_not_over() -> None:
    engine, request = ToyEngine(0, hybrid=False), finished(ask("one", **params(back="soon")), "STOP")
    engine.side.arrive(request)
    engine.side.hear(run(engine, stored(engine, request)))
    engine.side.order({}, ["one"], lambda _: None)
    assert told(engine) == (0, 0, 0)


def test_images_are_left_out() -> None:
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("one", mm_features=[image(4, 4, "cat")], **params(session="s")))
    assert told(engine) == (0, 0, 0) and len(engine.side.futures.ends) == 0


@pytest.mark.parametrize("salt", [None, "other"])
def test_what_a_session_leaves_behind_goes_first(salt: str | None) -> None:
    """Its answer is written anew: the old one, behind what both have in common, is nobody's. Another scope's is."""
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("one", [*PROMPT[:12], *range(50, 62)], **params(session="talk")), "LENGTH")
    engine.side.arrive(ask("two", [*PROMPT[:12], *range(70, 82)], cache_salt=salt, **params(session="talk")))
    left = 0 if salt else 3
    assert told(engine) == (0, 0, left)
    assert engine.side.counts.take()["counters"].get("superseded_pages", 0) == left


def test_a_session_that_goes_on_leaves_nothing_behind_and_ends_as_a_whole() -> None:
    engine, text = ToyEngine(0, hybrid=False), [*PROMPT[:12], *range(50, 62)]
    serve(engine, ask("one", text, **params(session="talk")), "LENGTH")
    serve(engine, ask("two", [*text, *range(70, 78)], **params(session="talk")), "LENGTH")
    assert told(engine) == (0, 0, 0)
    serve(engine, ask("last", [*text, *range(70, 82)], **params(session="talk", back="never")))
    assert told(engine) == (0, 0, 9) and len(engine.side.futures.ends) == 0


def test_new_weights_forget_all_sessions() -> None:
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("one", **params(session="talk")))
    assert len(engine.side.futures.ends) == 1
    engine.side.reset()
    assert len(engine.side.futures.ends) == 0


@pytest.mark.parametrize(
    ("envelope", "session", "back"),
    [
        (None, None, "later"),
        (hints(("quire.hint", {"session": "s", "back": "soon"})), "s", "soon"),
        (hints(("quire.hint", {"session": "s"}), ("quire.hint", {"back": "never"})), "s", "never"),
        (hints(("kv.retain", {"scope": None, "directives": [{"priority": 0}]})), None, "never"),
        (hints(("kv.retain", {"directives": [{"priority": 0, "start": 64}]})), None, "later"),
        (hints(("kv.retain", {"directives": [{"priority": 0, "covers_output": True}]})), None, "later"),
        (hints(("kv.retain", {"directives": [{"priority": 50}]})), None, "later"),
        (hints(("kv.retain", {"directives": 7}), ("kv.fetch", {}), ("quire.hint", [1])), None, "later"),
        (hints(("quire.hint", {"session": 7, "back": "sooner"})), None, None),
        (hints(("quire.hint", {"back": "soon"}), version="2.0"), None, "later"),
        (SimpleNamespace(actions=7), None, "later"),
        ({"actions": []}, None, "later"),
    ],
)
def test_hints_of_a_later_vllm_are_read_where_they_are(envelope: Any, session: str | None, back: str | None) -> None:
    request = finished(ask("one"), "STOP")
    if envelope is not None:
        request.kv_hints = envelope  # type: ignore[attr-defined]
    assert session_of(request) == session and back_of(request) == back


@pytest.mark.parametrize(
    ("given", "own", "session"),
    [
        ({}, "vllm", "vllm"), (params(session="ours"), "vllm", "ours"), (params(session=7), "vllm", None),
        ({}, 7, None), ({}, "", None), ({}, "s" * 257, None), ({}, None, None),
    ],
)  # fmt: skip
def test_the_session_that_vllm_knows_counts_where_ours_is_not_given(given: Any, own: Any, session: str | None) -> None:
    request = ask("one", **given)
    request.session_id = own  # type: ignore[attr-defined]
    assert session_of(request) == session and back_of(request) is None  # it does not say how it finished


def test_sessions_that_are_idle_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_ends, "MOST_TOKENS", 10)
    monkeypatch.setattr(session_ends, "NAME_TOKENS", 0)
    ends = SessionEnds()
    for name, count in (("a", 4), ("b", 4), ("a", 5), ("c", 4), ("too long", 11)):
        ends.put((b"", name), SessionEnd(np.arange(count, dtype=np.int32), 0))
    assert len(ends) == 2 and ends.take((b"", "b")) is None
    left = ends.take((b"", "a"))
    assert left is not None and len(left.tokens) == 5 and ends.take((b"", "a")) is None and len(ends) == 1


def test_sessions_of_short_texts_take_no_more_memory_than_long_ones() -> None:
    ends = SessionEnds()
    most = session_ends.MOST_TOKENS // session_ends.NAME_TOKENS
    for number in range(most + 1000):
        ends.put((b"", f"{number}"), SessionEnd(np.zeros(16, np.int32), 0))
    assert most // 2 < len(ends) < most, "a name of 256 characters takes more than its 16 tokens"
    for number in range(most + 1000):
        ends.take((b"", f"{number}"))
    ends.put((b"", "long"), SessionEnd(np.zeros(session_ends.MOST_TOKENS - session_ends.NAME_TOKENS, np.int32), 0))
    assert len(ends) == 1, "what was taken has given its room back"


def test_texts_are_compared_up_to_where_they_part() -> None:
    one = np.array([1, 2, 3, 4], np.int32)
    for other, equal in (([1, 2, 3, 4, 5], 4), ([1, 2], 2), ([1, 2, 9, 4], 2), ([9], 0), ([], 0)):
        assert num_equal(one, np.array(other, np.int32)) == equal


def test_a_recording_says_where_a_prompt_was_interrupted(tmp_path: Path) -> None:
    engine = ToyEngine(0, hybrid=False)
    engine.side.recording = RequestRecording(str(tmp_path / "trace.jsonl"), SIZE)
    for name in ("first", "second"):
        request = ask(name, [*(len(name) + place for place in range(6)), *range(1000, 1400)])
        engine.side.arrive(request)
        engine.side.look(request, 0)
        request.all_token_ids += [1]
        engine.side.finish(finished(request, "STOP"))
    engine.side.close()
    first, second = (one.interrupted for one in read_trace(tmp_path / "trace.jsonl"))
    assert first is None and second is not None
    assert second.position == 0 and second.width + second.equal_after == 406 and second.equal_after > 340


def test_a_recording_has_sessions_and_ends(tmp_path: Path) -> None:
    engine = ToyEngine(0, hybrid=False)
    engine.side.recording = RequestRecording(str(tmp_path / "trace.jsonl"), SIZE)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("STOP", params(session="ann")), ("LENGTH", params(session="ann")), ("STOP", params(back="soon")),
        ("STOP", {**params(session="ann"), "cache_salt": "bob's"}), ("ABORT", {"prompt_embeds": object()}),
    ]  # fmt: skip
    for number, (reason, given) in enumerate(asked):
        request = ask(str(number), **given)
        engine.side.arrive(request)
        if "prompt_embeds" not in given:
            engine.side.look(request, 0)
        request.all_token_ids += [1, 2, 3]
        engine.side.finish(finished(request, reason))
    engine.side.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert [(one.finish, one.back) for one in trace] == [
        ("stop", "later"), ("length", None), ("stop", "soon"), ("stop", "later"), ("abort", None)
    ]  # fmt: skip
    first, second, third, salted, embeds = (one.session for one in trace)
    assert first == second is not None and third is embeds is None and salted not in (None, first)
