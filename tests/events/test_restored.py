"""A router after a warm restart: its index has what lies on disk before anybody asks for it, and is exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("zmq", reason="events need the extra events")
pytest.importorskip("msgspec", reason="events need the extra events")
pytest.importorskip("xxhash", reason="a disk needs the extra disk")

from quire import Scope
from quire.core.records.identity import RestoredScope
from quire.events import Follower, Index, Publisher, Status
from quire.events.wire.names import lora_of, salt_of

from ..tiers.disk.rig import Kept, prompt
from ..waits import until

ROOT = Path(__file__).resolve().parents[2]
TENANT = Scope(lora="sql", salt="tenant")
FIRST = """
import os, signal, sys
from pathlib import Path
from quire import Scope
from tests.tiers.disk.rig import Kept
kept = Kept(Path(sys.argv[1]))
kept.compute(1)
kept.compute(2, Scope(lora="sql", salt="tenant"), blocks=3)
assert kept.keeper.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def held(index: Index, number: int, scope: Scope | None = None) -> tuple[int, ...]:
    """Tokens of a prompt by tier, as the index has them; none unless it is exact."""
    found = index.find(prompt(number), scope or Scope()).get("worker")
    return found.tiers if found is not None and found.status is Status.EXACT else ()


def test_an_index_is_exact_after_a_warm_restart(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", FIRST, str(tmp_path)], cwd=ROOT, timeout=240)
    assert killed.returncode == -9
    kept, index = Kept(tmp_path, events=True), Index()
    with (
        Publisher(kept.cache, "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*") as publisher,
        Follower(index) as follower,
    ):
        publisher.tell()
        follower.follow("worker", publisher.endpoint, publisher.replay_endpoint)
        until(lambda: held(index, 1) == (0, 0, 16))
        assert held(index, 2, TENANT) == (0, 0, 12), "the router knows the salt, the worker has its digest"
        assert held(index, 2) == () and held(index, 2, Scope(salt="tenant")) == ()
        assert kept.fetched(2, TENANT, blocks=3) == 12
        publisher.tell()
        until(lambda: held(index, 2, TENANT) == (0, 12, 0))
        assert kept.keeper.forget(Scope(salt="tenant")) == 3
        kept.compute(3)
        publisher.tell()
        until(lambda: held(index, 2, TENANT) == () and held(index, 3) == (0, 16, 0))
        assert publisher.repairs == 0 and index.report("worker").gaps == 0
        assert held(index, 1) == (0, 0, 16)
    kept.close()


def test_a_salt_that_nobody_has_named_isolates() -> None:
    """Other routers key blocks by LoRA and salt in clear: they find it under neither, and never by accident."""
    scopes: list[Scope | RestoredScope] = [RestoredScope(TENANT.digest), RestoredScope(Scope(lora="sql").digest)]
    scopes += [TENANT, Scope()]
    labels = [(lora_of(scope), salt_of(scope)) for scope in scopes]
    assert len(set(labels)) == 4
    assert all(salt is not None and salt.startswith("quire-scope:") and len(salt) == 44 for _, salt in labels[:2])
    assert [lora for lora, _ in labels[:2]] == [(None, None)] * 2
    assert np.unique([salt for _, salt in labels[:2]]).size == 2
