"""The shape of the source: sizes, names and the direction of imports, checked on every file of quire/ and fuzzing/."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import quire

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "quire"
PYTHON = sorted(PACKAGE.rglob("*.py"))
FUZZER = sorted((ROOT / "fuzzing").rglob("*.py"))  # not installed, but written by the same rules
NATIVE = sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxi")])

MAX_FILE_LINES = 400  # 300 is the aim; more only where 300 would force a bad cut
MAX_FUNCTION_LINES = 40
MAX_POSITIONAL = 6
MAX_PARAMETERS = 8

# A ring may import itself and the rings below it; transfer and events share a level and do not know each other.
BELOW = {
    "core": set(),
    "net": {"core"},
    "trace": {"core"},
    "tiers": {"core"},
    "insight": {"core", "trace", "tiers"},
    "incidents": {"core", "tiers"},
    "simulate": {"core", "trace", "insight"},
    "events": {"core", "net", "tiers"},
    "transfer": {"core", "net", "tiers"},
    "engine": {"core", "net", "trace", "tiers", "insight", "incidents", "events", "transfer"},
    "integrations": {"core", "trace", "tiers", "insight", "events", "transfer", "engine"},
    "viewer": {"core", "net"},
    "serve": {"core", "net", "tiers", "insight", "events", "transfer", "engine", "viewer"},
    "fleet": {"core", "tiers", "events", "engine", "viewer", "serve"},
}
BELOW["cli"] = set(BELOW)
WHEN_USED = {"quire/core/cache.py": "quire.trace."}  # a file that imports from above, inside the function that needs it
PUBLIC = {"cli", "simulate", "integrations"}  # rings that may use the package's public names, as its users do
FLAT = {  # the boundary to the compiled module: plain numbers, not records
    f"quire/core/store/{part}.py"
    for part in (
        "interface/row_calls", "interface/page_calls", "interface/store",
        "reference/opening", "reference/row_calls", "reference/page_calls",
    )
}  # fmt: skip
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
VAGUE = re.compile(r"(Manager|Helper|Utils?|Base|Impl)(?![a-z])")  # as a part of a CamelCase name: Baseline may stay
NATIVE_FUNCTION = re.compile(r"^(\s*)(?:def|cpdef|cdef)\b(?!\s+class\b)[^=#]*\(")
NATIVE_CLASS = re.compile(r"^\s*(?:cdef\s+|cpdef\s+)?(?:class|struct|enum)\s+(\w+)", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


def functions(tree: ast.AST, in_class: bool = False) -> Iterator[tuple[Function, bool]]:
    """Every function below `tree`, and whether it is a method."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node, in_class
            yield from functions(node)
        elif not isinstance(node, ast.expr):  # an expression has none
            yield from functions(node, in_class=isinstance(node, ast.ClassDef))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement below `tree`, however deep."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


def line_count(function: Function) -> int:
    """Lines from the first decorator to the last statement; the docstring counts."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    assert function.end_lineno is not None
    return function.end_lineno - first + 1


def parameters(function: Function, in_class: bool) -> tuple[int, int]:
    """How many may be given by position, and how many there are in all; self and cls do not count."""
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in function.decorator_list)
    positional = len(function.args.posonlyargs) + len(function.args.args) - (in_class and not static)
    variadic = (function.args.vararg is not None) + (function.args.kwarg is not None)
    return positional, positional + len(function.args.kwonlyargs) + variadic


def imported(path: Path, always: bool = False) -> Iterator[str]:
    """Absolute names of the modules a file imports: wherever the import stands, or always when the file is imported."""
    package = list(path.relative_to(ROOT).parent.parts)
    inside = {part for function, _ in functions(parsed(path)) for part in statements(function)} if always else set()
    for node in statements(parsed(path)):
        if node in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def native_imported(path: Path) -> Iterator[str]:
    """The same for Cython, line by line."""
    for line in text_of(path).splitlines():
        found = re.match(r"\s*(?:from\s+(\S+)\s+c?import|c?import\s+(\S+))", line)
        if found:
            yield found[1] or found[2]


def native_functions(text: str) -> Iterator[tuple[str, int]]:
    """First line and number of lines of each function in Cython source, by indentation."""
    lines = text.splitlines()
    for first, line in enumerate(lines):
        head = NATIVE_FUNCTION.match(line)
        if head is None:
            continue
        last = first
        for number in range(first + 1, len(lines)):
            body = lines[number]
            if body.strip() and not body.strip().startswith((")", "#")):
                if len(body) - len(body.lstrip()) <= len(head[1]):
                    break
                last = number
        yield line.strip(), last - first + 1


# Each rule over all files at once, and every fault with its place: a rule is one test, not one per file.


def test_files_are_short_and_finished() -> None:
    faults = []
    for path in [*PYTHON, *FUZZER, *NATIVE]:
        if (num_lines := len(text_of(path).splitlines())) > MAX_FILE_LINES:
            faults.append(f"{name_of(path)}: {num_lines} lines")
        faults += [f"{name_of(path)}: {word}" for word in UNFINISHED.findall(text_of(path))]
    assert not faults


def test_functions_are_short() -> None:
    faults = []
    for path in [*PYTHON, *FUZZER]:
        for function, in_class in functions(parsed(path)):
            where = f"{name_of(path)}:{function.lineno} {function.name}"
            if (num_lines := line_count(function)) > MAX_FUNCTION_LINES:
                faults.append(f"{where}: {num_lines} lines")
            positional, total = parameters(function, in_class)
            if name_of(path) not in FLAT and (positional > MAX_POSITIONAL or total > MAX_PARAMETERS):
                faults.append(f"{where}: {positional} positional of {total} parameters")
    assert not faults


def test_native_functions_are_short() -> None:
    found = [(path, head, lines) for path in NATIVE for head, lines in native_functions(text_of(path))]
    assert not [f"{name_of(path)}: {head}: {lines} lines" for path, head, lines in found if lines > MAX_FUNCTION_LINES]


def test_imports_point_down() -> None:
    faults = []
    for path in PYTHON:
        ring = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if ring not in BELOW:  # quire/__init__.py and its like may show any ring
            continue
        for module in imported(path):
            parts = module.split(".")
            public = ring in PUBLIC and parts[-1] in quire.__all__ and len(parts) == 2
            near = len(parts) > 1 and parts[1] in BELOW[ring] | {ring}
            near = near or module.startswith(WHEN_USED.get(name_of(path), "-"))
            if parts[0] == "quire" and not public and not near:
                faults.append(f"{name_of(path)} imports {module}")
    assert not faults


def test_what_comes_from_above_is_imported_when_used() -> None:
    for name, above in WHEN_USED.items():
        assert [module for module in imported(ROOT / name) if module.startswith(above)]  # else the exemption can go
        assert not [module for module in imported(ROOT / name, always=True) if module.startswith(above)]


def test_core_needs_only_numpy() -> None:
    faults = []
    for path in [path for path in [*PYTHON, *NATIVE] if PACKAGE / "core" in path.parents]:
        for module in native_imported(path) if path in NATIVE else imported(path):
            top, _, rest = module.partition(".")
            at_home = top == "quire" and rest.split(".")[0] == "core"
            known = top in sys.stdlib_module_names or top in {"numpy", "cython", "libc", "cpython"}
            when_used = module.startswith(WHEN_USED.get(name_of(path), "-"))
            if not (at_home or known or when_used or (path in NATIVE and module.startswith("."))):
                faults.append(f"{name_of(path)} imports {module}")
    assert not faults


def test_class_names_say_something() -> None:
    nodes = ((path, node) for path in [*PYTHON, *FUZZER] for node in statements(parsed(path)))
    classes = [(path, node.name) for path, node in nodes if isinstance(node, ast.ClassDef)]
    classes += [(path, name) for path in NATIVE for name in NATIVE_CLASS.findall(text_of(path))]
    assert not [f"{name_of(path)}: {name}" for path, name in classes if VAGUE.search(name)]


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {
        path.parent for path in [*PYTHON, *FUZZER, *NATIVE] if path.suffix != ".pxi"
    }  # those are text that is included
    assert not [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_the_rules_look_at_the_whole_package() -> None:
    """Nothing above says anything about a file that was not found."""
    assert len(PYTHON) > 150 and len(FUZZER) > 30 and len(NATIVE) > 10
    rings = {path.relative_to(PACKAGE).parts[0] for path in PYTHON}
    assert rings >= set(BELOW)
    found = [function.name for path in PYTHON for function, _ in functions(parsed(path))]
    assert len(found) > 1500 and sum(1 for path in NATIVE for _ in native_functions(text_of(path))) > 100
