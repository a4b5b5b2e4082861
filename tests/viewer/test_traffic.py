"""The made-up conversations: a cache that stays whole, the same every time; and the command that shows them."""

from __future__ import annotations

from itertools import count

import pytest

from quire import check
from quire.core.maps import live_ids
from quire.viewer import __main__ as command
from quire.viewer.made_up_traffic import MadeUpTraffic, demo_cache


def made(device_slots: int, host_slots: int, max_sequences: int) -> MadeUpTraffic:
    """Traffic by a clock of its own: the order goes by ages, and a busy machine makes others of them."""
    ticks = count()
    cache = demo_cache(device_slots, host_slots, max_sequences, clock=lambda: next(ticks) * 0.001)
    return MadeUpTraffic(cache, users=20, seed=5)


def test_the_cache_stays_whole_and_nobody_starves() -> None:
    traffic = made(1000, 1000, 16)
    seen: list[int] = []
    for _ in range(400):
        traffic.step()
        seen += [int(str(sequence.id)) for sequence in traffic._running]
    check(traffic.cache)
    counts = traffic.cache.stats()
    assert counts.reused and counts.missed and counts.offloaded and counts.onboarded
    oldest = min(int(str(id)) for id in [*(request.id for request in traffic.waiting()), *live_ids(traffic.cache)])
    assert len(set(seen)) > 20 and oldest > 3


def test_what_never_fits_is_sent_away() -> None:
    traffic = made(80, 80, 8)
    for _ in range(60):
        traffic.step()
    assert not traffic.waiting() or traffic.cache.num_sequences


def test_it_is_the_same_every_time() -> None:
    first, second = (made(300, 200, 8) for _ in range(2))
    assert [first.step() for _ in range(60)] == [second.step() for _ in range(60)]


def test_the_command_says_where_the_page_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--port", "0", "--steps", "2", "--step", "0", "--slots", "100"]) == 0
    assert capsys.readouterr().out.startswith("open http://127.0.0.1:")
    assert command.main(["--port", "99999", "--steps", "0"]) == 2
    assert "99999" in capsys.readouterr().err
