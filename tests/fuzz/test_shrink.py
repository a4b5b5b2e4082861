"""A failing list becomes the shortest one, and a test that fails like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from fuzzing.cli import main
from fuzzing.compare import Mismatch, kind_of
from fuzzing.lists.calls import Recording, load, recording
from fuzzing.lists.replay import outcome
from fuzzing.lists.shrink import changed, lower, without_group
from fuzzing.oracle import life

STORE: Literal["twin"] = "twin"


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that forgets what a released sequence had behind its last full block."""
    whole = life.store_rest
    monkeypatch.setattr(
        life, "store_rest", lambda state, row, ahead: None if row.committed else whole(state, row, ahead)
    )


def fails(data: dict[str, Any], kind: str) -> bool:
    try:
        failure = outcome(recording(data), (STORE,)).failure
    except Exception:
        return False
    return failure is not None and kind_of(failure) == kind


def lists(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Every smaller value that differs in one place, and where."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            without = [*value[:key], *value[key + 1 :]] if isinstance(value, list) else value.copy()
            if isinstance(without, dict):
                del without[key]
            found += [(path, without), *lists(value[key], (*path, key))]
    elif isinstance(value, int) and not isinstance(value, bool):
        found += [(path, number) for number in lower(value)]
    return found


def test_nothing_can_be_taken_out_of_what_is_left(
    forgetful: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--operations", "2000", "--groups", "full", "--seed", "3", "--store", STORE, "--record", str(tmp_path)]
    assert main([*options, "--shrink"]) == 1
    printed = capsys.readouterr().out
    (path,) = tmp_path.glob("*-short.json")
    short = load(path)
    failure = outcome(short, (STORE,)).failure
    assert failure is not None and len(short.calls) <= 6, short.text()
    data = short.data()
    for where, less in lists({"world": data["world"], "calls": data["calls"]}):
        assert not fails(changed(data, where, less), kind_of(failure)), (where, less)
    test: dict[str, Any] = {}
    exec(printed[printed.index('"""') :], test)
    (name,) = (name for name in test if name.startswith("test_"))
    with pytest.raises(Mismatch, match=kind_of(failure).split("#")[0]):
        test[name](STORE)


def test_another_failure_is_not_taken_for_the_same() -> None:
    assert kind_of(Mismatch("what r12 reads wrong after 5 tokens (twin)", "x")) == kind_of(
        Mismatch("what f3 reads wrong after 17 tokens (twin)", "y")
    )
    assert kind_of(Mismatch("dump")) != kind_of(Mismatch("free counts of twin"))


def test_a_group_leaves_with_the_calls_that_name_it() -> None:
    data = {
        "world": {"tiers": [[1, 2, 3], [4, 5, 6]], "groups": [{}, {"kind": "state"}, {"kind": "cross"}]},
        "calls": [{"call": "offload"}, {"call": "offload", "group": 1}, {"call": "offload", "group": 2}],
    }
    less = without_group(data, 1)
    assert less["world"] == {"tiers": [[1, 3], [4, 6]], "groups": [{}, {"kind": "cross"}]}
    assert less["calls"] == [{"call": "offload"}, {"call": "offload", "group": 1}]


def test_a_call_that_means_nothing_is_skipped() -> None:
    data = {
        "world": {"block_size": 2, "tiers": [[4]]},
        "calls": [
            {"call": "release", "name": "r1"},
            {"call": "admit", "key": "b1"},
            {"call": "add", "asks": [{"name": "r1", "tokens": [0, 1]}], "continuing": ["r9"]},
            {"call": "grow", "names": ["r1", "r2"], "tokens": [[1], [0]]},
            {"call": "drop_hold", "key": "h1"},
            {"call": "offload", "group": 1},
        ],
    }
    made = outcome(recording(data), (STORE,))
    assert made.failure is None
    assert json.loads(Recording(made.world, made.calls).text())["calls"] == [
        {"call": "add", "asks": [{"name": "r1", "tokens": [0, 1]}]},
        {"call": "grow", "names": ["r1"], "tokens": [[1]]},
    ]
