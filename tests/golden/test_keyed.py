"""A folder of pages by key that an earlier version left, opened by today's code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quire.tiers.disk import OpenReport
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from tests.golden.keyed import FINGERPRINT, GONE, PAGE, THERE, main, opened, page_of
from tests.golden.test_disk import HERE, copied


def test_pages_by_key_are_found(tmp_path: Path) -> None:
    assert examine(copied("keyed-1", tmp_path / "disk", FINGERPRINT)).findings == []
    disk = opened(tmp_path / "disk")
    assert disk.report == OpenReport() and len(disk) == len(THERE)
    assert [key in disk for key in (*THERE, *GONE)] == [True] * len(THERE) + [False] * len(GONE)
    pages = [np.zeros(PAGE, np.uint8) for _ in THERE]
    assert not any(disk.read(THERE, pages))
    assert all(np.array_equal(page, page_of(key)) for key, page in zip(THERE, pages, strict=True))
    disk.close()


def test_this_version_writes_the_same_bytes(tmp_path: Path) -> None:
    main(tmp_path)
    ours, theirs = model_folder(tmp_path, FINGERPRINT), model_folder(HERE / "keyed-1", FINGERPRINT)
    names = {path.name for path in theirs.iterdir()}
    assert names == {path.name for path in ours.iterdir()} - {"lock"}
    assert not [name for name in names if (ours / name).read_bytes() != (theirs / name).read_bytes()]
