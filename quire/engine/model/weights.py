"""Weights: a digest of every byte of a loaded model, and the fingerprint of its pages. Knows no store and no peer.

    each tensor: its name, dtype, shape and bytes ──SHA-256, some threads──► digest of the model, with its config

Costs about 0.6 s for a GB where the processor knows SHA-256. A model from a folder pays once: the digest is kept by the
identity of its files, and believed while a sample of every tensor is still the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import torch

from quire.core.records.config import CacheConfig
from quire.engine.model.folders import SAFE
from quire.engine.model.layers import Model
from quire.engine.model.smollm2 import cache_folder
from quire.tiers.fingerprint import files_identity, fingerprint

SAMPLE = 256  # numbers of every tensor that tell whether a model is still as its files say
CHUNK = 64 << 20  # bytes that come to the host at once
THREADS = 8
PAGE_FORM = 1  # of what `Pages` writes; another number when the same shapes mean other bytes
PASSING = ("dtype", "torch_dtype", "transformers_version", "architectures")  # of a config: no part of the model


def model_fingerprint(
    model: Model, config: CacheConfig, *, rank: int = 0, world_size: int = 1, namespace: str = ""
) -> bytes:
    """Which pages are alike for this model in such a cache; see quire.tiers.fingerprint."""
    return fingerprint(
        config, weights_digest(model), dtype=str(model.dtype), layout=_layout(model), rank=rank,
        world_size=world_size, namespace=namespace,
    )  # fmt: skip


def _layout(model: Model) -> str:
    """What lies where in a page, as Pages cuts it."""
    return "; ".join([f"pages {PAGE_FORM}", *map(repr, model.shapes)])


def weights_digest(model: Model) -> bytes:
    """32 bytes for all weights and the config of a model, as it is in memory."""
    kept = _kept_at(model)
    sample = _sample(model) if kept is not None else ""
    if kept is not None:
        with contextlib.suppress(OSError, ValueError):
            digest, known = kept.read_text().split()
            if known == sample and len(bytes.fromhex(digest)) == 32:
                return bytes.fromhex(digest)
    digest_now = _digest(model)
    if kept is not None:
        _keep(kept, f"{digest_now.hex()} {sample}\n")
    return digest_now


def _digest(model: Model) -> bytes:
    whole = blake2b(_config(model), digest_size=32, person=b"quire-model")
    tensors = dict(_tensors(model))
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as crew:
        for name, own in zip(tensors, crew.map(_tensor_digest, tensors.values()), strict=True):
            tensor = tensors[name]
            whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode() + own)
    return whole.digest()


def _tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor once: tied ones have one memory and several names, and the first name stands for all."""
    seen = set()
    for name, tensor in model.module.state_dict().items():
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if place not in seen:
            seen.add(place)
            yield name, tensor.detach()


def _tensor_digest(tensor: torch.Tensor) -> bytes:
    own, flat = sha256(), tensor.contiguous().reshape(-1)
    step = max(1, CHUNK // max(1, flat.element_size()))
    for start in range(0, flat.numel(), step):
        own.update(flat[start : start + step].cpu().view(torch.uint8).numpy())
    return own.digest()


def _config(model: Model) -> bytes:
    facts = model.module.config.to_dict()
    stable = {name: value for name, value in facts.items() if not name.startswith("_") and name not in PASSING}
    return json.dumps(stable, sort_keys=True, default=str).encode()


def _sample(model: Model) -> str:
    """A digest of the first, the last and some more numbers of every tensor."""
    own = blake2b(_config(model), digest_size=16, person=b"quire-sample")
    for name, tensor in _tensors(model):
        flat = tensor.reshape(-1)
        own.update(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
        picked = torch.linspace(0, max(0, flat.numel() - 1), min(SAMPLE, flat.numel()), dtype=torch.float64)
        own.update(flat[picked.long().to(flat.device)].cpu().contiguous().view(torch.uint8).numpy())
    return own.hexdigest()


def _kept_at(model: Model) -> Path | None:
    """Where the digest of a model that came from files is kept."""
    if model.folder is None:
        return None
    identity = files_identity([*model.folder.glob(f"*{SAFE}"), model.folder / "config.json"])
    if identity is None:
        return None
    kind = f"{_of_transformers()}-{model.dtype}".replace("/", "-")
    return cache_folder() / "digests" / f"{identity}-{kind}"


def _of_transformers() -> Any:
    import transformers

    return transformers.__version__


def _keep(path: Path, line: str) -> None:
    """A digest that cannot be kept is made again next time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, made = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(number, "w") as file:
                file.write(line)
            os.replace(made, path)
        except OSError:
            os.unlink(made)
            raise
