"""The reference store that stands in for a missing compiled store says so, once; one that was chosen is quiet."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

import quire.core.store
from quire import Cache, CacheConfig, SlowStoreWarning, TierConfig
from quire.core.store import StoreName, tell_slow_store

MISSING = "quire.core.store._compiled"
CONFIG = CacheConfig((TierConfig("device", 4),), block_size=4, max_length=16)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has no compiled module, and was told of it by nobody yet."""
    monkeypatch.setitem(sys.modules, MISSING, None)
    monkeypatch.setattr(quire.core.store, "_is_told", False)
    monkeypatch.delenv("QUIRE_STORE", raising=False)


def warned(store: StoreName = "auto") -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Cache(CONFIG, store=store)
    return caught


@pytest.mark.usefixtures("uncompiled")
def test_the_first_cache_warns_with_factor_and_cure() -> None:
    (warning,) = warned()
    assert warning.category is SlowStoreWarning and warning.filename == __file__
    words = str(warning.message)
    assert "times slower" in words and "reinstall Quire" in words and "QUIRE_STORE=twin" in words
    assert warned() == []


@pytest.mark.usefixtures("uncompiled")
def test_whoever_chooses_the_reference_store_is_not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned("twin") == []
    monkeypatch.setenv("QUIRE_STORE", "twin")
    assert warned() == []
    tell_slow_store(pytest.fail)
    monkeypatch.delenv("QUIRE_STORE")
    assert len(warned()) == 1


def test_with_a_compiled_store_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(MISSING, exc_type=ImportError)
    monkeypatch.setattr(quire.core.store, "_is_told", False)
    tell_slow_store(pytest.fail)
    assert warned() == []


@pytest.mark.usefixtures("uncompiled")
def test_a_warning_that_is_an_error_is_one_every_time() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(SlowStoreWarning):
                Cache(CONFIG)


@pytest.mark.parametrize("tool", ["demo", "serve"])
def test_the_demo_and_the_server_say_it_before_anything_else(tool: str) -> None:
    blocked = f"import sys; sys.modules['{MISSING}'] = None; from quire.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-u", "-c", blocked, tool]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.kill()
    assert first.startswith("the compiled store: it does not import") and "times slower" in first
