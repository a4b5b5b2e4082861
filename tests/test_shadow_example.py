"""The example beside an existing manager: it compares decisions, explains what differs, and acts on nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire import check

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "shadow.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_shadow", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("blocks", [16, 40, 400])
def test_the_manager_does_what_it_does_alone(blocks: int) -> None:
    module = example()
    load = module.some_load(seed=7, num_requests=40)
    alone, watched, shadow = module.Blocks(blocks), module.Blocks(blocks), module.Shadow(blocks)
    assert module.serve(alone, None, load) == module.serve(watched, shadow, load)
    assert (alone.empty, alone.cached) == (watched.empty, watched.cached)
    assert len(alone.empty) + len(alone.cached) == blocks and not alone.used and not alone.held
    check(shadow.cache)
    assert shadow.cache.num_sequences == 0 and shadow.cache.num_free() == blocks and not shadow.cache.open_plans()
    assert shadow.report.requests == 40 and shadow.report.tokens == sum(len(prompt) for _, prompt, _ in load)


def test_with_room_for_all_quire_finds_what_the_manager_finds_and_parts_of_blocks() -> None:
    module = example()
    shadow = module.Shadow(2000)
    module.serve(module.Blocks(2000), shadow, module.some_load(seed=3, num_requests=50), most=1)
    report = shadow.report
    assert not report.refused and 0 < report.theirs < report.ours
    assert report.ours - report.theirs == sum(ours - theirs for _, theirs, ours in report.differ)
    assert all(0 < ours - theirs < module.BLOCK for _, theirs, ours in report.differ)


def test_equal_prompts_of_one_step_are_where_the_manager_finds_more() -> None:
    """It counts on what the same step computes; without `share_pending` Quire finds a page from its commit on."""
    module = example()
    shadow, prompt = module.Shadow(100), list(range(40))
    module.serve(module.Blocks(100), shadow, [("a", prompt, 3), ("b", prompt, 3)])
    assert shadow.report.differ == [("b", 32, 0)]
    assert str(shadow.report).endswith("more in 0, less in 1, no room for 0")


def test_what_quire_has_no_room_for_is_told_and_not_followed() -> None:
    module = example()
    shadow = module.Shadow(8)  # the manager has ten times as much
    module.serve(module.Blocks(80), shadow, module.some_load(seed=5, num_requests=30))
    assert 0 < len(shadow.report.refused) < 30
    check(shadow.cache)
    assert shadow.cache.num_sequences == 0


def test_it_runs_as_a_program() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=240, check=True)
    first, *differ = ran.stdout.splitlines()
    assert first.startswith("60 requests: the manager found ") and " tokens, Quire " in first
    assert differ and all("the manager found" in line for line in differ)
