"""Lists of calls that once failed: as they were found, and shrunk until nothing could be taken out of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzing.lists.calls import load
from fuzzing.lists.replay import replay
from fuzzing.subject import available_stores
from quire.core.store import StoreName

HERE = Path(__file__).parent
FOUND = sorted((HERE / "calls").glob("*.json"))
SHORT = sorted((HERE / "short").glob("*.json"))


@pytest.mark.parametrize("store", available_stores())
@pytest.mark.parametrize("path", SHORT, ids=lambda path: path.stem)
def test_the_shortest_list(path: Path, store: StoreName) -> None:
    replay(load(path), [store])  # type: ignore[list-item]


@pytest.mark.slow  # the shortest part of each is above
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_the_list_as_it_was_found(path: Path) -> None:
    replay(load(path), available_stores(), check_every=20, compare_every=5)


def test_there_are_lists() -> None:
    assert {path.stem for path in FOUND} <= {path.stem for path in SHORT} and FOUND
