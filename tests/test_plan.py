"""The plan of the house: who may import whom inside a ring, no circles, one home for a name, few rooms on a level."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_ROOMS = 15  # files and folders that one folder shows
MAX_SHARED_STEMS = 15  # file names that several folders have; the two stores have the same by design
MAX_TEST_FILES, MAX_TEST_LINES = 25, 600  # of a folder of tests, of a file of tests
TO_BE_CUT: frozenset[str] = frozenset()
Graph = Mapping[str, set[str]]

# Inside a ring, from the ground up. A room may import itself and those before it; a|b share a floor.
LADDERS = {
    "core": [
        "records",
        "store|split|content",
        "state",
        "admission",
        "outside",
        "sequences",
        "colder_tiers|questions|watcher",
        "invariants",
        "cache",
        "check|maps",
    ],
    "engine": [
        "tensors",
        "structured_outputs",
        "sampling|model",
        "setup",
        "step",
        "deadlines",
        "memory",
        "runner",
        "loop|publishing",
        "disagg",
        "llm",
        "thread_watch",
    ],
    "events": ["wire", "publish|follow"],
    "insight": [
        "block_table|running_sums|columns|regret_report|deadlines",
        "hot_blocks",
        "traffic|order_sample",
        "what_if|sample_rate",
        "evaluate",
        "regret|findings|bills",
        "prompt_diff",
    ],
    "incidents": ["record", "files", "play|signs|listening", "incidents"],
    "tiers.disk": ["calls", "pages", "log|ranks", "fsck|space", "folder", "keep|keyed"],
    "transfer": ["geometry", "views|links", "wire", "session", "endpoint", "endpoint_thread"],
    "viewer": [
        "cells|labels|prefixes|source",
        "snapshot|brief",
        "receipts|sampler",
        "page_routes",
        "page_server|many",
        "viewer",
        "made_up_traffic",
        "__main__",
    ],
    "net": ["hosts|address|secrets|tls|zmq_sockets", "lookup|hmac_authentication|curve_keys", "limits"],
    "trace": ["units", "record", "read", "prompts", "logs|stats"],
    "simulate": ["setup", "optimum", "play", "show", "capacity", "replay_report"],
    "cli": [
        "arguments",
        "main|model_options",
        "chat|prefill|events_command|incident_command",
        "simulate|trace|tiers|serve|disagg",
        "prompts",
        "demo",
        "__main__",
    ],
}
TWO_SIDES = ("quire.core.store.",)  # the stores have the same classes, and the interface has them once more


@cache
def modules(package: str) -> dict[str, Path]:
    """Dotted name -> file."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def named(path: Path) -> Iterator[str]:
    """Modules that a file imports, by their whole names."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules of `known` that a file imports, wherever in the file, for type checking too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inner & known.keys()
            if node.module in known and not inner <= known.keys():
                yield node.module


@cache
def graph(package: str) -> Graph:
    known = modules(package)
    return {name: {other for other in imported(path, known) if other != name} for name, path in known.items()}


def reached(arrows: Graph, start: str) -> set[str]:
    """Everything that the imports of `start` lead to; `start` itself only in a circle."""
    found: set[str] = set()
    waiting = list(arrows[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += arrows[name]
    return found


def circles(arrows: Graph) -> set[frozenset[str]]:
    """Modules that import each other in a loop."""
    below = {name: reached(arrows, name) for name in arrows}
    looped = [name for name in arrows if name in below[name]]
    return {frozenset(other for other in below[name] if name in below[other]) for name in looped}


def test_no_circles() -> None:
    for package in ("quire", "fuzzing"):
        assert [sorted(circle) for circle in circles(graph(package))] == []


def test_a_circle_would_be_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "e"}, "d": {"a"}, "e": {"f"}, "f": {"e"}, "g": set()}
    assert circles(arrows) == {frozenset("abc"), frozenset("ef")}


def test_folders_stand_on_those_below() -> None:
    faults = []
    for ring, floors in LADDERS.items():
        floor_of = {name: number for number, names in enumerate(floors) for name in names.split("|")}
        prefix = f"quire.{ring}."
        for name, below in graph("quire").items():
            here = name.removeprefix(prefix).split(".")[0]
            if not name.startswith(prefix) or here not in floor_of:
                continue
            for other in below:
                there = other.removeprefix(prefix).split(".")[0]
                if other.startswith(prefix) and there != here and floor_of.get(there, 99) >= floor_of[here]:
                    faults.append(f"{name} imports {other}")
    assert faults == []


def test_a_level_shows_few_rooms() -> None:
    rooms: dict[Path, set[Path]] = defaultdict(set)
    for path in modules("quire").values():
        for inner, folder in zip([path, *path.parents], path.parents, strict=False):
            if ROOT / "quire" in [folder, *folder.parents] and inner.name != "__init__.py":
                rooms[folder].add(inner)
    crowded = {folder.relative_to(ROOT).as_posix(): len(inner) for folder, inner in rooms.items()}
    assert {name: number for name, number in crowded.items() if number > MAX_ROOMS} == {}


def test_a_public_class_name_has_one_home() -> None:
    homes = defaultdict(set)
    for name, path in modules("quire").items():
        if not name.startswith(TWO_SIDES):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].add(name)
    assert {name: sorted(places) for name, places in homes.items() if len(places) > 1} == {}


def test_few_files_have_a_namesake() -> None:
    """A search for a file's name finds that file."""
    homes = defaultdict(set)
    for name in modules("quire"):
        folder, _, stem = name.rpartition(".")
        if not name.startswith(TWO_SIDES) and not stem.startswith("_") and modules("quire")[name].stem == stem:
            homes[stem].add(folder)
    shared = {stem: sorted(folders) for stem, folders in homes.items() if len(folders) > 1}
    assert len(shared) <= MAX_SHARED_STEMS, shared


def test_tests_lie_in_small_folders_and_files() -> None:
    folders, long = defaultdict(list), set()
    for path in modules("tests").values():
        folder = path.parent.relative_to(ROOT).as_posix()
        folders[folder].append(path.name)
        if len(path.read_text(encoding="utf-8").splitlines()) > MAX_TEST_LINES:
            long.add(path.relative_to(ROOT).as_posix())
    assert {folder for folder, names in folders.items() if len(names) > MAX_TEST_FILES} <= TO_BE_CUT
    assert {name for name in long if name.rpartition("/")[0] not in TO_BE_CUT} == set()


def test_only_what_users_run_is_installed() -> None:
    top = {name.split(".")[1] for name in modules("quire") if "." in name}
    wings = {"incidents", "insight", "viewer", "serve", "fleet", "integrations", "simulate", "cli"}
    assert top == {"core", "net", "trace", "tiers", "events", "transfer", "engine", *wings}
    assert not [name for name in modules("quire") if "fuzz" in name or "bench" in name]


def test_what_the_tests_import_is_in_the_sdist() -> None:
    grafted = set(re.findall(r"^graft (\w+)$", (ROOT / "MANIFEST.in").read_text(encoding="utf-8"), re.MULTILINE))
    own = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"quire"}  # which setuptools finds by itself
    tested = {name.split(".")[0] for path in modules("tests").values() for name in named(path)}
    assert tested & own >= {"fuzzing", "tests"} and tested & own <= grafted
