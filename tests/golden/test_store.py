"""Shared stores that earlier formats filled, read by today's code; what it cannot read is refused with the cure."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.tiers.shared import FolderStore, SharedStore
from quire.tiers.shared.stores.value import FORMAT
from tests.tiers.shared.conftest import running

from .store import PART_BYTES, TEXTS, Machine, fill, page_of, values_in

HERE = Path(__file__).resolve().parent / "store-1"


def check_all_comes(store: SharedStore) -> None:
    machine = Machine(store)
    for nth, (tokens, _) in enumerate(TEXTS):
        expected = [page_of(nth, block, group) for block in range(len(tokens) // 4) for group in range(2)]
        came = machine.fetch(nth)
        assert len(came) == len(expected)
        assert all(np.array_equal(one, other) for one, other in zip(came, expected, strict=True))
    assert machine.shared.counts().misses == {}
    assert machine.shared.close()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def redis_client() -> Iterator[tuple[str, Any]]:
    """An empty Redis."""
    redis = pytest.importorskip("redis", reason="a Redis store needs the extra redis")
    for server in running():
        with redis.Redis.from_url(server.url) as client:
            yield server.url, client


def test_a_folder_of_format_1_is_read(tmp_path: Path) -> None:
    shutil.copytree(HERE / "pages", tmp_path / "pages")
    check_all_comes(FolderStore(tmp_path / "pages"))


def test_this_version_writes_the_same_files(tmp_path: Path) -> None:
    """A change of names or values has a number of its own, and a golden store."""
    assert FORMAT == 1
    fill(FolderStore(tmp_path))
    assert files(tmp_path) == files(HERE / "pages")


def test_a_redis_of_format_1_is_read_and_written(redis_client: tuple[str, Any]) -> None:
    from quire.tiers.shared.stores import redis_store

    url, client = redis_client
    kept = json.loads((HERE / "redis.json").read_text(encoding="utf-8"))
    assert redis_store.PART_BYTES == 4 << 20, "where pages are cut is part of the format"
    client.mset({key: bytes.fromhex(value) for key, value in kept.items()})
    check_all_comes(redis_store.RedisStore(url, part_bytes=PART_BYTES))
    client.flushdb()
    fill(redis_store.RedisStore(url, part_bytes=PART_BYTES))
    assert values_in(client) == kept


def test_pages_of_a_later_format_are_refused_with_the_cure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(HERE / "pages", tmp_path / "pages")
    for path in (tmp_path / "pages").rglob("*-*"):
        raw = path.read_bytes()
        path.write_bytes(raw[:4] + (FORMAT + 1).to_bytes(2, "little") + raw[6:])
    before = files(tmp_path / "pages")
    machine = Machine(FolderStore(tmp_path / "pages"))
    with caplog.at_level(logging.WARNING, "quire.shared"):
        assert machine.fetch(0) == []
    assert set(machine.shared.counts().misses) == {"format"} and "upgrade this machine" in caplog.text
    machine.publish(0)
    assert machine.shared.close() and files(tmp_path / "pages") == before, "the version that wrote them can read them"
