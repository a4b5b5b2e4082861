"""Lists are as good as tuples wherever a record takes several things; inside they are tuples, and hashable."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import quire
from quire import (
    Cache,
    CacheConfig,
    InputError,
    LayerGroup,
    Media,
    Request,
    RetainRange,
    Retention,
    Span,
    TierConfig,
    check,
)
from quire.core.store import StoreName

GROUPS = [LayerGroup("full"), LayerGroup("window", window=8)]


def config(tiers: list[TierConfig], groups: list[LayerGroup]) -> CacheConfig:
    return CacheConfig(tiers, block_size=4, groups=groups, max_sequences=4, max_length=64)


def test_a_config_keeps_lists_as_tuples() -> None:
    tiers, groups = [TierConfig("device", [8, 6]), TierConfig("host", 4)], list(GROUPS)
    made = config(tiers, groups)
    assert made.tiers == (TierConfig("device", (8, 6)), TierConfig("host", 4)) and made.groups == tuple(GROUPS)
    assert [type(kept) for kept in (made.tiers, made.groups, made.tiers[0].slots)] == [tuple] * 3
    tiers.clear()
    groups.clear()
    assert len(made.tiers) == len(made.groups) == 2 and hash(made) == hash(config(list(made.tiers), GROUPS))


def test_a_request_keeps_lists_as_tuples() -> None:
    media, runs, ranges = Media(bytes(16), [Span(0, 2)]), [Span(0, 2)], [RetainRange(0, 4, 50)]
    request = Request(
        "r", np.arange(9, dtype=np.int32), media=[media], resume_points=[4, 8], retention=Retention(ranges)
    )
    assert media == Media(bytes(16), tuple(runs)) and hash(media) == hash(Media(bytes(16), tuple(runs)))
    assert request.media == (media,) and request.resume_points == (4, 8)
    assert request.retention == Retention(tuple(ranges)) and type(request.retention.ranges) is tuple
    empty = Request("e", np.arange(9, dtype=np.int32), media=[], resume_points=[], retention=Retention([]))
    assert (empty.media, empty.resume_points, empty.retention) == ((), (), Retention())


def test_a_cache_from_lists_works(store: StoreName) -> None:
    cache = Cache(config([TierConfig("device", [8, 6])], GROUPS), store=store)
    request = Request("r", np.arange(9, dtype=np.int32), media=[Media(bytes(16), [Span(0, 2)])])
    (sequence,) = cache.add_sequence_batch([request]).sequences
    assert cache.commit(sequence) > 0
    resumed = cache.suspend(sequence)
    assert resumed.media == request.media
    with cache.claim([resumed]) as claims:
        assert claims[0].start == 8
    check(cache)


@pytest.mark.parametrize("wrong", ["full", iter(GROUPS), {}, [1], [GROUPS]])
def test_what_is_no_list_of_groups_is_refused(wrong: list[LayerGroup]) -> None:
    with pytest.raises(InputError, match="they are not a list of LayerGroup"):
        config([TierConfig("device", 8)], wrong)


def test_llm_is_named_without_importing_torch() -> None:
    assert "LLM" in dir(quire) and set(quire.__all__) <= set(dir(quire))
    code = "import sys, quire; print('LLM' in dir(quire), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_everything_can_be_looked_at_without_torch() -> None:
    """help(quire) and those who go through its members ask for all that dir names."""
    act = "import sys, inspect, pydoc; sys.modules['torch'] = None; import quire; "
    act += "print('LLM' in dict(inspect.getmembers(quire)), 'Cache' in pydoc.render_doc(quire))"
    done = subprocess.run([sys.executable, "-c", act], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    ("lacking", "wanted", "extra"),
    [("msgspec", "quire.transfer", "transfer"), ("torch", "quire.tiers.torch_tier", "torch")],
)
def test_a_part_without_its_package_says_what_to_install(lacking: str, wanted: str, extra: str) -> None:
    pytest.importorskip("torch")
    act = f"import sys; sys.modules[{lacking!r}] = None; import quire, importlib\n"
    act += f"try: importlib.import_module({wanted!r})\nexcept quire.MissingExtra as told: print(told)"
    done = subprocess.run([sys.executable, "-c", act], capture_output=True, text=True, check=True)
    assert f"pip install 'quire-kv[{extra}]'" in done.stdout
