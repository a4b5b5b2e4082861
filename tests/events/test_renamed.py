"""Names of earlier versions: they work for one more, and warn."""

from __future__ import annotations

import pytest

import quire.events as events


@pytest.mark.parametrize(
    ("old", "new"), [("Ask", "ReplayRequest"), ("Message", "RecordedMessage"), ("Tape", "Recording")]
)
def test_an_old_name_is_the_new_one_and_says_so(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"quire.events.{old} is called {new}"):
        found = getattr(events, old)
    assert found is getattr(events, new) and old not in events.__all__


def test_a_name_that_never_was_is_unknown() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Crowd'"):
        _ = events.Crowd
