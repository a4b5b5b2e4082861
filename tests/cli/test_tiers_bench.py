"""quire tiers bench: what it measures and says, and what it leaves behind: nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire import InputError
from quire.cli import main as cli
from quire.tiers import Bytes
from quire.tiers.measure.measure import BATCHES, MeasureLoad, measure, steps_of
from quire.tiers.measure.places import DiskPlace, HostPlace, Place, StorePlace

LOAD = MeasureLoad(page_bytes=4096, pages=20, bytes_per_token=256.0, tokens_per_second=1000.0)


def test_every_place_is_measured_and_left_empty(tmp_path: Path) -> None:
    store = tmp_path / "store"
    places: list[Place] = [HostPlace(20, 4096), DiskPlace(str(tmp_path), 20, 4096), StorePlace(str(store))]
    told: list[int] = []
    for place in places:
        found = measure(place, LOAD, told.append)
        place.close()
        rates = (found.write, found.read, found.scattered)
        assert min(rates) > 0 and found.batch in BATCHES and found.first > 0
        assert found.tokens_per_second == found.scattered / 256
        assert found.room_tokens == (None if found.room is None else found.room // 256)
    assert sum(told) == steps_of(3)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class SlowPlace(HostPlace):
    """Memory that gives what it likes."""

    name = "slow"

    def read(self, numbers: Sequence[int], into: Sequence[Bytes]) -> None:
        for page in into:
            page[:] = 7


def test_wrong_bytes_are_told() -> None:
    with pytest.raises(InputError, match="other bytes"):
        measure(SlowPlace(20, 4096), LOAD)


def test_whether_fetching_beats_computing_follows_from_the_rates() -> None:
    found = measure(HostPlace(20, 4096), LOAD)
    assert found.beats_computing and found.from_tokens is not None and found.from_tokens >= 1
    fast = MeasureLoad(4096, 20, 256.0, tokens_per_second=1e11)
    found = measure(HostPlace(20, 4096), fast)
    assert not found.beats_computing and found.from_tokens is None


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "tiers",
        "bench",
        "--disk",
        str(tmp_path),
        "--store",
        str(tmp_path / "s"),
        "--bytes",
        "4MiB",
        "--block-size",
        "1",
    ]
    assert cli.main([*line, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in told["places"]] == ["host", "disk", "store"]
    assert told["page_bytes"] == told["bytes_per_token"] == 131072 and told["places"][1]["room"] > 0
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert "llama-3-8b" in text and "missing tokens on" in text


@pytest.mark.parametrize(
    "wrong",
    [
        ["--block-size", "0"], ["--bytes", "1kB"], ["--bytes", "much"], ["--tokens-per-second", "0"],
        ["--shape", "unknown"], ["--disk", "/no/such/folder"], ["--store", "http://host"],
        ["--store", "redis://u:hidden@127.0.0.1:1/0"],
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tiers", "bench", "--bytes", "4MiB", *wrong]) == 2
    told = capsys.readouterr().err
    assert told.startswith("quire tiers: ") and "hidden" not in told
