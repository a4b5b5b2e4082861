"""Names of earlier versions: they work for one more, and warn."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import quire.engine as engine


def test_an_old_name_is_the_new_one_and_says_so() -> None:
    with pytest.warns(DeprecationWarning, match=r"quire\.engine\.of is called from_module since 0\.2"):
        found = engine.of
    assert found is engine.from_module and "of" not in engine.__all__


def test_a_name_that_never_was_is_unknown() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Crowd'"):
        _ = engine.Crowd
