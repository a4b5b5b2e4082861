"""Engines whose pages no link can address, without a GPU: the same staging, over memory that is kept apart."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

from quire.engine.disagg import peer as peer_module  # noqa: E402
from quire.engine.disagg.peer import Peer  # noqa: E402
from quire.engine.disagg.staging import AddressablePages, addressable, slots_for  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.sampling.params import Sampling  # noqa: E402
from quire.tiers import ArenaTier  # noqa: E402
from quire.transfer import CacheView, Key, Limits, StagedView  # noqa: E402

from ...effort import slow  # noqa: E402
from .. import families  # noqa: E402
from ..reference import Reference, assert_same  # noqa: E402
from ..steps import reference_of  # noqa: E402
from .test_peer import drive, open_peer, words  # noqa: E402

LONG = Limits(transfer=50.0, lease=50.0)  # whoever waits for one of these fails the test


@pytest.fixture(params=families.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_same_over(there: Peer, here: Peer, reference: Reference) -> None:
    """Twelve prompts, more than memory holds at once, some cancelled: all others come, and nothing is left staged."""
    asks = []
    for nth in range(12):
        prompt, sampling = words(nth % 3, 20 + 9 * nth) + words(nth, 6), Sampling(max_tokens=8)
        run = here.decode(Key(f"r{nth}"), prompt, sampling, source=there.link.address, order=True)
        if nth % 5 == 4:
            here.engine.cancel(run)
        else:
            asks.append((prompt, sampling, run))
    drive(there, here)
    for prompt, sampling, run in asks:
        assert run.error is None and not run.fallback and run.received > 0, run.fallback
        assert_same(reference, prompt, sampling, [run.answers[0].tokens])
    for one in (there, here):
        view = one.endpoint._registry.view
        if isinstance(view, StagedView):
            assert not any(view.num_used(group) for group in range(len(view.shape().groups)))
        one.engine.close()


@pytest.mark.parametrize(
    ("sides", "prompts"),
    [
        ("both", 1),
        ("there", 1),
        ("here", 4),
        slow("both", 4),
        slow("there", 4),
        slow("here", 1),
    ],
)
def test_tokens_are_those_of_one_engine(name: str, sides: str, prompts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room to stage one prompt or four; who finds none waits, and nobody falls back or hangs."""

    def apart(view: CacheView, engine: Engine, _: int) -> AddressablePages:
        memory = [np.zeros((slots, group.page_bytes), np.uint8) for slots, group in slots_for(view, engine, prompts)]
        staged = StagedView(view, engine.pages.device_tier, ArenaTier.over("staging", memory))
        return AddressablePages(staged, memory)

    monkeypatch.setattr(peer_module, "addressable", apart if sides != "here" else addressable)
    there = open_peer(name, pages=40, serve=True, limits=LONG)
    monkeypatch.setattr(peer_module, "addressable", apart if sides != "there" else addressable)
    here = open_peer(name, pages=40, limits=LONG)
    assert_same_over(there, here, reference_of(name))
