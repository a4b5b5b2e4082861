"""Inside the core, imports go down one ladder and never in a circle; those for type checking count too."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests.test_shape import PACKAGE, PYTHON, ROOT, imported

LADDER = ("records", "store", "state", "admission", "life", "cache", "check")
CORE = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PYTHON if PACKAGE / "core" in path.parents
}
MODULES = {name.removesuffix(".__init__"): path for name, path in CORE.items()}


def uses(name: str) -> set[str]:
    """Modules of the core that a module imports, itself aside."""
    found = set()
    for full in imported(MODULES[name]):
        module = full if full in MODULES else full.rpartition(".")[0]
        if module in MODULES and module != name:
            found.add(module)
    return found


def rung(name: str) -> int:
    return LADDER.index(name.split(".")[2])


def test_core_imports_go_down() -> None:
    names = [name for name in MODULES if len(name.split(".")) > 2]
    faults = [f"{name} imports {used}" for name in names for used in uses(name) if rung(used) > rung(name)]
    assert not faults and {rung(name) for name in names} == set(range(len(LADDER)))


def test_core_has_no_import_circle() -> None:
    try:
        TopologicalSorter({name: uses(name) for name in MODULES if ".store." not in name}).prepare()
    except CycleError as circle:
        raise AssertionError(f"a circle: {' -> '.join(circle.args[1])}") from None
