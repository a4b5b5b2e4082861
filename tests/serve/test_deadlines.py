"""Deadlines over HTTP: a field, a header, or the key file; a bound in the reply, or 429 with it."""

from __future__ import annotations

from typing import Any

import pytest

from quire import InputError
from quire.serve import ApiKeys
from quire.serve.http.auth import NO_TENANT

from .rig import Serving, serving, tiny_model

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789"
BOUND = "x-ttft-bound-ms"


def calibrate(server: Serving) -> None:
    """Until what steps cost is known."""
    for nth in range(40):
        assert server.complete(prompt=[65 + nth % 20] * (5 + nth), max_tokens=2).status == 200


def test_in_time_or_an_honest_no(server: Serving) -> None:
    calibrate(server)
    before = server.metric("quire:ttft_refused_total")
    got = server.complete(max_tokens=2, ttft_ms=3_000_000)
    assert got.status == 200 and 0 < int(got.headers[BOUND]) <= 3_000_000
    assert BOUND not in server.complete(max_tokens=2).headers
    events = server.complete(max_tokens=2, stream=True, prompt=["a", "b"], ttft_ms=3_000_000)
    assert events.status == 200 and int(events.headers[BOUND]) > 0 and events.events
    for asked in ({"ttft_ms": 0.001}, {"ttft_ms": 0.001, "stream": True}):
        late = server.complete(max_tokens=2, **asked)
        assert late.status == 429 and late.error["code"] == "too_late" and late.error["param"] == "ttft_ms"
        assert int(late.headers["retry-after"]) >= 1 and int(late.headers[BOUND]) >= 0
        assert "it may take" in late.error["message"]
    server.until_idle()
    assert server.metric("quire:ttft_refused_total") == before + 2
    assert server.metric("quire:ttft_bounds_total") >= 3 and server.metric("quire:ttft_calibrated") == 1


def test_a_header_says_it_and_the_field_comes_first(server: Serving) -> None:
    calibrate(server)
    body = {"prompt": "Once", "max_tokens": 1}
    path = "/v1/completions"
    assert server.post(path, body, x_ttft_ms="0.001").status == 429
    assert server.post(path, {**body, "ttft_ms": 3_000_000}, x_ttft_ms="0.001").status == 200
    for wrong in ("soon", "-5", "0", "99999999", "1e3"):
        got = server.post(path, body, x_ttft_ms=wrong)
        assert got.status == 400 and got.error["param"] == "x-ttft-ms", wrong


@pytest.mark.parametrize("ttft", [0, -1, 3_600_001, "2000"])
def test_what_is_no_time(server: Serving, ttft: Any) -> None:
    got = server.complete(ttft_ms=ttft)
    assert got.status == 400 and got.error["param"] == "ttft_ms"


def test_a_tenant_has_a_deadline_of_its_own() -> None:
    keys = ApiKeys([f"alice ttft_ms=1 {ALICE}", f"bob {BOB}"])
    with serving(keys=keys) as server:
        bob, alice = ({"authorization": f"Bearer {key}"} for key in (BOB, ALICE))
        for nth in range(40):
            body = {"prompt": [65] * (5 + nth), "max_tokens": 1}
            assert server.post("/v1/completions", body, **bob).status == 200
        body = {"prompt": list(range(70, 120)) * 6, "max_tokens": 1}
        assert server.post("/v1/completions", body, **alice).status == 429
        assert server.post("/v1/completions", {**body, "ttft_ms": 900_000}, **alice).status == 200
        assert server.post("/v1/completions", body, **bob).status == 200


def test_keys_with_deadlines() -> None:
    keys = ApiKeys([f"alice ttft_ms=2000 {ALICE}", f"alice ttft_ms=2000 {ALICE}2", f"bob {BOB}"])
    assert keys.has_deadlines and keys.ttft_of("alice") == 2.0
    assert keys.ttft_of("bob") is None is keys.ttft_of(NO_TENANT) and not ApiKeys([BOB]).has_deadlines
    wrong = ["alice ttft_ms=0", "alice ttft_ms=two", "alice ttft_ms=-1", "ttft_ms=5", "alice tttf_ms=5"]
    for line in wrong:
        with pytest.raises(InputError, match="line 1 of keys"):
            ApiKeys([f"{line} {ALICE}"])
    with pytest.raises(InputError, match="differs from a line before"):
        ApiKeys([f"alice ttft_ms=2000 {ALICE}", f"alice ttft_ms=3000 {ALICE}2"])


def test_where_deadlines_are_not_kept() -> None:
    with serving(tiny_model(), {"deadlines": None}) as server:
        got = server.complete(ttft_ms=1000)
        assert got.status == 400 and "keeps no deadlines" in got.error["message"]
        assert server.complete(max_tokens=1).status == 200
        assert not any(
            "ttft" in family.name for family in server.service.metrics.registry.collect() if "quire" in family.name
        )
    with (
        pytest.raises(InputError, match="ttft_ms in the key file"),
        serving(tiny_model(), {"deadlines": None}, keys=ApiKeys([f"alice ttft_ms=2000 {ALICE}"])),
    ):
        pass
