"""The digest of a model's weights: every byte counts, and a folder pays once."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from quire.core.records.config import CacheConfig, TierConfig
from quire.engine.model import weights
from quire.engine.model.layers import Model
from quire.engine.model.load import load
from quire.engine.model.weights import model_fingerprint, weights_digest
from tests.engine.families import build


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in a folder, and a cache folder that is empty."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    build("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def kept(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "digests").glob("*"))


def config(model: Model, block_size: int = 16) -> CacheConfig:
    return CacheConfig(
        (TierConfig("device", 8),), block_size=block_size, max_length=128, groups=model.groups(block_size, 256)
    )


def test_every_byte_counts(folder: Path) -> None:
    model = load(folder)
    first = weights_digest(model)
    names = list(model.module.state_dict())
    seen = {first}
    for name in (names[0], names[len(names) // 2], names[-1]):
        tensor = model.module.state_dict()[name].view(-1)
        place = tensor.numel() // 3 + 1
        before = tensor[place].item()
        with torch.no_grad():
            tensor[place] = before + 0.5
        seen.add(weights._digest(model))
        with torch.no_grad():
            tensor[place] = before
    assert len(seen) == 4 and weights._digest(model) == first


def test_a_digest_is_kept_for_a_folder_and_only_while_the_model_is_as_its_files(folder: Path) -> None:
    first = weights_digest(load(folder))
    (path,) = kept(folder)
    assert path.read_text().split()[0] == first.hex() and path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().replace(first.hex(), "ab" * 32))
    assert weights_digest(load(folder)) == bytes.fromhex("ab" * 32)  # it was not made again
    changed = load(folder)
    with torch.no_grad():
        next(iter(changed.module.parameters())).view(-1)[0] += 1
    assert weights_digest(changed) not in (first, bytes.fromhex("ab" * 32))
    path.write_text("nonsense")
    assert weights_digest(load(folder)) == first


def test_other_files_and_dtypes_have_digests_of_their_own(folder: Path) -> None:
    digests = {weights_digest(load(folder)), weights_digest(load(folder, dtype="bfloat16"))}
    other = build("llama")
    with torch.no_grad():
        next(iter(other.parameters())).add_(0.5)
    other.save_pretrained(folder)
    digests.add(weights_digest(load(folder)))
    assert len(digests) == 3 and len(kept(folder)) == 3


def test_a_folder_that_cannot_keep_it_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "file").write_text("")
    monkeypatch.setenv("QUIRE_CACHE", str(folder.parent / "file"))
    assert len(weights_digest(load(folder))) == 32


def test_a_model_in_memory_has_the_digest_of_its_files(folder: Path) -> None:
    model = load(folder)
    twin = copy.copy(model)
    object.__setattr__(twin, "folder", None)
    assert weights_digest(twin) == weights_digest(model)


def test_the_fingerprint_tells_caches_apart(folder: Path) -> None:
    model = load(folder)
    made = [
        model_fingerprint(model, config(model)), model_fingerprint(model, config(model, 32)),
        model_fingerprint(model, config(model), rank=1, world_size=2),
        model_fingerprint(model, config(model), namespace="mine"),
    ]  # fmt: skip
    assert len(set(made)) == 4 and made[0] == model_fingerprint(load(folder), config(model))
