"""Folders of pages that earlier formats left, opened by today's code."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from quire.tiers.disk import DiskFolder, OpenReport
from quire.tiers.disk.examine import examine
from quire.tiers.disk.log.frames import FORMAT
from quire.tiers.disk.owner import model_folder

from .disk import FINGERPRINT, NUM_SLOTS, PAGE_BYTES, PAGES, PARENTS, ROOTS, main, page_of, tokens_of

HERE = Path(__file__).resolve().parent


def test_pages_of_format_1_are_found(tmp_path: Path) -> None:
    shutil.copytree(HERE / "disk-1", tmp_path / "disk")
    model = model_folder(tmp_path / "disk", FINGERPRINT)
    for path in (model, *model.iterdir()):  # a checkout has the modes that it pleases
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert examine(model).findings == []
    with DiskFolder(tmp_path / "disk", FINGERPRINT, PAGE_BYTES, NUM_SLOTS) as disk:
        assert disk.report == OpenReport()
        nodes, pages = disk.contents.nodes, disk.contents.pages
        assert list(zip(pages.group.tolist(), pages.slot.tolist(), pages.node.tolist(), strict=True)) == PAGES
        assert dict(zip(nodes.number.tolist(), nodes.parent.tolist(), strict=True)) == PARENTS
        assert nodes.roots == ROOTS and nodes.tokens.tolist() == [
            token for block in PARENTS for token in tokens_of(block)
        ]
        assert nodes.words.tolist() == [[1, 99, 0]] and nodes.tokens[nodes.word_at].tolist() == [31]
        for group, slot, block in PAGES:
            out = np.zeros((1, PAGE_BYTES[group]), np.uint8)
            disk.tier.read(group, [slot], [out])
            assert np.array_equal(out, page_of(block, group))


def test_this_version_writes_the_same_bytes(tmp_path: Path) -> None:
    """A change of the format has a number of its own, and a golden folder."""
    assert FORMAT == 1
    main(tmp_path)
    ours, kept = model_folder(tmp_path, FINGERPRINT), model_folder(HERE / "disk-1", FINGERPRINT)
    names = {path.name for path in kept.iterdir()}
    assert names == {path.name for path in ours.iterdir()} - {"lock"}
    assert not [name for name in names if (ours / name).read_bytes() != (kept / name).read_bytes()]
