"""A cache whose disk lasts: written, closed or killed, opened again, prefetched, found."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from contextlib import nullcontext
from logging import WARNING
from pathlib import Path

import numpy as np
import pytest

from quire import Cache, CacheConfig, InputError, Request, Scope, StateError, TierConfig, check
from quire.core.outside.prefetch import Prefetch
from quire.core.records.plan import MoveColumn, Plan
from quire.tiers import Mover, PageLayout
from quire.tiers.disk import DiskKeeper, KeeperPace
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.keep.disk_health import DiskHealth
from quire.tiers.disk.log.read_manifest import NAME

from ...effort import cases
from ...waits import until
from .rig import BLOCK, DISK, FINGERPRINT, HOST, OFTEN, PAGE, Kept, page_of, prompt
from .stand_ins import Faults, FaultyFiles, FullFiles
from .test_tier import flip

ROOT = Path(__file__).resolve().parents[3]


def test_a_new_process_finds_what_the_last_one_computed(tmp_path: Path) -> None:
    before = Kept(tmp_path)
    before.compute(1)
    before.compute(2, Scope(salt="tenant"))
    before.close()
    after = Kept(tmp_path)
    assert after.keeper.report().restored == 8
    assert after.found(1) == 0, "nothing is in host memory yet"
    assert after.fetched(1) == 16 and after.fetched(2, Scope(salt="tenant")) == 16
    assert after.fetched(2) == 0, "another scope"
    check(after.cache)
    after.close()
    assert not examine(after.folder.folder).findings


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("quire") and one.levelno >= WARNING]


def test_a_stall_is_logged_once_though_some_records_go_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records are written, and the fence behind them is not, again and again: that is one stall."""
    files = FullFiles()
    kept = Kept(tmp_path, OFTEN, files)
    kept.compute(0)
    assert kept.keeper.flush() and not warnings_of(caplog)
    files.full, files.most_bytes = {NAME, "manifest.new"}, 64
    for number in range(1, 4):
        kept.compute(number)
        assert not kept.keeper.flush() and "ENOSPC" in kept.keeper.report().stalled
        assert kept.keeper.report().copied_down == 4 * number + 4, "with their records"
    (begins,) = warnings_of(caplog)
    assert str(kept.folder.folder) in begins and "ENOSPC" in begins
    files.full = set()
    until(lambda: not kept.keeper.report().stalled)  # by itself
    (_, ends) = warnings_of(caplog)
    assert ends == f"pages are copied down to {kept.folder.folder} again"
    kept.close()


def test_a_disk_that_has_failed_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    kept = Kept(tmp_path, files=FaultyFiles(faults))
    faults.sync_errors |= {NAME: errno.EIO, "manifest.new": errno.EIO}
    kept.compute(1)
    for number in range(2, 5):
        assert not kept.keeper.flush()
        kept.compute(number)
        with pytest.raises(OSError, match="EIO"):
            kept.keeper.fence()
    (ends,) = warnings_of(caplog)
    assert "any more" in ends and "EIO" in ends
    kept.close()
    caplog.clear()
    health = DiskHealth(tmp_path)
    for _ in range(2):  # a compaction, and a record
        health.fail(OSError(errno.EIO, "damaged"))
    for _ in range(2):
        health.on_error(RuntimeError("a bug"))
    assert len(warnings_of(caplog)) == 2 and health.report.errors == 2 and "EIO" in health.report.broken


def test_more_than_the_host_holds_goes_through_the_disk(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(7):
        kept.compute(number)
        assert kept.keeper.flush()
    assert kept.keeper.report().copied_down == 28 > HOST
    for number in range(7):
        assert kept.fetched(number) == 16
    check(kept.cache)
    kept.close()
    again = Kept(tmp_path)
    memory, pages = again.keeper.report().index_bytes, again.cache.usage(2)
    assert pages.idle == 28 and memory == pages.index_bytes + 9 * DISK > 28 * 100
    assert [again.fetched(number) for number in range(7)] == [16] * 7
    again.close()


def test_slots_of_the_disk_are_used_again(tmp_path: Path) -> None:
    """Three times what it holds: old pages make way, their records do too, and what is there is right."""
    kept = Kept(tmp_path)
    for number in range(24):
        kept.compute(number)
        kept.keeper.flush()
    assert kept.keeper.report().copied_down > 2 * DISK
    kept.close()
    assert not examine(kept.folder.folder).findings
    again = Kept(tmp_path)
    assert again.keeper.report().restored == DISK
    ends = [again.fetched(number) for number in range(24)]
    assert sum(ends) == DISK * BLOCK
    check(again.cache)
    again.close()


def test_it_works_by_itself_beside_others(tmp_path: Path) -> None:
    """Without being asked: pages go down, fences are made, the log is compacted, pages are scrubbed."""
    pace = KeeperPace(look_seconds=0.001, fence_seconds=0.001, compact_bytes=2000, scrub_bytes_per_second=1e9)
    kept = Kept(tmp_path, pace)
    number = 0
    while (report := kept.keeper.report()).copied_down < 100 or not report.compactions or report.fences < 3:
        kept.compute(number := number + 1)
        kept.keeper.idle()
    assert not report.broken and not report.failed
    kept.keeper.flush()
    check(kept.cache)
    kept.close()
    assert not examine(kept.folder.folder).findings
    again = Kept(tmp_path, OFTEN)
    assert again.fetched(number) == 16
    again.close()


def slots_of(kept: Kept, number: int) -> list[int]:
    """Where a prompt's pages are on disk, in the order of its blocks; a prefetch knows."""
    prefetch = kept.cache.prefetch(Request("look", prompt(number)))
    assert isinstance(prefetch, Prefetch)
    with prefetch:
        slots: list[int] = prefetch.plan.moves[:, MoveColumn.SRC_SLOT].tolist()
        kept.keeper.run(prefetch.plan).result()
    return slots


def test_a_page_that_went_bad_is_a_miss(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.compute(1)
    kept.close()
    look = Kept(tmp_path)
    third = slots_of(look, 1)[2]
    look.close()
    flip(model_folder(tmp_path, FINGERPRINT) / "pages-0", third * 4096 + 3)
    again = Kept(tmp_path)
    assert again.fetched(1) == 2 * BLOCK, "the third block is bad"
    assert again.keeper.report().failed == 1
    check(again.cache)
    again.compute(1)
    again.close()
    last = Kept(tmp_path)
    assert last.fetched(1) == 4 * BLOCK
    last.close()


def test_plans_run_in_whatever_order_they_come(tmp_path: Path) -> None:
    """A prefetch that was made before pages went down, and is run after them."""
    before = Kept(tmp_path)
    before.compute(1)
    before.close()
    kept = Kept(tmp_path)
    early = kept.cache.prefetch(Request("early", prompt(1)))
    assert isinstance(early, Prefetch)
    with early:
        kept.compute(2, blocks=2)
        assert kept.keeper.flush()
        assert kept.keeper.run(early.plan).result() == [] and early.arrived
    assert kept.found(1) == 16
    check(kept.cache)
    kept.close()


def test_what_the_scrubber_finds_is_lost(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.compute(1)
    kept.close()
    flip(model_folder(tmp_path, FINGERPRINT) / "pages-0", 3)
    again = Kept(tmp_path, KeeperPace(look_seconds=600, scrub_bytes_per_second=1e9))
    while not again.keeper.report().scrubbed_bad:
        again.keeper.idle()
    assert again.cache.usage(2).empty > DISK - 4, "nobody has asked for it yet"
    assert again.fetched(1) < 16
    check(again.cache)
    again.close()
    assert not examine(again.folder.folder).findings, "its record is gone too"


def test_forgotten_is_gone_from_manifest_and_bytes(tmp_path: Path) -> None:
    mine, theirs = Scope(salt="mine"), Scope(salt="theirs")
    kept = Kept(tmp_path)
    kept.compute(1, mine)
    kept.compute(2, theirs)
    kept.keeper.flush()
    kept.close()
    again = Kept(tmp_path)  # of which only digests of the scopes are known
    again.compute(3, mine)
    again.keeper.flush()
    model = again.folder.folder
    secret = [prompt(number)[:4].tobytes() for number in (1, 3)] + [
        page_of(prompt(number)[:4]).tobytes() for number in (1, 3)
    ]
    files = [model / NAME, model / "pages-0"]
    assert all(any(part in path.read_bytes() for path in files) for part in secret)
    assert again.keeper.forget(mine) > 0
    assert not any(part in path.read_bytes() for part in secret for path in files)
    assert prompt(2)[:4].tobytes() in files[0].read_bytes()
    again.close()
    last = Kept(tmp_path)
    assert (last.fetched(1, mine), last.fetched(3, mine), last.fetched(2, theirs)) == (0, 0, 16)
    last.close()


@pytest.mark.parametrize("place", ["pages", "sync"])
def test_a_disk_that_fails_ends_copying_and_nothing_else(tmp_path: Path, place: str) -> None:
    before = Kept(tmp_path)
    before.compute(1)
    before.close()
    faults = Faults()
    kept = Kept(tmp_path, files=FaultyFiles(faults))
    kept.compute(2)
    if place == "sync":
        faults.sync_errors["pages-0"] = errno.EIO
        assert not kept.keeper.flush()
        assert "EIO" in kept.keeper.report().broken
        with pytest.raises(OSError, match="has failed before"):
            kept.keeper.fence()
    else:
        faults.write_errors.update({("pages-0", slot * 4096 + 1): errno.ENOSPC for slot in range(DISK)})
        assert not kept.keeper.flush()
        assert kept.keeper.report().failed and not kept.keeper.report().copied_down
    assert kept.found(2) == 16 and kept.fetched(1) == 16
    check(kept.cache)
    with pytest.raises(StateError, match="failed") if place == "sync" else nullcontext():
        kept.close()
    again = Kept(tmp_path)
    assert again.fetched(1) == 16
    again.close()


def test_a_full_disk_stalls_it_until_there_is_room(tmp_path: Path) -> None:
    Kept(tmp_path).close()
    faults = Faults()
    kept = Kept(tmp_path, files=FaultyFiles(faults))
    kept.compute(1)
    faults.write_errors.update({(NAME, place): errno.ENOSPC for place in range(1000, 20000, 8)})
    for _ in range(2):
        assert not kept.keeper.flush()
    assert "ENOSPC" in kept.keeper.report().stalled and not kept.keeper.report().broken
    assert kept.found(1) == 16
    faults.write_errors.clear()
    kept.compute(2)
    assert kept.keeper.flush() and not kept.keeper.report().stalled
    check(kept.cache)
    kept.close()
    again = Kept(tmp_path)
    assert again.fetched(1) == 16 and again.fetched(2) == 16
    again.close()


def test_what_is_forgotten_on_a_full_disk_is_erased_when_there_is_room(tmp_path: Path) -> None:
    kept = Kept(tmp_path, OFTEN)
    kept.compute(1, Scope(salt="mine"))
    kept.keeper.flush()
    kept.close()
    faults = Faults()
    again = Kept(tmp_path, KeeperPace(look_seconds=0.001, scrub_bytes_per_second=0), FaultyFiles(faults))
    faults.write_errors.update({(NAME, place): errno.ENOSPC for place in range(1000, 20000, 8)})
    with pytest.raises(OSError, match="ENOSPC"):
        again.keeper.forget(Scope(salt="mine"))
    faults.write_errors.clear()
    page = page_of(prompt(1)[:4]).tobytes()
    while page in (again.folder.folder / "pages-0").read_bytes():
        again.keeper.idle()
    assert again.fetched(1, Scope(salt="mine")) == 0
    again.close()


def test_a_claim_takes_what_was_prefetched(tmp_path: Path) -> None:
    """With a device: the pages go from disk to host by prefetch, and to the device by the plan of the step."""
    before = Kept(tmp_path, device=6)
    before.compute(1)
    before.close()
    kept = Kept(tmp_path, device=6)
    request = Request("r", np.append(prompt(1), 7).astype(np.int32))
    prefetch = kept.keeper.prefetch(request)
    kept.keeper.idle()
    assert isinstance(prefetch, Prefetch) and prefetch.arrived
    batch = kept.cache.add_sequence_batch([request])
    assert batch.sequences[0].start == 16
    with Mover([kept.device, kept.host, kept.folder.tier], [PageLayout(PAGE)], BLOCK) as mover:
        assert mover.run(batch.plan) == []
    kept.cache.finish(batch.plan)
    table = batch.sequences[0].slots()[:4].tolist()
    for block, slot in enumerate(table):
        assert np.array_equal(kept.device.view(0)[slot], page_of(prompt(1)[: (block + 1) * BLOCK]))
    kept.cache.release(batch.sequences[0])
    check(kept.cache)
    kept.close()


def test_a_plan_that_comes_after_a_step_is_not_run_before_it(tmp_path: Path) -> None:
    """What it reads may come with the step's plan: closed before that is finished, nothing of it is on disk."""
    kept = Kept(tmp_path, device=4)
    kept.compute(5)
    down = kept.cache.copy_down(8)
    batch = kept.cache.add_sequence_batch([Request("a", prompt(1))])
    kept.cache.finish(batch.plan)
    kept.cache.commit(batch.sequences[0])
    kept.cache.release(batch.sequences[0])
    step = kept.cache.add_sequence_batch([Request("b", prompt(2))])  # takes the device: pages go down to the host
    assert len(step.plan) and not step.refused and len(down) == 4
    down.after = step.plan.number
    waits = kept.keeper.run(down)
    with pytest.raises(TimeoutError):
        waits.result(0.05)
    kept.keeper.close(flush_seconds=0)
    with pytest.raises(StateError, match="finish plans before closing"):
        waits.result()
    again = Kept(tmp_path, device=4)
    assert again.keeper.report().restored == 0
    again.close()


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    small = (TierConfig("device", 0), TierConfig("host", 4), TierConfig("disk", 5, slow=True))
    for config in (
        CacheConfig(small[:2], BLOCK, max_length=64),
        CacheConfig(small, BLOCK, max_length=64),
        CacheConfig(small, BLOCK, max_length=64, lasting=True),
    ):
        with pytest.raises(InputError, match="a keeper for this cache"):
            DiskKeeper(Cache(config), kept.folder, [kept.device, kept.host], [PageLayout(PAGE)])
    kept.close()
    kept.close()
    with pytest.raises(StateError, match="it is closed"):
        kept.keeper.fence()


@pytest.mark.long
def test_a_killed_process_leaves_a_cache_that_opens() -> None:
    rounds = cases(6, 15)
    command = [sys.executable, "-m", "tests.tiers.disk.cache_crash", "--rounds", str(rounds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{rounds} caches killed" in done.stdout


def test_full_batches_follow_at_once_and_what_is_left_waits_for_more(tmp_path: Path) -> None:
    """Eight pages, three at most in a plan: three plans, and no look for a fourth before it is time."""
    kept = Kept(
        tmp_path, KeeperPace(look_seconds=600, fence_seconds=600, copy_bytes=3 * PAGE, scrub_bytes_per_second=0)
    )
    plans: list[int] = []
    copy_down = kept.cache.copy_down

    def counted(limit: int) -> Plan:
        plans.append(len(plan := copy_down(limit)))
        return plan

    kept.cache.copy_down = counted  # type: ignore[method-assign]
    kept.compute(1)
    kept.compute(2)
    turns = [kept.keeper._ask(kept.keeper._upkeep.turn).result() for _ in range(3)]
    assert plans == [3, 3, 2] and turns[:2] == [0.0, 0.0] and turns[2] > time.monotonic() + 500
    kept.close()
