"""API keys: who has none is refused; tenants share nothing, and cannot tell from anything what the others have sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quire import Cache, CacheConfig, InputError, QuireError, Request, Scope, TierConfig
from quire.engine import Engine
from quire.engine.step.runs.branch import Run
from quire.serve import ApiKeys
from quire.serve.http.auth import NO_TENANT, scope_of

from .rig import HELLO, Serving, serving, tiny_model

ALICE, BOB, CAROL = "sk-alice-0123456789", "sk-bob-0123456789ab", "sk-alice-second-key-"
LINES = ["# ours", "", f"alice {ALICE}", f"bob {BOB}", f"  alice   {CAROL}  "]
SECRET = "The number of the account is 4711, and nobody else may know that it was ever said here."


@pytest.fixture(scope="module")
def keyed() -> Iterator[Serving]:
    with serving(keys=ApiKeys(LINES)) as made:
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(server: Serving, key: str, prompt: str = SECRET, **fields: Any) -> Any:
    got = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}, **bearer(key))
    assert got.status == 200, got.data
    return got.json


def cached(server: Serving, key: str, prompt: str = SECRET, **fields: Any) -> int:
    found: int = ask(server, key, prompt, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/models/tiny"])
@pytest.mark.parametrize(
    "headers", [{}, bearer("sk-nobody-0123456789"), {"Authorization": ALICE}, {"Authorization": f"Basic {ALICE}"}]
)
def test_without_a_key_nothing_is_told(keyed: Serving, path: str, headers: dict[str, str]) -> None:
    got = keyed.get(path, **headers)
    assert got.status == 401 and got.error["code"] == "invalid_api_key" and got.headers["www-authenticate"] == "Bearer"
    assert got.error["type"] == "authentication_error" and ALICE not in got.data.decode()


def test_every_way_in_asks_for_a_key_but_those_that_tell_nothing(keyed: Serving) -> None:
    paths = keyed.get("/openapi.json").json["paths"]
    assert len(paths) == 11
    for path, methods in paths.items():
        [method] = methods
        status = keyed.ask(method.upper(), path, HELLO if method == "post" else None).status
        assert status == (200 if path in ("/health", "/ready", "/version") else 401), path


def test_a_key_opens(keyed: Serving) -> None:
    for key in (ALICE, BOB, CAROL):
        assert keyed.get("/v1/models", **bearer(key)).status == 200
    assert keyed.get("/v1/models", Authorization=f"bearer  {ALICE} ").status == 200


@pytest.mark.parametrize(
    ("lines", "fact"),
    [
        ([], "there is no key in it"),
        (["short"], "its key has 5 characters"),
        (["a b sk-0123456789abcdef"], "what stands before the key is not a tenant"),
        (["a:b sk-0123456789abcdef"], "what stands before the key is not a tenant"),
        (["sk-0123456789abcdef", "x sk-0123456789abcdef"], "its key stands before it"),
        (["sk-0123456789abcdefü"], "visible ASCII"),
        ([f"sk-0123456789abcdef{place}" for place in range(1025)], "it has 1025 keys"),
    ],
)
def test_what_is_no_list_of_keys(lines: list[str], fact: str) -> None:
    with pytest.raises(InputError, match=re.escape(fact)) as told:
        ApiKeys(lines)
    assert "0123456789" not in str(told.value), "a key is never shown"


def test_keys_come_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n".join(LINES), encoding="utf-8")
    for keys in (ApiKeys.of_file(tmp_path / "keys"), ApiKeys.of_environment(f"alice {ALICE},bob {BOB}")):
        assert keys.tenant(f"Bearer {ALICE}".encode()) == "alice" and keys.tenant(f"Bearer {BOB}".encode()) == "bob"
        assert keys.tenant(b"Bearer " + b"x" * 100_000) is None and keys.tenant(None) is None
        assert ALICE not in repr(keys) and "2 tenants" in repr(keys)
    with pytest.raises(QuireError):
        ApiKeys.of_file(tmp_path / "none")
    alone = ApiKeys([ALICE, BOB])
    assert alone.tenant(f"Bearer {ALICE}".encode()) != alone.tenant(f"Bearer {BOB}".encode())
    assert ALICE not in str(alone.tenant(f"Bearer {ALICE}".encode()))


def test_no_tenant_can_write_anothers_scope() -> None:
    assert scope_of(NO_TENANT, None) == Scope() and scope_of(NO_TENANT, "s") == Scope(salt="s")
    scopes = [scope_of("a", None), scope_of("b", None), scope_of("a", "b:"), scope_of("b", "a"), scope_of("a", "b")]
    assert len({scope.key for scope in scopes}) == len(scopes)


def test_forgetting_a_tenant_takes_its_scopes_one_by_one() -> None:
    """As the docs say: a salt is compared whole."""
    plain, salted = scope_of("alice", None), scope_of("alice", "s")
    assert (plain, salted) == (Scope(salt="alice:"), Scope(salt="alice:s"))
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4))
    for number, scope in enumerate((plain, salted)):
        batch = cache.add_sequence_batch([Request(number, np.arange(8, dtype=np.int32), scope)])
        cache.commit(batch.sequences)
        cache.release(batch.sequences[0])
    assert [cache.forget(scope) for scope in (Scope(salt="alice"), plain, plain, salted)] == [0, 2, 0, 2]


# -- tenants -----------------------------------------------------------------------------------------------------------


def test_tenants_share_nothing_and_keys_of_one_share_all(keyed: Serving) -> None:
    assert cached(keyed, ALICE) == 0
    assert cached(keyed, ALICE) > 64 and cached(keyed, CAROL) > 64, "a second key of the same tenant"
    assert cached(keyed, BOB) == 0, "another tenant"
    assert cached(keyed, ALICE, cache_salt="x") == 0, "a salt divides a tenant's own"
    assert cached(keyed, BOB, cache_salt="x") == 0, "and is the tenant's own"


def numbers(server: Serving) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """/metrics, without what says how long something took."""
    text = server.get("/metrics", **bearer(ALICE)).data.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in samples
        if "second" not in sample.name and not sample.name.endswith("_created")
    }


def as_alice_sees_it(said_by_bob: str) -> tuple[Any, ...]:
    """All that Alice can see of a server on which Bob has said something before her."""
    with serving(tiny_model(), keys=ApiKeys(LINES), sizes={"events": True}) as server:
        ask(server, BOB, said_by_bob)
        got = [ask(server, ALICE), ask(server, ALICE)]
        for one in got:
            del one["id"], one["created"]
        server.llm.regret().report()  # or it is told when its thread has had its turn
        steps, events = server.llm.loop.call(seen_between_steps)  # an answer is whole before its step is counted
        return got, numbers(server), steps, events


def seen_between_steps(engine: Engine) -> tuple[tuple[int, int, int], int]:
    """What was computed, and how many events there were."""
    stats = engine.stats
    return (stats.num_steps, stats.num_tokens, stats.num_admitted), len(engine.cache.take_events())


def test_alice_cannot_tell_what_bob_has_said() -> None:
    """The same hits, numbers, steps and computed tokens (hence the same time) whether it was her prompt or another."""
    other = "".join(reversed(SECRET))
    same, another = as_alice_sees_it(SECRET), as_alice_sees_it(other)
    assert same[0] == another[0] and same[2:] == another[2:]
    assert same[1] == another[1] and len(same[1]) > 60
    assert not any("other_scope" in str(key) for key in same[1])


# -- turns -------------------------------------------------------------------------------------------------------------


class RunWatch:
    """Takes part in every step of an engine, and keeps the runs that were inside."""

    num_open = 0

    def __init__(self, engine: Engine) -> None:
        self.engine, self.runs = engine, dict[object, Run]()
        engine.participants.append(self)

    def step(self) -> None:
        self.runs |= self.engine.runs

    def close(self) -> bool:
        return True


@pytest.mark.parametrize(("keys", "tenant", "salt"), [(ApiKeys(LINES), "alice", "alice:"), (None, None, None)])
def test_a_tenant_takes_turns_and_keeps_its_scope(keys: ApiKeys | None, tenant: str | None, salt: str | None) -> None:
    """The engine knows whose a request is; what keeps pages apart is the salt, as it was. Without keys all prompts of
    one request take turns together.
    """
    body = {"prompt": ["one", "two"], "max_tokens": 1, "temperature": 0}
    with serving(keys=keys) as server:
        watch = RunWatch(server.llm.loop.engine)
        assert server.post("/v1/completions", body, **bearer(ALICE)).status == 200
    runs = list(watch.runs.values())
    assert [(run.request.tenant, run.request.scope) for run in runs] == [(tenant, Scope(salt=salt))] * 2
    assert runs[0].tenant.key == runs[1].tenant.key
