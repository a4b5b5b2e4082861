"""The shape of the two stores: cut into the same parts, in the same order, each part knowing only those before it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from quire.core.store import StoreName, interface, open_store
from tests.test_shape import PACKAGE, PYTHON, imported, parsed, text_of

STORE = PACKAGE / "core" / "store"
COMPILED = STORE / "compiled"
REFERENCE = STORE / "reference"
ALONE = {  # parts that only the compiled store has
    "memory": "Python grows its lists by itself",
    "construct": "C memory and the NumPy views of it are made by hand; the reference store's classes make their own",
    "cell_runs": "the same as runs, in the adaptive order",
    "runs": "slots taken many at a time, for the processor's sake; the reference store takes them one by one",
    "spare": "few slots for a writer without claims on all of its text, for the processor's sake; the other claims it",
    "named": "a caller's arrays of numbers, each found and looked at once; the reference store reads them as lists",
    "holders": "a published page's holders in as few bytes as they need; the reference store has a dict per worker",
    "key_lists": "what the reference store's Kept and its lists are; a class cannot have C functions with pointers",
    "holder_table": "a hash table of those; the reference store has a dict per worker",
}
APART = {
    "Tree": "in C a node is a place in its arrays, so they come together; the reference store's nodes are objects",
    "Pool": "in C one struct, with the listing; the reference store's pool is a class above that of its listing",
}
CLASSES = (
    "Chain",
    "Hit",
    "KeyOrder",
    "Ledger",
    "Store",
)  # what both give out: their methods are the interface, not parts of it
CALLS = (*CLASSES, "OpenStore", "RowCalls", "PageCalls")  # and what Store is made of
CODE = re.compile(r'"""[\s\S]*?"""|#[^\n]*|"(?:\\.|[^"\\\n])*"')
DEFINED = re.compile(r"^cdef (?!enum|extern)(?:(?:class|struct|union) (\w+)|[^(=\n]*?[ *](\w+)\()", re.MULTILINE)


COMPILED_PARTS = {path.stem: path for path in COMPILED.rglob("*.pxi")}
REFERENCE_PARTS = {path.stem: path for path in REFERENCE.rglob("*.py") if path.stem != "__init__"}


def code_of(part: str) -> str:
    """A compiled part without comments, docstrings and strings; C code in it is in strings too."""
    return CODE.sub("", text_of(COMPILED_PARTS[part]))


def compiled_order() -> list[str]:
    return re.findall(r'^include "compiled/(?:\w+/)?(\w+)\.pxi"', text_of(STORE / "_compiled.pyx"), re.MULTILINE)


def reference_order() -> list[str]:
    """The read order that the reference store's docstring gives."""
    told = re.search(r"Read order[^:]*: ([\w,\s]+)\.", text_of(REFERENCE / "__init__.py"))
    assert told is not None
    return [part.strip() for part in told[1].split(",")]


def defined_in(part: str) -> set[str]:
    """Functions, structs and classes of a compiled part."""
    return {name for pair in DEFINED.findall(code_of(part)) for name in pair if name}


def functions_in(path: Path) -> set[str]:
    """Functions of a reference module and methods of its inner classes, without underscores before their names."""
    found: set[str] = set()
    for node in parsed(path).body:
        inner = node.body if isinstance(node, ast.ClassDef) and node.name not in CALLS else [node]
        functions = [item for item in inner if isinstance(item, ast.FunctionDef) and not item.decorator_list]
        found |= {item.name.lstrip("_") for item in functions if not item.name.startswith("__")}
    return found


def test_both_stores_have_the_same_parts_in_the_same_order() -> None:
    assert [part for part in compiled_order() if part not in ALONE] == reference_order()
    assert set(compiled_order()) >= set(ALONE)
    assert sorted(compiled_order()) == sorted(path.stem for path in COMPILED.rglob("*") if path.is_file())
    assert sorted(reference_order()) == sorted(path.stem for path in REFERENCE.rglob("*.py") if path.stem != "__init__")
    for part, path in REFERENCE_PARTS.items():
        assert path.parent.relative_to(REFERENCE) == COMPILED_PARTS[part].parent.relative_to(COMPILED)


def test_the_rules_of_the_store_name_every_part() -> None:
    page = (PACKAGE.parent / "docs" / "reference" / "store.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| parts \| what they do \|\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()))
    assert sorted(named) == sorted(reference_order())


def test_what_both_stores_have_stands_in_the_same_part() -> None:
    of_compiled = {name: part for part in compiled_order() for name in defined_in(part)}
    faults, both = [], set()
    for part in reference_order():
        classes = {node.name for node in parsed(REFERENCE_PARTS[part]).body if isinstance(node, ast.ClassDef)}
        both |= (shared := (functions_in(REFERENCE_PARTS[part]) | classes) & set(of_compiled))
        faults += [
            f"{name}: {of_compiled[name]} and {part}"
            for name in shared
            if of_compiled[name] != part and name not in APART
        ]
    assert not faults
    assert len(both) > 100 and both >= {*CALLS, "commit", "evict_copy", "climb", "Page", "Node", "State"}


def test_a_compiled_part_uses_only_parts_before_it() -> None:
    order, faults = compiled_order(), []
    for place, part in enumerate(order):
        later = {name: other for other in order[place + 1 :] for name in defined_in(other)}
        names = set(re.findall(r"(?<![\w.])(\w+)(?=\()|(?<![\w.])([A-Z]\w+)", code_of(part)))  # called, or a type
        used = {name for pair in names for name in pair}
        faults += [f"{part} uses {name} of {later[name]}" for name in sorted(used & set(later))]
    assert not faults


def test_a_part_of_the_reference_store_imports_only_parts_before_it() -> None:
    order, faults = reference_order(), []
    for place, part in enumerate(order):
        for module in imported(REFERENCE_PARTS[part]):
            inside = module.removeprefix("quire.core.store.reference.").split(".")
            used = inside[1] if (REFERENCE / inside[0]).is_dir() else inside[0]  # in a folder, or beside the folders
            if module.startswith("quire.core.store.reference.") and used not in order[:place]:
                faults.append(f"{part} imports {module}")
    assert not faults


def test_the_rules_see_the_whole_of_both_stores() -> None:
    """Nothing above says anything about a name that was not found."""
    assert sum(len(defined_in(part)) for part in compiled_order()) > 300
    assert sum(len(functions_in(REFERENCE_PARTS[part])) for part in reference_order()) > 150
    assert {"Row", "State", "joins", "hand_out"} <= defined_in("state") and "reserve" in defined_in("memory")
    assert {"set_column", "hand_out"} <= functions_in(REFERENCE_PARTS["state"])


# The interface: protocols that everything above is typed against, and nothing public beside them


INNER = {  # names of the reference store that only its own parts use
    "Chain": {"block", "block_size", "span"},
    "Hit": {
        "add_pending", "blocks_for", "end_of", "front", "frozen", "groups", "has_needs", "held_blocks", "mark",
        "nodes", "num_cold", "owner", "owner_row", "page_of", "pages_for", "pages_held", "pages_of_source", "pending",
        "row", "seated", "set_coming", "set_source", "settled", "source_node", "source_pages", "stays", "told",
        "walked",
    },
    "KeyOrder": set(),
    "Ledger": set(),
    "Store": set(),
}  # fmt: skip


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def promised(name: str) -> set[str]:
    """Members of a protocol."""
    protocol = getattr(interface, name)
    fields = {field for part in protocol.__mro__ for field in vars(part).get("__annotations__", ())}
    return public(protocol) | {field for field in fields if not field.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_both_stores_have_the_interface_and_nothing_beside_it(store: StoreName, name: str) -> None:
    found = public(getattr(open_store(store), name))
    assert found - (INNER[name] if store == "twin" else set()) == promised(name)
    assert not INNER[name] & promised(name)
    assert ("__len__" in vars(getattr(interface, name))) == hasattr(getattr(open_store(store), name), "__len__")


def test_only_the_interface_is_known_outside() -> None:
    inside = ("quire.core.store.reference", "quire.core.store._compiled")
    old_name = STORE / "twin.py"
    outside = [path for path in PYTHON if REFERENCE not in path.parents and path != old_name]
    assert not [f"{path}: {name}" for path in outside for name in imported(path) if name.startswith(inside)]


@pytest.mark.parametrize("name", CLASSES)
def test_both_stores_take_the_same_arguments(store: StoreName, name: str) -> None:
    kind, protocol, faults = getattr(open_store(store), name), getattr(interface, name), []
    for member in sorted(promised(name)):
        said = inspect.getattr_static(protocol, member, None)
        if inspect.isfunction(said):
            wanted = [(each.name, each.default is each.empty) for each in inspect.signature(said).parameters.values()]
            given = inspect.signature(getattr(kind, member)).parameters.values()
            if [(each.name, each.default is each.empty) for each in given] != wanted:
                faults.append(f"{name}.{member}{inspect.signature(getattr(kind, member))} instead of {wanted}")
    assert not faults
