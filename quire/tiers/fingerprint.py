"""Fingerprint: 32 bytes that say which model wrote a page, and in which form. One rule for disk, stores and transfer.

    weights (a digest of all their bytes, or of what stands for them) ┐
    dtype, layer groups, block size, rank, world size                 ├─► fingerprint
    namespace: what you know and Quire cannot see                     ┘

Pages of another fingerprint are never found. Knows no model: `quire.engine` digests the weights it has loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, say, shown

CHUNK = 8 << 20  # bytes read at once
FORMAT = 1  # of what is digested; another number, other pages


def fingerprint(
    config: CacheConfig, weights: bytes, *, dtype: str, layout: str = "", rank: int = 0, world_size: int = 1,
    namespace: str = "",
) -> bytes:  # fmt: skip
    """Which pages are alike: those of one model, in one form. `layout` names what is inside a page, if it may vary.

    `weights` is a digest: of the loaded weights, of their files, or of the facts that stand for them.
    """
    if not isinstance(weights, bytes) or len(weights) < 16:
        given = f"{len(weights)} bytes" if isinstance(weights, bytes) else f"a {type(weights).__name__}"
        cure = "pass weights_digest(model), files_digest(paths) or facts_digest(...)"
        raise InputError(say("a digest of weights", f"it is {given}; at least 16 are needed", cure))
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        fact = f"rank {shown(rank)} of {shown(world_size)}"
        raise InputError(say("a fingerprint", fact, "number ranks from 0 up to world_size - 1"))
    facts = {
        "format": FORMAT, "weights": weights.hex(), "dtype": dtype, "layout": layout, "block_size": config.block_size,
        "groups": [group_facts(group) for group in config.groups], "rank": rank, "world_size": world_size,
        "namespace": namespace,
    }  # fmt: skip
    return facts_digest(facts, "quire-print")


def group_facts(group: Any) -> list[object]:
    """What makes a page of a layer group what it is; how it is named, and how often states are kept, does not."""
    state = group.snapshot_every is not None
    return [group.page_bytes, group.planes, group.window, group.sinks, state, group.cross]


def facts_digest(facts: Mapping[str, Any], person: str = "quire-facts") -> bytes:
    """32 bytes for facts that JSON can say: where weights cannot be read, their revision, config and quantisation."""
    try:
        text = json.dumps(facts, sort_keys=True, allow_nan=False, ensure_ascii=True)
    except (TypeError, ValueError) as error:
        cure = "use strings, numbers, lists and dicts"
        raise InputError(say("facts of a model", f"JSON cannot say them ({error})", cure)) from None
    return blake2b(text.encode(), digest_size=32, person=person.encode()).digest()


def files_digest(paths: Iterable[str | Path]) -> bytes:
    """32 bytes for what is in these files, in the order of their names; folders do not count, bytes do."""
    whole = blake2b(digest_size=32, person=b"quire-files")
    for path in sorted(map(Path, paths), key=lambda one: one.name):
        own = sha256()  # processors have instructions for it
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                own.update(chunk)
        whole.update(len(path.name).to_bytes(4, "little") + path.name.encode() + own.digest())
    return whole.digest()


def files_identity(paths: Iterable[str | Path]) -> str | None:
    """Names the files as they are now, without reading them; None when one cannot be looked at.

    A changed file whose time, size and number were set back is not noticed.
    """
    whole = blake2b(digest_size=16, person=b"quire-files")
    try:
        for path in sorted(os.path.realpath(one) for one in paths):
            stat = os.stat(path)
            numbers = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            whole.update(f"{path}\0{numbers}\0".encode(errors="surrogatepass"))
    except OSError:
        return None
    return whole.hexdigest()
