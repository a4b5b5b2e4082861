"""Crashes: a child writes pages and is killed (SIGKILL) at some byte, then files are damaged; the next process must
find what was durable, serve no wrong byte, and fsck must name the damage.

By hand, as many as you like: python -m tests.tiers.disk.crash --rounds 5000.

The child tells on a pipe what it is about to free and what has become durable; what it told before it died must hold.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from quire import StateError
from quire.tiers.disk import DiskIO
from quire.tiers.disk.calls.files import READ_ONLY_FILES
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import ModelReport, examine
from quire.tiers.disk.log.frames import Log
from quire.tiers.disk.log.manifest_contents import read_log
from quire.tiers.disk.log.read_manifest import NAME, ReadManifest, read_manifest
from quire.tiers.disk.pages.slots import page_file, slot_bytes

from .dying import DeadlyFiles, Tell, run_rounds, until_killed
from .world import APART, FINGERPRINT, POOLED, Shape, World, places_of

IO = DiskIO(num_threads=2)
Place = tuple[int, int]  # group, slot


def lived(folder: Path, world: World, dice: np.random.Generator) -> World:
    """A child opens the folder and writes until it is killed; the world as it told it last."""
    seed, changes, by_hand = int(dice.integers(1 << 60)), int(dice.integers(120)), dice.random() < 0.3
    files = DeadlyFiles(1 << 40 if by_hand else changes, np.random.default_rng(seed))
    told = until_killed(lambda tell: _write(folder, world, files, tell), max(1, changes % 20) if by_hand else None)
    last: World = told[-1] if told else world
    return last


def _write(folder: Path, world: World, files: DeadlyFiles, send: Tell) -> None:
    def tell(now: World) -> None:
        now.tell = None  # type: ignore[assignment]  # a function does not travel
        send(now)
        now.tell = tell

    opened = world.shape.open(folder, IO, files)
    world.judge(opened)
    world.reopened(opened.contents)
    world.tell = tell
    tell(world)
    while True:
        world.step(opened, files.dice)


@dataclass
class Damage:
    """What was done to the files after the child was dead."""

    kind: str = "none"
    pages: set[Place] = field(default_factory=set)  # slots that were hit
    log: bool = False
    durable: bool = False  # whether it hit what was on disk for certain
    spared: set[tuple[int, int, int]] | None = None  # what the rest of the log still says


def hurt(folder: Path, shape: Shape, dice: np.random.Generator) -> Damage:
    """Damage one file, or none."""
    model = model_folder(folder, FINGERPRINT)
    ways = [_nothing, _flip_log, _cut_log, _flip_pages, _cut_pages]
    return ways[int(dice.integers(len(ways)))](model, shape, dice)


def _nothing(model: Path, shape: Shape, dice: np.random.Generator) -> Damage:
    return Damage()


def _flip_log(model: Path, shape: Shape, dice: np.random.Generator) -> Damage:
    before = read_manifest(READ_ONLY_FILES, model, FINGERPRINT)
    path = model / NAME
    if before is None or not before.log.frames:
        return Damage()
    raw = bytearray(path.read_bytes())
    places = [int(dice.integers(len(raw))) for _ in range(int(dice.integers(1, 4)))]
    for place in places:
        raw[place] ^= 1 << int(dice.integers(8))
    path.write_bytes(raw)
    try:
        after = read_manifest(READ_ONLY_FILES, model, FINGERPRINT)
    except StateError:  # no frame is left, and its first bytes are not ours any more
        return Damage("unknown")
    assert after is not None
    spared = [frame for frame in before.log.frames if not any(frame.start <= place < frame.end for place in places)]
    assert [frame.start for frame in after.log.frames] == [frame.start for frame in spared], "more is lost than was hit"
    certain = any(place < _durable_end(before) for place in places)
    rest = Log(spared, after.log.gaps, after.log.covered, after.log.end)
    return Damage("flip log", set(), True, certain, set(places_of(read_log(rest, shape.pool_of))))


def _cut_log(model: Path, shape: Shape, dice: np.random.Generator) -> Damage:
    path = model / NAME
    before = read_manifest(READ_ONLY_FILES, model, FINGERPRINT)
    if before is None:
        return Damage()
    size = int(dice.integers(path.stat().st_size))
    os.truncate(path, size)
    return Damage("cut log", set(), True, size < _durable_end(before))


def _durable_end(before: ReadManifest) -> int:
    assert before.mark is not None
    return max((frame.end for frame in before.log.frames if frame.number < before.mark), default=512)


def _flip_pages(model: Path, shape: Shape, dice: np.random.Generator) -> Damage:
    group = shape.pool_of[int(dice.integers(2))]
    path, slot = model / page_file(group), int(dice.integers(shape.num_slots[group]))
    place = slot * slot_bytes(shape.page_bytes[group]) + int(dice.integers(shape.page_bytes[group]))
    if not path.exists() or path.stat().st_size <= place:
        return Damage()
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1 << int(dice.integers(8))
    path.write_bytes(raw)
    return Damage("flip pages", _of_all(shape, group, {slot}))


def _of_all(shape: Shape, group: int, slots: set[int]) -> set[Place]:
    """These slots, of every group that has them."""
    return {(nth, slot) for nth, pool in enumerate(shape.pool_of) if pool == group for slot in slots}


def _cut_pages(model: Path, shape: Shape, dice: np.random.Generator) -> Damage:
    group = shape.pool_of[int(dice.integers(2))]
    path, stride = model / page_file(group), slot_bytes(shape.page_bytes[group])
    if not path.exists() or not path.stat().st_size:
        return Damage()
    size = int(dice.integers(path.stat().st_size))
    os.truncate(path, size)
    slots = range(shape.num_slots[group])
    lost = {slot for slot in slots if slot * stride + shape.page_bytes[group] > size}
    return Damage("cut pages", _of_all(shape, group, lost))


def judge(folder: Path, world: World, damage: Damage) -> None:
    """fsck names it, and a new process serves what is right and nothing else."""
    model = model_folder(folder, FINGERPRINT)
    if damage.kind == "unknown":
        assert "nothing was changed" in examine(model, repair=True).refused
        return
    if (model / NAME).exists():
        _judge_report(examine(model), world, damage)
    opened = world.shape.open(folder, IO)
    try:
        bad = frozenset(damage.pages)
        if (
            damage.log
        ):  # what a lost record had freed may show again; that its bytes are others is found out when it is read
            world.durable = {}
            bad = frozenset((group, slot) for group, slot, _ in places_of(opened.contents))
        world.judge(opened, bad)
        if damage.spared is not None:
            found = set(places_of(opened.contents))
            assert found <= damage.spared and len(damage.spared - found) <= opened.report.unwritten
    finally:
        opened.close()
    if damage.kind != "none":
        again = examine(model, repair=True)
        assert not again.refused
        after = examine(model)
        assert not after.damaged, f"damage is left after a repair: {after.findings}"


def _judge_report(report: ModelReport, world: World, damage: Damage) -> None:
    assert not report.refused, report.refused
    told = " ".join(finding.text for finding in report.findings)
    if damage.kind == "none":
        assert not report.damaged, f"a crash is no damage: {report.findings}"
    if damage.durable:
        assert report.damaged, f"{damage.kind} is not named: {told}"
    elif damage.kind == "flip log":
        assert report.findings, "not even a note"
    for group, slot in damage.pages & world.durable.keys():
        assert f"slot {slot} of group {group}:" in told, f"{damage}: not named in {told}"


def round_(folder: Path, seed: int) -> None:
    """Write and die, a few times; then damage, and look."""
    dice = np.random.default_rng(seed)
    world = World(POOLED if seed % 3 == 2 else APART)
    for _ in range(int(dice.integers(1, 4))):
        world = lived(folder, world, dice)
    judge(folder, world, hurt(folder, world.shape, dice))


if __name__ == "__main__":
    sys.exit(run_rounds("crash", round_, 50, "crashes: nothing durable lost, no wrong byte, every damage named"))
