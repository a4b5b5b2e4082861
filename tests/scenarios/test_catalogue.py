"""The scenarios and their catalogue, docs/scenarios.md, name each other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
CATALOGUE = HERE.parent.parent / "docs" / "scenarios.md"
ROW = re.compile(r"^\| `([a-z]+-\d\d)` \|", re.MULTILINE)
NAMED = re.compile(r"^((?:[a-z]+-\d\d ?)+): ")


def named(function: ast.FunctionDef) -> list[str]:
    """The rows a test shows, from its docstring."""
    found = NAMED.match(ast.get_docstring(function) or "")
    return found[1].split() if found else []


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    rows = Counter(ROW.findall(CATALOGUE.read_text(encoding="utf-8")))
    assert rows and max(rows.values()) == 1, rows.most_common(1)
    shown: set[str] = set()
    for path in sorted(HERE.rglob("test_*.py")):
        if path != Path(__file__).resolve():
            tests = [
                node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
            ]
            for test in (node for node in tests if node.name.startswith("test_")):
                assert named(test), f"{path.name}: {test.name} names no row"
                shown.update(named(test))
    assert shown == set(rows)
