"""The page's own server: paths, keys, headers, and clients that misbehave."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import quire
from quire import Cache, CacheConfig, InputError, Request, TierConfig, Viewer
from quire.viewer import page_server as server
from quire.viewer.cells import COLOURS
from quire.viewer.page_routes import FILES, PATHS, RECEIPT, SNAPSHOT
from quire.viewer.sampler import FASTEST, SLOWEST, Sampler
from quire.viewer.snapshot import Snapshots
from quire.viewer.source import CacheSource

KEY = "a-key-for-operators-only"
PATIENCE = 120.0


def small() -> Cache:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4, receipts=True))
    batch = cache.add_sequence_batch([Request("one", np.arange(9, dtype=np.int32))])
    cache.commit(batch.sequences)
    return cache


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(small()) as made:
        yield made


@pytest.fixture
def keyed() -> Iterator[Viewer]:
    with Viewer(small(), key=KEY) as made:
        yield made


def address(viewer: Viewer) -> tuple[str, int]:
    host, port = viewer.url.removeprefix("http://").rstrip("/").split(":")
    return host, int(port)


def get(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address(viewer), timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def test_it_is_a_public_name() -> None:
    assert quire.Viewer is Viewer and "Viewer" in dir(quire)


def test_every_path_answers(viewer: Viewer) -> None:
    for path, (_, kind) in FILES.items():
        status, headers, body = get(viewer, path)
        assert status == 200 and headers["content-type"] == kind and body
        assert get(viewer, path, "HEAD")[2] == b""
    status, headers, body = get(viewer, SNAPSHOT)
    assert status == 200 and headers["content-type"] == "application/json"
    assert json.loads(body)["requests"]["running"] == 1
    assert get(viewer, "/viewer/../../etc/passwd")[0] == get(viewer, "/favicon.ico")[0] == 404
    assert get(viewer, "/", "POST")[0] == 501


def test_a_query_of_too_many_fields_is_refused_in_words(viewer: Viewer) -> None:
    for path in (SNAPSHOT, RECEIPT):
        status, _, body = get(viewer, f"{path}?{'&' * 9}")
        assert status == 400 and json.loads(body)["error"]["message"] == "the query has more than 8 fields"


def test_every_answer_forbids_scripts_from_elsewhere(viewer: Viewer) -> None:
    for path in [*PATHS, "/nothing"]:
        headers = get(viewer, path)[1]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert headers["server"] == "quire" and "access-control-allow-origin" not in headers


def test_the_page_has_nothing_from_elsewhere_and_no_markup_from_data(viewer: Viewer) -> None:
    for path in FILES:
        text = get(viewer, path)[2].decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", " onclick", " style="):
            assert word not in text, (path, word)


def test_what_is_asked_wrongly_is_told(viewer: Viewer) -> None:
    assert get(viewer, f"{SNAPSHOT}?colour=pink")[0] == 400
    assert get(viewer, f"{RECEIPT}?request=9999")[0] == 404
    for number in ("", "-1", "1e3", "%D9%A1", "9" * 30):
        assert get(viewer, f"{RECEIPT}?request={number}")[0] == 400
    for colour in COLOURS:
        assert json.loads(get(viewer, f"{SNAPSHOT}?colour={colour}")[2])["colour"] == colour


def test_without_the_key_only_the_page_itself(keyed: Viewer) -> None:
    assert get(keyed, "/")[0] == get(keyed, "/viewer/page.js")[0] == 200
    for given in ("", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer ", "Bearer " + "x" * 5000):
        for path in (SNAPSHOT, f"{RECEIPT}?request=1"):
            status, headers, body = get(keyed, path, authorization=given)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and KEY.encode() not in body
    assert get(keyed, SNAPSHOT, authorization=f"Bearer {KEY}")[0] == 200
    told = json.loads(get(keyed, f"{RECEIPT}?request=1", authorization=f"Bearer {KEY}")[2])
    assert told["operator"] is True and told["id"] == "'one'"


def test_without_a_key_receipts_are_those_of_clients(viewer: Viewer) -> None:
    get(viewer, SNAPSHOT)
    told = json.loads(get(viewer, f"{RECEIPT}?request=1")[2])
    assert told["operator"] is False and "id" not in told and "tokens" not in told


def test_a_page_whose_name_leads_here_learns_nothing(viewer: Viewer) -> None:
    assert get(viewer, SNAPSHOT, host="evil.example")[0] == 403
    assert get(viewer, SNAPSHOT, host="localhost:1")[0] == get(viewer, SNAPSHOT, host="[::1]:80")[0] == 200


def test_misuse_is_told() -> None:
    cache = small()
    with pytest.raises(InputError, match="give it a key"):
        Viewer(cache, host="0.0.0.0")
    for key in ("short", "k" * 600, "with spaces in the key", "ключ-из-многих-букв"):
        with pytest.raises(InputError, match="the page's key"):
            Viewer(cache, key=key)
    with pytest.raises(InputError, match="it is not a Cache"):
        Viewer(None)  # type: ignore[arg-type]
    with Viewer(cache) as first, pytest.raises(InputError, match="free port"):
        Viewer(cache, port=address(first)[1])


def test_connections_are_bounded(viewer: Viewer) -> None:
    idle = [socket.create_connection(address(viewer), PATIENCE) for _ in range(server.MOST_CONNECTIONS)]
    for one in idle:  # each has been accepted, and keeps its place
        one.sendall(b"GET /viewer/icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert one.recv(12) == b"HTTP/1.1 200"
    with socket.create_connection(address(viewer), PATIENCE) as late:
        late.settimeout(PATIENCE)
        try:
            late.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert late.recv(10) == b""
        except ConnectionError:
            pass  # closed before it was read
    for one in idle:
        one.close()


def test_closing_ends_it() -> None:
    viewer = Viewer(small())
    where = address(viewer)
    kept = socket.create_connection(where, PATIENCE)
    kept.sendall(b"GET /viewer/icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert kept.recv(12) == b"HTTP/1.1 200"
    viewer.close()
    viewer.close()
    assert repr(viewer) == "Viewer(closed)"
    with pytest.raises(OSError):
        socket.create_connection(where, PATIENCE).close()
    while kept.recv(1 << 16):
        pass
    kept.close()


def test_steps_and_receipts_are_told() -> None:
    cache = Cache(CacheConfig((TierConfig("device", 16),), block_size=4, receipts=True))
    with Viewer(cache, name="mine") as viewer:
        for number in range(300):
            viewer.stepped(number, 0.002)
        viewer.stepped(7, {"schedule": 0.001, "model": 0.004})
        viewer.admitted(cache.add_sequence_batch([Request("one", np.arange(9, dtype=np.int32))]))
        told = json.loads(get(viewer, SNAPSHOT)[2])
    assert told["name"] == "mine" and len(told["steps"]) == 120
    assert told["steps"][-1][1:] == [7, {"schedule": 1.0, "model": 4.0}] and told["steps"][-2][2] == {"step": 2.0}
    assert told["reuse"]["tokens"] == 9


# -- how often ---------------------------------------------------------------------------------------------------------


class Watch:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def sampled() -> tuple[Sampler, Watch]:
    watch = Watch()
    return Sampler(Snapshots(CacheSource(small())), watch), watch


def body(sampler: Sampler, colour: Any = "state", **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(sampler.body(colour, **more))
    return told


def test_many_who_look_cost_as_much_as_one() -> None:
    sampler, watch = sampled()
    sampler.spent = 1e-9
    for _ in range(50):
        body(sampler)
    assert sampler.num_made == 1
    sampler.spent = 1e-9
    watch.now += FASTEST + 0.01
    body(sampler)
    assert sampler.num_made == 2


def test_the_pace_goes_by_what_it_costs() -> None:
    sampler, watch = sampled()
    first = body(sampler)
    sampler.spent = 0.009
    assert sampler.pace == pytest.approx(2.0) and first["pace"] >= FASTEST
    watch.now += 1.9
    body(sampler)
    assert sampler.num_made == 1
    watch.now += 0.2
    body(sampler)
    assert sampler.num_made == 2
    sampler.spent = 100.0
    assert sampler.pace == SLOWEST


def test_whoever_asks_for_all_colours_makes_each_seldom() -> None:
    sampler, watch = sampled()
    for colour in COLOURS:
        body(sampler, colour)
    sampler.spent = 1e-9
    made = sampler.num_made
    watch.now += 2 * FASTEST
    for colour in COLOURS:
        body(sampler, colour)
    assert made == sampler.num_made == 4
    watch.now += 2 * FASTEST + 0.01
    assert body(sampler)["pace"] == pytest.approx(4 * sampler.pace, abs=0.01) and sampler.num_made == 5


def test_the_history_is_bounded_and_comes_when_asked_for() -> None:
    sampler, watch = sampled()
    for _ in range(320):
        watch.now += SLOWEST
        assert "history" not in body(sampler)
    told = body(sampler, history=True)
    assert len(told["history"]) == 300 and told["history"][-1] == told["now"]
