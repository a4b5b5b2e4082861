"""The tier with a shared store, alone and beside a disk: what one machine stores another loads. Needs no vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import StateError
from quire.integrations.vllm.plugs.key_tier import KeyTier
from quire.integrations.vllm.plugs.tier_options import TierOptions
from quire.tiers.disk.keyed import KeyJobsDone
from tests.integrations.plugs.test_policy import Context, keys_of
from tests.tiers.disk.stand_ins import Faults, FaultyFiles
from tests.tiers.shared.conftest import closing, empty_redis, one_redis_server, place  # noqa: F401  # fixtures
from tests.tiers.shared.test_client import GatedStore
from tests.waits import until

ROWS, ROW = 8, 4096


class Machine:
    """A host cache of some rows, a disk or none, and the store."""

    def __init__(self, store: str, disk: Path | None = None, **more: Any) -> None:
        self.memory = bytearray(ROWS * ROW)
        self.rows = np.frombuffer(self.memory, np.uint8).reshape(ROWS, ROW)
        size = 0 if disk is None else 40 * (ROW + 256)
        folder, wait = "" if disk is None else str(disk), more.pop("wait", 30.0)
        options = TierOptions(folder, size, store, waiting=1.0, deadline=60.0, wait=wait)
        view = memoryview(self.memory).cast("B", (ROWS, ROW))
        self.tier = KeyTier(view, options, lambda size: size.to_bytes(32, "big"), **more)
        self.number = 0

    def job(self, keys: list[bytes], rows: list[int], is_load: bool) -> KeyJobsDone:
        self.number += 1
        self.tier.submit(self.number, keys, rows, is_load, Context())
        self.tier.jobs.drain()
        (done,) = self.tier.finished()
        assert done.number == self.number
        return done

    def look(self, key: bytes, request: str = "r") -> bool:
        """As often as vLLM would ask, a step each."""
        answers: list[bool | None] = [self.tier.has(key, request)]
        self.tier.flush()
        until(lambda: answers.append(self.tier.has(key, request)) or answers[-1] is not None)  # type: ignore[func-returns-value]
        return bool(answers[-1])


def test_what_one_machine_stores_another_loads(place: str, tmp_path: Path) -> None:  # noqa: F811
    first, second = Machine(place, tmp_path / "one"), Machine(place)
    keys = keys_of("a", 3)
    first.rows[:3] = np.arange(1, 4)[:, None]
    stored = first.job(keys, [0, 1, 2], False)
    assert stored.good == tuple(keys) and stored.num_bytes == 3 * ROW, "in two places, and counted once"
    assert first.tier.has(keys[0]) is True, "its own disk has it: nobody is asked"
    assert second.tier.has(keys[0], "r") is None, "a step later"
    assert [second.look(key) for key in [*keys, keys_of("b", 1)[0]]] == [True, True, True, False]
    done = second.job(keys[::-1], [5, 6, 7], True)
    assert (done.good, done.bad, done.num_bytes) == (tuple(keys[::-1]), (), 3 * ROW)
    assert second.rows[5:, 0].tolist() == [3, 2, 1]
    context: Any = Context()
    second.tier.end_request(context)
    assert second.tier.has(keys[0], "s") is None, "what the store said was for the request that asked"
    assert first.tier.close() and second.tier.close()


def test_a_page_is_loaded_from_the_disk_or_else_from_the_store(tmp_path: Path) -> None:
    faults = Faults()
    machine = Machine(str(tmp_path / "s"), tmp_path / "d", files=FaultyFiles(faults))
    keys = keys_of("a", 2)
    machine.rows[:2] = [[1], [2]]
    machine.job(keys, [0, 1], False)
    faults.read_errors = {("pages-0", 1): 5}
    done = machine.job(keys, [4, 5], True)
    assert len(done.good) == len(done.bad) == 1
    (bad,) = done.bad
    assert machine.look(bad), "lost on the disk, and there in the store"
    assert machine.job(keys, [6, 7], True).good == tuple(keys)
    assert machine.rows[6:, 0].tolist() == [1, 2]
    assert machine.tier.store is not None and machine.tier.store.counts().hits == 1
    assert machine.tier.close()


def test_a_damaged_page_of_the_store_is_a_failed_load_and_a_miss_until_it_is_sent_again(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path / "s"))
    keys = keys_of("a", 1)
    machine.job(keys, [0], False)
    (file,) = [path for path in (tmp_path / "s").rglob("*-0") if path.is_file()]
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert machine.look(keys[0])
    machine.rows[3] = 9
    assert machine.job(keys, [3], True).bad == tuple(keys) and (machine.rows[3] == 9).all()
    assert machine.tier.has(keys[0], "r") is False and machine.tier.has(keys[0], "another") is False
    assert machine.job(keys, [0], False).good == tuple(keys)
    assert machine.look(keys[0], "third") and machine.job(keys, [3], True).good == tuple(keys)
    assert machine.tier.close()


def test_a_store_that_hangs_keeps_the_disk_from_nothing(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path / "s"), tmp_path / "d", wait=0.01)
    assert machine.tier.store is not None
    gated = machine.tier.store.client.store = GatedStore(tmp_path / "s")
    gated.hangs = True
    first, second = keys_of("a", 1), keys_of("b", 1)
    assert machine.tier.has(second[0], "r") is None
    machine.tier.flush()
    assert gated.reached.wait(60)
    until(lambda: machine.tier.has(second[0], "r") is False)
    assert machine.job(first, [0], False).good == tuple(first), "the disk has it"
    assert machine.tier.has(first[0]) and machine.job(first, [3], True).good == tuple(first)
    gated.hangs = False
    gated.gate.set()
    machine.tier.close()


def test_a_disk_that_cannot_be_opened_leaves_no_store_open(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path / "s"), tmp_path / "d")
    with pytest.raises(StateError, match="has it open"):
        Machine(str(tmp_path / "s"), tmp_path / "d")
    assert machine.tier.close()
