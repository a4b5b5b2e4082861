"""Pages of a shared store that were damaged: three machines in a row, and from the second on every page is sound.

Folders, and Redis where there is a server: pages are flipped, cut, and of a format that no version writes, one of them
or all, also those that many ask for again and again.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.tiers.shared.machine import Machine, text
from tests.tiers.shared.redis_server import redis_there
from tests.tiers.shared.test_bad_pages import Change, change_page, cut, flip, row, spoil_number

from .checks import Checks, run

KINDS: dict[str, Change] = {"flipped": flip, "cut": cut, "of another format": spoil_number}
WHICH = {"one": (3,), "some": (1, 2, 4), "the first": (0,), "all": tuple(range(5))}
WHOLE = 20  # tokens of five pages; the last of a prompt is computed in any case


def served(machine: Machine) -> int:
    """Tokens that were reused; wrong bytes among them raise at its close."""
    found = machine.serve(text(1))
    machine.settle()
    return found


def damage(place: str, blocks: tuple[int, ...], change: Change, checks: Checks, what: str) -> None:
    """One machine computes, its pages are damaged; the second mends what it finds, the third misses nothing."""
    with ExitStack() as closing:
        first, second, third = row(closing, place)
        served(first)
        for block in blocks:
            change_page(first, place, block, change)
        before, hot = served(second), [served(second) for _ in range(3)]  # hot: touched again before it is read
        after, missed = served(third), third.shared.counts().misses
        checks.held(f"{what}: the second machine reads up to the first of them", before == 4 * blocks[0], before)
        checks.held(f"{what}: it has all itself then", hot == [WHOLE] * 3, hot)
        checks.held(f"{what}: the third reads all", after == WHOLE and not missed, (after, missed))
        wrong = [*first.wrong, *second.wrong, *third.wrong]
        checks.held(f"{what}: no wrong byte", not wrong, wrong)


def attack(folder: Path, checks: Checks) -> None:
    """Each kind of damage, in a store of its own."""
    for kind, change in KINDS.items():
        for which, blocks in WHICH.items():
            damage(str(folder / f"{kind} {which}"), blocks, change, checks, f"folder, {which} {kind}")
    with redis_there() as server:
        if server is None:
            print("   left out: there is no Redis here", flush=True)
            return
        for kind, change in KINDS.items():
            for which, blocks in WHICH.items():
                server.kill()
                damage(server.start().url, blocks, change, checks, f"Redis, {which} {kind}")


if __name__ == "__main__":
    run("damaged pages of a shared store", attack)
