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
    body = orders.pack(TOKENS, Sampling(), 0, Scope(), None, PageHints(session="talk", back="soon"))
    order = orders.unpack(body)
    assert (order.session, order.back) == ("talk", "soon")
    fields = msgspec.msgpack.decode(body)
    older = orders.unpack(msgspec.msgpack.encode(fields[:-2]))
    assert (older.session, older.back) == (None, None) and older.tokens.tolist() == [1, 2, 3]
    assert orders.unpack(msgspec.msgpack.encode([*fields, "news"])).back == "soon"


@pytest.mark.parametrize(("place", "value"), [(-1, "sooner"), (-2, "s" * 257), (-2, ""), (-1, 3)])
def test_what_a_peer_may_not_say_is_refused(place: int, value: object) -> None:
    fields = msgspec.msgpack.decode(orders.pack(TOKENS, Sampling(), 0, Scope()))
    fields[place] = value
    with pytest.raises(InputError, match="a prompt from a peer"):
        orders.unpack(msgspec.msgpack.encode(fields))
