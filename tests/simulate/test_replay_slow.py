"""Disks and shared stores in a replay: what comes back from below, by how much, and what slow reads and writes cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire import InputError, check
from quire.cli.simulate.replay_command import main as replay
from quire.cli.simulate.replay_options import parse_rate
from quire.cli.simulate.sweep_command import main as sweep
from quire.simulate.play.tally import ReplayResult
from quire.simulate.play.trace_player import Player
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.slow_pace import SlowPace
from quire.trace.read.trace import Trace, read_trace
from tests.trace.test_replay_trace import written

PAGE = 131072 * 16  # bytes of a block of 16 tokens
TIERS = (Memory("device", blocks=(10,)), Memory("host", blocks=(20,)), Memory("disk", blocks=(100,), slow=True))
DISK = ReplaySettings(tiers=TIERS, slow=SlowPace(), offload_min_priority=0)


def asked(name: str, at: float, tokens: int = 129) -> dict[str, Any]:
    """Eight blocks and a token that nobody shares."""
    return {"time_ms": at * 1000, "prompt": [[name, tokens - 1], [None, 1]], "output_tokens": 1}


@pytest.fixture
def comes_back(tmp_path: Path) -> Trace:
    """One prompt, four others that push it out of device and host, and the first again."""
    return read_trace(written(tmp_path, *(asked(name, 10.0 * nth) for nth, name in enumerate("abcdea"))))


def played(trace: Trace, settings: ReplaySettings) -> ReplayResult:
    player = Player(trace, settings, None)
    player.run()
    check(player.cache.inner)
    assert not player.cache.inner.background_plans() and not player.cache.inner.open_prefetches()
    return player.result(1.0)


def test_what_was_pushed_out_of_the_host_comes_back_from_the_disk(comes_back: Trace) -> None:
    without = played(comes_back, replace(DISK, tiers=TIERS[:2], slow=None))
    found = played(comes_back, DISK)
    assert without.tokens_saved == 0 and without.slow_tier == {}
    assert found.tokens_saved == 128 and found.hit_rate_by_tier == {"device": 0, "host": 0, "disk": 128 / 774}
    assert found.slow_tier["prefetches"] == 1 and found.slow_tier["read_bytes"] == 8 * PAGE
    assert found.slow_tier["written_bytes"] >= 40 * PAGE and found.slow_tier["pages_behind"] == 0
    wait = 0.0002 + 8 * PAGE / 3e9  # the last request waits for its pages, then they go up by the host's link
    assert found.slow_tier["prefetch_wait_ms"] == pytest.approx(1000 * wait, abs=0.001)
    assert found.to_json()["settings"]["slow_tier"]["read_bytes_per_second"] == 3e9


def test_a_request_waits_for_a_slow_disk_no_longer_than_its_bound(comes_back: Trace) -> None:
    found = played(comes_back, replace(DISK, slow=SlowPace(read=1e3, wait=2.0)))
    assert found.slow_tier["prefetches_late"] == 1 and found.slow_tier["prefetch_wait_ms"] == 2000
    assert found.tokens_saved == 0 and found.requests == 6
    assert found.model["ttft_ms"]["p99"] > 1900  # the one that waited
    assert max(found.model["ttft_ms"].values()) < 2100


def test_who_came_later_goes_first_while_pages_are_on_their_way(tmp_path: Path) -> None:
    lines = [*(asked(name, 10.0 * nth) for nth, name in enumerate("abcdea")), asked("z", 50.1)]
    trace = read_trace(written(tmp_path, *lines))
    found = played(trace, replace(DISK, slow=SlowPace(read=8 * PAGE / 1.0)))  # a second for those of the sixth
    assert found.tokens_saved == 128
    assert found.model["ttft_ms"]["p99"] < 1100 and found.model["ttft_ms"]["p50"] < 100


def test_who_finds_no_slots_beside_those_that_are_being_copied_waits_for_that(comes_back: Trace) -> None:
    found = played(comes_back, replace(DISK, slow=SlowPace(write=8 * PAGE / 30)))
    assert found.requests == 6 and found.refused == 0 and found.model["ttft_ms"]["p99"] > 5000


def test_pages_that_were_not_written_in_time_are_gone_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, *(asked(name, 1.0 * nth) for nth, name in enumerate("abcdefghija"))))
    tiers = (Memory("device", blocks=(40,)), *TIERS[1:])
    found = played(trace, replace(DISK, tiers=tiers, slow=SlowPace(write=8 * PAGE / 100)))
    assert found.slow_tier["pages_behind"] > 0 and found.hit_rate_by_tier["disk"] == 0


def test_the_same_disk_gives_the_same_answer(comes_back: Trace) -> None:
    timed = {"requests_per_second", "wall_requests_per_second", "cache_seconds", "wall_seconds"}
    one, other = (played(comes_back, DISK).to_json() for _ in range(2))
    assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}


def test_a_trace_with_many_who_wait_for_the_disk(tmp_path: Path) -> None:
    lines = [asked(f"{nth % 24}", nth // 4, 16 * (4 + nth % 5) + 1) for nth in range(96)]
    trace = read_trace(written(tmp_path, *lines))
    tiers = (Memory("device", blocks=(60,)), Memory("host", blocks=(60,)), Memory("disk", blocks=(400,), slow=True))
    settings = replace(DISK, tiers=tiers, slow=SlowPace(read=60 * PAGE))
    learned, found = played(trace, settings), played(trace, replace(settings, eviction="lru"))
    without = played(trace, replace(settings, eviction="lru", tiers=tiers[:2], slow=None))
    assert found.hit_rate > without.hit_rate + 0.3 and found.hit_rate_by_tier["disk"] > 0.3
    assert learned.hit_rate >= found.hit_rate  # more of it from device and host, and the disk has the rest
    assert found.hit_rate_by_tier["disk"] > learned.hit_rate_by_tier["disk"] > 0
    assert found.hit_rate == pytest.approx(sum(found.hit_rate_by_tier.values()))


def test_options_name_a_disk_or_a_shared_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(written(tmp_path, *(asked(name, 10.0 * nth) for nth, name in enumerate("abcdea"))))
    small = ["--device-blocks", "10", "--host-blocks", "20", "--offload-min-priority", "0", "--json"]
    for name in ("disk", "shared"):
        assert replay([path, *small, f"--{name}", "2GB", f"--{name}-read", "500MB/s", f"--{name}-latency", "3"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["hit_rate_by_tier"][name] == 128 / 774
        assert found["settings"]["slow_tier"]["read_bytes_per_second"] == 5e8
        assert found["settings"]["slow_tier"]["latency_ms"] == 3
    assert replay([path, *small, "--disk", "0"]) == 0
    assert "disk" not in json.loads(capsys.readouterr().out)["hit_rate_by_tier"]
    assert replay([path, *small, "--disk", "1GB", "--shared", "1GB"]) == 2
    assert "one tier that no step waits for" in capsys.readouterr().err
    assert replay([path, *small, "--disk", "1GB", "--disk-blocks", "7"]) == 2
    assert "both say how large" in capsys.readouterr().err
    assert sweep([path, *small, "--disk", "0,2GB", "--workers", "1"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["hit_rate"] for point in points] == [0, 128 / 774]


def test_rates_and_waits_that_are_none_are_refused() -> None:
    assert parse_rate("3GB/s") == 3e9 == parse_rate("3GB")
    wrong: list[dict[str, float]] = [{"read": 0.0}, {"wait": -1.0}, {"latency": float("inf")}]
    for numbers in wrong:
        with pytest.raises(InputError, match="slow tier"):
            SlowPace(**numbers)
    with pytest.raises(InputError, match="go together"):
        ReplaySettings(tiers=TIERS)
    with pytest.raises(InputError, match="go together"):
        ReplaySettings(slow=SlowPace())
