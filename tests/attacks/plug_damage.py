"""A plug's files, damaged while no process has them: flipped bits, pages that lie under another key, a manifest that is
cut, gone or not ours. No wrong byte is loaded, whatever is whole comes, and all can be stored again.

Knows no plug, and neither does it know what a key is of: another tenant's is one that the engine made of other words.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np

from quire.tiers.disk.log.read_manifest import NAME

from .checks import Checks
from .plugged import KINDS, Key, Make, Plugged, opened

COUNT = 20  # pages, or objects
OTHERS = 500  # number of another tenant's first key


def damage(plug: tuple[Make, Key], folder: Path, checks: Checks) -> None:
    """All of it, over disk, store and both."""
    for kind in KINDS:
        flipped(plug, folder / f"flipped-{kind}", kind, checks)
        exchanged(plug, folder / f"exchanged-{kind}", kind, checks)
    cut(plug, folder / "cut", checks)


def filled(plug: tuple[Make, Key], folder: Path, kind: str, others: int = 0) -> int:
    """Some texts, and some of another tenant, lie there; how many pages the disk has room for."""
    engine, key_of = opened(plug[0], folder, kind), plug[1]
    for start in [*range(0, COUNT, 5), *range(OTHERS, OTHERS + others, 5)]:
        engine.store([key_of(start + nth) for nth in range(5)])
    engine.settle()
    room = engine.disk.num_slots if engine.disk is not None else 0
    engine.close()
    return room


def goes_on(engine: Plugged, plug: tuple[Make, Key]) -> bool:
    """Whether what is computed again is stored again."""
    keys = [plug[1](one) for one in range(5)]
    engine.store(keys)
    engine.settle()
    return engine.load_all(keys) == 5


def flipped(plug: tuple[Make, Key], folder: Path, kind: str, checks: Checks) -> None:
    """Bits of every file of pages."""
    filled(plug, folder, kind)
    dice = np.random.default_rng(0)
    for path in [*folder.rglob("pages-0"), *list((folder / "store").rglob("*-0"))[::2]]:
        raw = bytearray(path.read_bytes())
        for place in dice.integers(len(raw), size=6):
            raw[place] ^= 1 << int(dice.integers(8))
        path.write_bytes(raw)
    again = opened(plug[0], folder, kind)
    came = again.load_all([plug[1](one) for one in range(COUNT)])
    what = f"{COUNT - came} of {COUNT} pages with flipped bits are failed loads, the rest came"
    checks.held(f"{kind}: {what}", 0 < came < COUNT)
    checks.held(f"{kind}: what is computed again is stored again", goes_on(again, plug))
    again.close()


def exchanged(plug: tuple[Make, Key], folder: Path, kind: str, checks: Checks) -> None:
    """Every page lies where another's should: whole, and with its own checksum, be it another tenant's."""
    room = filled(plug, folder, kind, others=5)
    theirs = [plug[1](OTHERS + nth) for nth in range(5)]
    keys = [plug[1](one) for one in range(COUNT)]
    before = opened(plug[0], folder, kind)
    strangers = [plug[1](OTHERS + 5 + nth) for nth in range(5)]  # under LMCache the first tenant's texts
    checks.held(f"{kind}: a tenant that stored nothing finds nothing", not any(map(before.has, strangers)))
    checks.held(f"{kind}: all that was stored is there", before.load_all([*keys, *theirs]) == COUNT + 5)
    before.close()
    for path in folder.rglob("pages-0"):
        raw = path.read_bytes()
        stride = len(raw) // room
        path.write_bytes(raw[stride:] + raw[:stride])
    paths = sorted((folder / "store").rglob("*-0"))
    pages = [path.read_bytes() for path in paths]
    for path, page in zip(paths, [*pages[1:], *pages[:1]], strict=True):
        path.write_bytes(page)
    again = opened(plug[0], folder, kind)
    came = again.load_all([*keys, *theirs])
    checks.held(f"{kind}: pages that lie under another's key are failed loads", came == 0, came)
    checks.held(f"{kind}: what is computed again is stored again", goes_on(again, plug))
    again.close()


def cut(plug: tuple[Make, Key], folder: Path, checks: Checks) -> None:
    """The disk's manifest: the shorter it is, the less is found, and what is found is right."""
    filled(plug, folder, "disk")
    keys = [plug[1](one) for one in range(COUNT)]
    shares = (1.0, 0.95, 0.7, 0.5, 0.2, 0.01, 0.0)
    ways: dict[str, Callable[[bytes], bytes | None]] = {
        f"cut to {share:.0%}": lambda raw, share=share: raw[: int(len(raw) * share)]  # type: ignore[misc]
        for share in shares
    }
    ways |= {"gone": lambda raw: None, "longer": lambda raw: raw + bytes(100) + raw[: len(raw) // 2]}
    found = {}
    for way, changed in ways.items():
        place = folder / way.replace(" ", "-")
        copytree(folder / "disk", place / "disk")
        for path in list(place.rglob(NAME)):
            after = changed(path.read_bytes())
            path.unlink() if after is None else path.write_bytes(after)
        engine = opened(plug[0], place, "disk")
        found[way] = engine.load_all(keys)  # raises at a wrong byte
        checks.held(f"manifest {way}: {found[way]} of {COUNT} are found; stores go on", goes_on(engine, plug))
        engine.close()
    falling = [found[f"cut to {share:.0%}"] for share in shares]
    right = falling[0] == COUNT and falling[-1] == found["gone"] == 0 and 0 < falling[3] < COUNT
    checks.held("what a manifest says is there, and nothing else", right and falling == sorted(falling)[::-1])
