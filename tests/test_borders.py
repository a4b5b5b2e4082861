"""The borders inside the house: no file of the core reaches into what another keeps private, and between a folder's own
files and its subfolders imports go one way."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

import quire

from .test_plan import ROOT, Graph, graph, parsed

CORE = sorted((ROOT / "quire" / "core").rglob("*.py"))
ITSELF = {"self", "cls"}
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}  # public, whatever their names look like

# Folders whose own files and one of their subfolders import each other; new ones mend what they find.
BOTH_WAYS: set[str] = set()

# What a caller sees of the handles that he holds. What the cache keeps behind them is none of it.
HANDLES = {
    "Batch": "num_tokens plan receipts refused sequences snapshots spans waiting",
    "Claim": (
        "coming coming_pages encoder_start gains_from junction num_tokens onboards prepared purpose receipt "
        "request slots_needed spans start wanted_blocks"
    ),
    "Claims": "close drop leave_out refused",
    "Found": "blocks close closed end lost request slots start tiers used",
    "Hold": "blocks dropped pages slots span",
    "Prefetch": "arrived close closed end plan request",
    "Prepared": "cut_before end part_at request stop_after",
    "Sequence": (
        "back capacity committed computed counts encoder_computed held id length live pages prepared prompt_end "
        "ran request row session slots span_end start state_slot tenant"
    ),
    "Writer": "blocks close closed extend forgotten length plan request slots taken tier written",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def defined(tree: ast.Module) -> set[str]:
    """Private names that a file defines: methods, functions, annotated fields, slots, and what it sets on itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign) and any(_is_slots(target) for target in node.targets):
            found.update(str(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_itself(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def _is_slots(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "__slots__"


def _is_itself(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ITSELF


def reaches(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Where a file reads or sets `other._name`, and defines no such name itself."""
    own = defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield from () if _is_itself(node.value) else (node,)


def test_no_file_of_the_core_reaches_into_another() -> None:
    """What several files share is named without underscore, on records that the public handles keep to themselves."""
    found = [(path, node) for path in CORE for node in reaches(parsed(path))]
    assert [f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}" for path, node in found] == []


def test_no_file_of_the_core_imports_a_private_name() -> None:
    faults = []
    for path in CORE:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom):
                faults += [f"{path.relative_to(ROOT)}: {one.name}" for one in node.names if is_private(one.name)]
    assert [fault for fault in faults if not fault.endswith("store/__init__.py: _compiled")] == []


def test_a_reach_would_be_found() -> None:
    text = """
class Own:
    __slots__ = ("_slot", "plain")
    _field: int

    def _method(self):
        self._set = self._elsewhere
        return self.other._deep

def use(one, marks):
    one._slot, one._field, one._set, one._method()
    marks._replace(end=1)
    one._far = type(one)._farther
"""
    assert [node.attr for node in reaches(ast.parse(text))] == ["_far", "_farther", "_deep"]


def test_handles_show_what_callers_use_and_no_more() -> None:
    shown = {name: " ".join(one for one in dir(getattr(quire, name)) if one[0] != "_") for name in HANDLES}
    assert shown == HANDLES


def both_ways(arrows: Graph) -> dict[str, set[str]]:
    """By folder, its subfolders with which its own files share arrows in both directions; __init__ only shows them."""
    folders = {name for name in arrows if any(other.startswith(f"{name}.") for other in arrows)}
    down, up = defaultdict(set), defaultdict(set)
    for name, other in [(name, other) for name, many in arrows.items() for other in many]:
        here, there = (one.rpartition(".")[0] for one in (name, other))
        if name not in folders and other.startswith(f"{here}.") and there != here:
            down[here].add(other[len(here) + 1 :].split(".")[0])
        elif other not in folders and name.startswith(f"{there}.") and there != here:
            up[there].add(name[len(there) + 1 :].split(".")[0])
    return {name: both for name in folders if (both := down[name] & up[name])}


def test_folders_and_their_subfolders_import_one_way() -> None:
    found = both_ways(graph("quire"))
    assert {name: sorted(inner) for name, inner in found.items() if name not in BOTH_WAYS} == {}
    assert BOTH_WAYS - found.keys() == set(), "mended: take them off the list"


def test_both_ways_would_be_found() -> None:
    arrows: Graph = {
        "p": {"p.up.d"}, "p.top": {"p.low.a", "p.mid.b"}, "p.base": set(), "p.low": set(), "p.low.a": {"p.base"},
        "p.mid": set(), "p.mid.b": {"p.low.a"}, "p.mid.deep": set(), "p.mid.deep.c": {"p.mid.b"}, "p.up": set(),
        "p.up.d": {"p.top"},
    }  # fmt: skip
    assert both_ways(arrows) == {"p": {"low"}}
