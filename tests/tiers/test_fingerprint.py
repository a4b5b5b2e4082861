"""Fingerprints: everything that changes a page's meaning changes them, and nothing else does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from quire import CacheConfig, InputError, LayerGroup, TierConfig
from quire.tiers.fingerprint import facts_digest, files_digest, files_identity, fingerprint

CONFIG = CacheConfig(
    (TierConfig("device", 8), TierConfig("host", 8)), block_size=16, max_length=256, max_chunk=64,
    groups=(LayerGroup("full", page_bytes=64, planes=2), LayerGroup("window", page_bytes=32, window=40)),
)  # fmt: skip
WEIGHTS = bytes(32)


def test_every_fact_about_pages_counts() -> None:
    full, window = CONFIG.groups
    configs = [
        CONFIG, replace(CONFIG, block_size=32), replace(CONFIG, groups=(full,)), replace(CONFIG, groups=(window, full)),
        replace(CONFIG, groups=(replace(full, page_bytes=128), window)),
        replace(CONFIG, groups=(full, replace(window, window=41))),
        replace(CONFIG, groups=(full, replace(window, window=None))),
    ]  # fmt: skip
    made = [fingerprint(config, WEIGHTS, dtype="float32") for config in configs]
    made += [
        fingerprint(CONFIG, bytes(31) + b"\1", dtype="float32"), fingerprint(CONFIG, WEIGHTS, dtype="bfloat16"),
        fingerprint(CONFIG, WEIGHTS, dtype="float32", layout="NHD"),
        fingerprint(CONFIG, WEIGHTS, dtype="float32", rank=0, world_size=2),
        fingerprint(CONFIG, WEIGHTS, dtype="float32", rank=1, world_size=2),
        fingerprint(CONFIG, WEIGHTS, dtype="float32", namespace="mine"),
    ]  # fmt: skip
    assert len(set(made)) == len(made) and {len(one) for one in made} == {32}


def test_sizes_of_a_cache_do_not_count() -> None:
    others = [
        replace(CONFIG, tiers=(TierConfig("gpu", 9), TierConfig("host", 7))), replace(CONFIG, max_length=512),
        replace(CONFIG, groups=tuple(replace(group, name=group.name + "!") for group in CONFIG.groups)),
    ]  # fmt: skip
    assert {fingerprint(one, WEIGHTS, dtype="float32") for one in [CONFIG, *others]} == {
        fingerprint(CONFIG, WEIGHTS, dtype="float32")
    }


def test_what_cannot_be_meant_is_refused() -> None:
    for rank, world in ((1, 1), (-1, 2), (0, 0), (True, 2)):
        with pytest.raises(InputError, match="rank"):
            fingerprint(CONFIG, WEIGHTS, dtype="float32", rank=rank, world_size=world)
    for weights in (b"", bytes(15), "a" * 32):
        with pytest.raises(InputError, match="digest of weights"):
            fingerprint(CONFIG, weights, dtype="float32")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="JSON"):
        facts_digest({"revision": object()})


def test_facts_stand_for_weights_that_cannot_be_read() -> None:
    facts = {"revision": "abc", "config": {"layers": 2}, "quantisation": "fp8"}
    assert facts_digest(facts) == facts_digest(dict(reversed(facts.items())))
    assert facts_digest(facts) != facts_digest(facts | {"quantisation": "int4"})


def test_files_are_digested_by_what_is_in_them(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name, text in (("one", "12"), ("two", "3")):
            (tmp_path / folder / name).write_text(text)
    first = files_digest(sorted((tmp_path / "a").iterdir()))
    assert first == files_digest(sorted((tmp_path / "b").iterdir(), reverse=True))
    (tmp_path / "b" / "one").write_text("1")
    (tmp_path / "b" / "two").write_text("23")  # the same bytes, cut otherwise
    assert first != files_digest((tmp_path / "b").iterdir())


def test_the_identity_of_files_changes_with_them(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text("one")
    first = files_identity([path])
    assert first is not None and first == files_identity([tmp_path / "." / "weights"])
    path.write_text("two")
    os.utime(path, ns=(0, 12345))
    assert files_identity([path]) != first
    assert files_identity([path, tmp_path / "none"]) is None
