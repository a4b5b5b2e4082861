"""Folders of pages that earlier formats left, opened by today's code."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from quire import StateError
from quire.tiers.disk import OpenReport
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.frames import FORMAT, HEAD_BYTES, POOLED
from quire.tiers.disk.log.read_manifest import NAME
from quire.tiers.disk.pages.checksum import checksum

from . import kept
from .disk import FINGERPRINT, PARENTS, ROOTS, SHAPES, main, page_of, tokens_of

HERE = Path(__file__).resolve().parent


def copied(name: str, folder: Path, fingerprint: bytes) -> Path:
    """The folder of a model, as a process may have left it."""
    shutil.copytree(HERE / name, folder)
    model = model_folder(folder, fingerprint)
    for path in (model, *model.rglob("*")):  # a checkout has the modes that it pleases
        path.chmod(0o700 if path.is_dir() else 0o600)
    return model


@pytest.mark.parametrize("number", [FORMAT, POOLED])
def test_pages_of_every_format_are_found(tmp_path: Path, number: int) -> None:
    shape = SHAPES[number]
    assert examine(copied(f"disk-{number}", tmp_path / "disk", FINGERPRINT)).findings == []
    with shape.open(tmp_path / "disk") as disk:
        assert disk.report == OpenReport()
        nodes, pages = disk.contents.nodes, disk.contents.pages
        assert list(zip(pages.group.tolist(), pages.slot.tolist(), pages.node.tolist(), strict=True)) == shape.pages
        assert dict(zip(nodes.number.tolist(), nodes.parent.tolist(), strict=True)) == PARENTS
        assert nodes.roots == ROOTS and nodes.tokens.tolist() == [
            token for block in PARENTS for token in tokens_of(block)
        ]
        assert nodes.words.tolist() == [[1, 99, 0]] and nodes.tokens[nodes.word_at].tolist() == [31]
        for group, slot, block in shape.pages:
            out = np.zeros((1, shape.page_bytes[group]), np.uint8)
            disk.tier.read(group, [slot], [out])
            assert np.array_equal(out, page_of(block, group, shape))


@pytest.mark.parametrize("number", [FORMAT, POOLED])
def test_this_version_writes_the_same_bytes(tmp_path: Path, number: int) -> None:
    """A change of the format has a number of its own, and a golden folder."""
    assert (FORMAT, POOLED) == (1, 2)
    main(tmp_path, SHAPES[number])
    ours, theirs = model_folder(tmp_path, FINGERPRINT), model_folder(HERE / f"disk-{number}", FINGERPRINT)
    names = {path.name for path in theirs.iterdir()}
    assert names == {path.name for path in ours.iterdir()} - {"lock"}
    assert not [name for name in names if (ours / name).read_bytes() != (theirs / name).read_bytes()]


def test_a_format_of_a_later_version_is_refused_with_the_cure(tmp_path: Path) -> None:
    model = copied("disk-1", tmp_path / "disk", FINGERPRINT)
    raw = bytearray((model / NAME).read_bytes())[:HEAD_BYTES]
    raw[8:12] = (3).to_bytes(4, "little")
    raw[-8:] = checksum(bytes(raw[:-8])).to_bytes(8, "little")
    (model / NAME).write_bytes(bytes(raw) + b"frames of another kind" * 20)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    with pytest.raises(StateError, match="it has format 3, and this version reads 1 and 2; open it with the version"):
        SHAPES[1].open(tmp_path / "disk")
    assert {path.name: path.read_bytes() for path in model.iterdir() if path.name != "lock"} == before


def test_a_folder_that_a_cache_has_kept_on_two_ranks_is_found_by_one_of_today(tmp_path: Path) -> None:
    """From tokens and scopes to bytes, through all that is between them."""
    model = copied("kept-1", tmp_path / "disk", kept.FINGERPRINT)
    assert examine(model).findings == []
    cache = kept.KeptOnRanks(tmp_path / "disk")
    assert cache.disk.report == OpenReport() and cache.keeper.report().restored == 3
    assert cache.found("plain") == 8 and cache.found("tenant") == 4
    cache.close()
