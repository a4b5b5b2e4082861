"""The OpenAPI document: schemathesis asks what it allows, and what it does not; nothing is answered with 500."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from quire.serve import ServeSettings
from quire.serve.protocol.openapi import document

from .rig import NAME, Serving

# schemathesis takes seconds to import, and every process of the tests reads this file
MISSING = "could not import 'schemathesis'"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason=MISSING)

POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
EXAMPLES = 5
KNOWN = {200, 400, 404, 413, 429}  # of a server without keys
BUSY = {"max_tokens": 2, "max_completion_tokens": 2, "n": 1}  # what would only take long


def cases(path: str, mode: str) -> Any:
    """Bodies as the document allows them (positive), or not (negative)."""
    import schemathesis
    from schemathesis.generation import GenerationMode

    schema = schemathesis.openapi.from_dict(document(ServeSettings(NAME)))
    return schema[path]["POST"].as_strategy(generation_mode=GenerationMode(mode))


def try_all(server: Serving, path: str, mode: str, examples: int) -> dict[int, int]:
    """How often each status came; every error has its form."""
    seen: dict[int, int] = {}

    @settings(
        max_examples=examples, deadline=None, derandomize=True, phases=[Phase.generate], database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases(path, mode))
    def ask(case: Any) -> None:
        body = case.body
        if isinstance(body, dict):
            body = {**body, **{name: value for name, value in BUSY.items() if body.get(name)}}
        try:
            data = json.dumps(body).encode()
        except (TypeError, ValueError):
            return  # no JSON: there are tests of that
        got = server.post(path, data)
        seen[got.status] = seen.get(got.status, 0) + 1
        assert got.status in KNOWN, (body, got.data)
        if got.status == 200 and isinstance(body, dict) and body.get("stream"):
            assert all("error" not in event for event in got.events), (body, got.data)
        elif got.status != 200:
            assert got.error["message"]

    ask()
    return seen


@pytest.mark.parametrize("path", POSTS)
def test_nothing_that_is_allowed_fails(server: Serving, path: str) -> None:
    seen = try_all(server, path, "positive", EXAMPLES)
    assert sum(seen.values()) >= EXAMPLES // 2
    server.until_idle()


@pytest.mark.parametrize("path", POSTS)
def test_what_is_not_allowed_is_refused(server: Serving, path: str) -> None:
    seen = try_all(server, path, "negative", EXAMPLES)
    assert seen.get(400, 0) > 0 and seen.get(200, 0) == 0, seen
    server.until_idle()


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTS)
def test_many_more(server: Serving, path: str) -> None:
    try_all(server, path, "positive", 1000)
    try_all(server, path, "negative", 1000)
    server.until_idle()
    assert server.get("/health").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_operation_answers_as_the_document_says(server: Serving, mode: str) -> None:
    """Each path of the served document, GETs too: status, content type and body are what it promises."""
    import schemathesis
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    url = f"http://127.0.0.1:{server.port}"
    schema: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
    tried: dict[str, int] = {}
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate], database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
        def ask(case: Any) -> None:
            if isinstance(case.body, dict):
                case.body = {**case.body, **{name: value for name, value in BUSY.items() if case.body.get(name)}}
            tried[case.operation.label] = tried.get(case.operation.label, 0) + 1
            case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance])  # 400: fields together

        try:
            ask()
        except Unsatisfiable:
            assert mode == "negative" and operation.method == "get"  # nothing of it can be wrong
    served = {
        f"{method.upper()} {path}" for path, one in document(ServeSettings(NAME))["paths"].items() for method in one
    }
    posts = {f"POST {path}" for path in POSTS}
    assert set(tried) == served if mode == "positive" else posts <= set(tried)
    server.until_idle()


def test_the_served_document_is_this_one(server: Serving) -> None:
    assert server.get("/openapi.json").json == json.loads(json.dumps(document(ServeSettings(NAME))))
