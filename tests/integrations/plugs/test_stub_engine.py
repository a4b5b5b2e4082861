"""The tier with a stubbed engine: many jobs at once; a wrong byte would be seen. Attacks: `test_plug_attacks`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.attacks.plugged import KINDS, opened
from tests.integrations.plugs.stub_engine import StubEngine, bytes_of, key_of
from tests.tiers.disk.stand_ins import Faults, FaultyFiles


@pytest.mark.parametrize("kind", KINDS)
def test_random_jobs_many_at_once(tmp_path: Path, kind: str) -> None:
    dice, engine = np.random.default_rng(7), opened(StubEngine, tmp_path, kind)
    for _ in range(60):
        keys = [key_of(one) for one in dice.choice(40, int(dice.integers(1, 9)), replace=False).tolist()]
        (engine.store if dice.random() < 0.5 else engine.load)(keys)
        engine.look()
    engine.settle()
    assert engine.loaded > 0 and engine.stored > 50 and engine.close()


def test_a_wrong_byte_would_be_seen(tmp_path: Path) -> None:
    engine = StubEngine(tmp_path, None)
    engine.store([key_of(1)])
    engine.settle()
    engine.load([key_of(1)])
    engine.tier.jobs.drain()
    engine.rows[next(iter(engine.under_way[2].values())), 5] ^= 1
    with pytest.raises(AssertionError, match="WRONG BYTES"):
        engine.look()
    assert engine.tier.close()


def test_rows_of_a_disk_that_fails_every_read_are_failed_loads(tmp_path: Path) -> None:
    faults = Faults()
    engine = StubEngine(tmp_path, None, files=FaultyFiles(faults))
    engine.store([key_of(1), key_of(2)])
    engine.settle()
    faults.read_errors = {("pages-0", place): 5 for place in range(0, 1 << 18, 1024)}
    engine.load([key_of(1), key_of(2)])
    engine.settle()
    assert engine.failed == 2 and not np.array_equal(bytes_of(key_of(1)), bytes_of(key_of(2)))
    assert engine.tier.close()
