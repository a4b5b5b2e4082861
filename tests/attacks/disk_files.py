"""Files of a folder removed, emptied and cut, before it is opened and while it is; a disk without a free byte: what is
lost is reported, nothing wrong is served, and no damage is written anew as if it had never been there.
"""

from __future__ import annotations

import os
from pathlib import Path

from quire import Scope
from quire.tiers.disk.calls.owner import model_folder
from quire.tiers.disk.fsck import examine
from quire.tiers.disk.log.manifest import NEW_NAME
from quire.tiers.disk.log.read_manifest import NAME

from ..tiers.disk.rig import FINGERPRINT, Kept
from ..tiers.disk.test_open import full
from .checks import Checks, run, within

MINE = Scope(salt="mine")


def filled(folder: Path) -> Path:
    kept = Kept(folder)
    kept.compute(1)
    kept.compute(2, MINE)
    kept.close()
    return model_folder(folder, FINGERPRINT)


def attack(folder: Path, checks: Checks) -> None:
    """One folder for each."""
    for way, left in (("removed", 0), ("emptied", 0), ("cut", 2)):
        model = filled(folder / way)
        pages = model / "pages-0"
        pages.unlink() if way == "removed" else os.truncate(pages, 4096 * left)
        kept = Kept(folder / way)
        missing = kept.folder.report.missing
        checks.held(f"pages-0 {way}: {8 - left} pages are missed when it is opened", missing == 8 - left, missing)
        checks.held("no wrong byte is served", kept.fetched(1) in (0, 8))
        kept.close()
    model = filled(folder / "manifest")
    (model / NAME).unlink()
    kept = Kept(folder / "manifest")
    checks.held("manifest removed: it is seen", kept.folder.report.damaged)
    kept.close()
    filled(folder / "open")
    kept = Kept(folder / "open")
    log = kept.folder.folder / NAME
    os.truncate(log, log.stat().st_size // 2)
    checks.held(
        "manifest cut while open: forget says so", isinstance(within(lambda: kept.keeper.forget(MINE)), OSError)
    )
    within(kept.close)
    checks.held("fsck still finds the damage", examine(log.parent).damaged)
    filled(folder / "full")
    kept = within(lambda: Kept(folder / "full", files=full(NEW_NAME)))
    checks.held("a clean folder opens on a full disk", isinstance(kept, Kept) and kept.fetched(1) == 16, kept)
    if isinstance(kept, Kept):
        within(kept.close)


if __name__ == "__main__":
    run("files of a folder", attack)
