"""`python -O` changes nothing: what the package does, and what it refuses, is the same without asserts."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire import BrokenInvariant, Cache, CacheConfig, QuireError, TierConfig, check
from quire.core.store import StoreName

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "quire"
OPTIMIZED = sys.flags.optimize > 0

# What runs a second time, under -O, and how many tests that is at least: the compiled store, tiers, one engine.
# Some files of each part here, and with the slow tests all that is not random or long.
ENGINE = ("tests/engine/runner/test_guards.py", "tests/engine/runner/test_engine.py::test_every_kind_of_answer[llama]")
SOME = (
    "tests/test_optimized.py", "tests/core/admission/test_admission.py", "tests/core/test_bad_input.py",
    "tests/core/test_check.py", "tests/core/admission/test_claims.py", "tests/scenarios/transfer/test_sessions.py",
    "tests/scenarios/groups/test_states.py",
    "tests/tiers/disk/test_tier.py", "tests/tiers/shared/test_client.py",
)  # fmt: skip
ALL = {("tests/core",): 500, ("tests/scenarios", "tests/test_optimized.py", *ENGINE): 500, ("tests/tiers",): 450}
LEFT_OUT = ("twin", "hybrid_hit", "transitions", "test_sizes", "threads", "test_gains", "torch_tier", "catalogue",
            "plans_mean", "batches_keep", "window_of_the_prompts_length", "test_learner", "test_lists", "test_ghosts",
            "counterfactuals", "test_crash", "killed", "several_processes", "mooncake")  # fmt: skip

PURE = {"len", "all", "any", "isinstance", "sorted", "set", "sum", "min", "max", "list", "range", "bool", "type"}


def under_o(*args: str) -> subprocess.CompletedProcess[str]:
    """pytest in an interpreter that ignores asserts, but for those in test modules and their helpers."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    quiet = "ignore:assertions not in test modules:pytest.PytestConfigWarning"
    command = [sys.executable, "-O", "-m", "pytest", "-q", "-o", "addopts=", "-W", quiet]
    command += ["-p", "no:cacheprovider", "-p", "no:schemathesis"]
    return subprocess.run([*command, *args], cwd=ROOT, env=names, capture_output=True, text=True, check=False)


def same_without_asserts(what: tuple[str, ...], least: int) -> None:
    ran = under_o("-m", "not slow", "-k", " and ".join(f"not {name}" for name in LEFT_OUT), *what)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-1000:]
    assert int(re.findall(r"(\d+) passed", ran.stdout)[0]) >= least


@pytest.mark.skipif(OPTIMIZED, reason="this is the run without asserts")
def test_what_the_package_does_is_the_same_without_asserts() -> None:
    same_without_asserts(SOME, 200)


@pytest.mark.slow
@pytest.mark.skipif(OPTIMIZED, reason="this is the run without asserts")
@pytest.mark.parametrize("what", ALL, ids=lambda what: what[0].rpartition("/")[2])
def test_all_that_the_package_does_is_the_same_without_asserts(what: tuple[str, ...]) -> None:
    same_without_asserts(what, ALL[what])


@pytest.mark.skipif(OPTIMIZED, reason="this is the run without asserts")
def test_a_test_that_must_fail_fails_without_asserts(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n", encoding="utf-8")
    ran = under_o(str(tmp_path / "test_wrong.py"))
    assert ran.returncode == 1
    assert "1 failed" in ran.stdout


def test_tests_and_their_helpers_assert_in_both_ways() -> None:
    helper = importlib.import_module("tests.tiers.conformance")
    assert type(helper.__loader__).__name__ == "AssertionRewritingHook"
    with pytest.raises(AssertionError):
        assert helper is None


def test_a_broken_cache_is_found_in_both_ways(store: StoreName) -> None:
    cache = Cache(CacheConfig(block_size=4, tiers=(TierConfig("device", 8),), max_length=16), store=store)
    check(cache)
    cache._registry.free_rows.pop()
    with pytest.raises(BrokenInvariant, match="rows are lost") as broken:
        check(cache)
    assert isinstance(broken.value, QuireError)
    assert isinstance(broken.value, AssertionError)


def called(node: ast.AST) -> list[str]:
    """Names of what an expression calls, pure ones left out."""
    calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    names = [func.id if isinstance(func, ast.Name) else getattr(func, "attr", "?") for func in calls]
    return [name for name in names if name not in PURE]


def kept(node: ast.AST) -> list[str]:
    """What an expression leaves behind, or waits for."""
    return [type(one).__name__ for one in ast.walk(node) if isinstance(one, ast.NamedExpr | ast.Await | ast.Yield)]


@pytest.mark.parametrize(
    ("text", "work"),
    [("rows.pop()", ["pop"]), ("(row := free)", ["NamedExpr"]), ("await line", ["Await"]), ("len(rows) == 2", [])],
)
def test_work_in_an_assert_is_seen(text: str, work: list[str]) -> None:
    found = ast.parse(f"async def body():\n    assert {text}").body
    [made] = [node for one in found for node in ast.walk(one) if isinstance(node, ast.Assert)]
    assert called(made.test) + kept(made.test) == work


def test_no_assert_does_work() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert) and (work := called(node.test) + kept(node.test)):
                found.append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno} does {work}")
    assert not found


def test_the_compiled_store_has_no_asserts() -> None:
    native = sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxi")])
    assert native
    found = [path.name for path in native if re.search(r"^\s*assert\b", path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert not found
