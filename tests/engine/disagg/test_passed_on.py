"""Hints go with a prompt to the peer that computes it: its session, and when its text comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
msgspec = pytest.importorskip("msgspec")

from quire import InputError, Scope  # noqa: E402
from quire.engine.disagg import prefill_orders as orders  # noqa: E402
from quire.engine.disagg.peer import Peer  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.engine.step.runs.page_hints import PageHints  # noqa: E402
from quire.transfer import Key  # noqa: E402

from ..endings import endings_of  # noqa: E402
from .test_peer import drive, open_peer, words  # noqa: E402

TOKENS = np.array([1, 2, 3], np.int32)


@pytest.fixture(scope="module")
def peers() -> Iterator[tuple[Peer, Peer]]:
    there, here = open_peer("llama", serve=True), open_peer("llama")
    yield there, here
    for peer in (there, here):
        peer.engine.close()


def is_call(text: str) -> bool:
    return True


def test_both_sides_hear_of_the_session_and_of_what_the_caller_says(peers: tuple[Peer, Peer]) -> None:
    there, here = peers
    asked = [
        (PageHints(session="talk", back="never"), ("talk", "never"), ("talk", "never")),
        (PageHints(session="talk"), ("talk", "later"), ("talk", None)),  # cut short by max_tokens here
        (PageHints(calls_tool=is_call), (None, "soon"), (None, None)),  # whoever has tools mostly calls one
    ]
    for nth, (hints, computed, decoded) in enumerate(asked):
        with endings_of(there.engine.cache) as far, endings_of(here.engine.cache) as near:
            given: dict[str, Any] = {"session": hints.session, "back": hints.back, "calls_tool": hints.calls_tool}
            sampling = Sampling(max_tokens=3, ignore_eos=True)
            source = there.link.address
            run = here.decode(Key(f"k{nth}"), words(nth, 30), sampling, source=source, order=True, **given)
            drive(there, here)
            assert run.error is None and not run.fallback
        kept = [one for one in far if one.store]
        assert [(one.session, one.back) for one in kept] == [computed]
        assert [(one.session, one.back) for one in near if one.store] == [decoded]


def test_an_order_of_an_older_peer_is_understood_and_a_longer_one_by_it() -> None:
    hints = PageHints(session="talk", back="soon", resume_points=[1, 2])
    body = orders.pack(TOKENS, Sampling(), 0, Scope(), None, hints)
    order = orders.unpack(body)
    assert (order.session, order.back, order.resume_points) == ("talk", "soon", (1, 2))
    fields = msgspec.msgpack.decode(body)
    older = orders.unpack(msgspec.msgpack.encode(fields[:-3]))
    assert (older.session, older.back) == (None, None) and older.tokens.tolist() == [1, 2, 3]
    older = orders.unpack(msgspec.msgpack.encode(fields[:-1]))
    assert (older.back, older.resume_points) == ("soon", ())
    assert orders.unpack(msgspec.msgpack.encode([*fields, "news"])).back == "soon"


def test_a_peer_is_told_where_others_may_go_on(peers: tuple[Peer, Peer]) -> None:
    there, here = peers
    with endings_of(there.engine.cache) as far, endings_of(here.engine.cache) as near:
        given: dict[str, Any] = {"source": there.link.address, "order": True, "resume_points": [24, 8]}
        run = here.decode(Key("points"), words(9, 30), Sampling(max_tokens=2, ignore_eos=True), **given)
        drive(there, here)
        assert run.error is None and not run.fallback
    assert [one.resume_points for one in (*far, *near) if one.store] == [(8, 24), (8, 24)]


@pytest.mark.parametrize("points", [[31], [0], ["8"], 8, [1 << 70]])
def test_points_that_are_none_are_refused_before_anything_is_ordered(peers: tuple[Peer, Peer], points: Any) -> None:
    there, here = peers
    with pytest.raises(InputError, match="resume"):
        here.decode(Key("k"), words(1, 30), Sampling(), source=there.link.address, order=True, resume_points=points)
    assert not here.num_open


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (-2, "sooner"), (-3, "s" * 257), (-3, ""), (-2, 3), (-1, 3), (-1, ["a"]), (-1, [0]), (-1, [1 << 40]),
        (-1, [1] * 65),
    ],
)  # fmt: skip
def test_what_a_peer_may_not_say_is_refused(place: int, value: object) -> None:
    fields = msgspec.msgpack.decode(orders.pack(TOKENS, Sampling(), 0, Scope()))
    fields[place] = value
    with pytest.raises(InputError, match="a prompt from a peer"):
        orders.unpack(msgspec.msgpack.encode(fields))
