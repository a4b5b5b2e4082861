"""The benchmarks run, and say what they are read for. Each runs as a user would run it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("quire.core.store._compiled") is None, reason="the workload is too large without it"
)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / words[0]), *words[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def numbers(*words: str) -> dict[str, Any]:
    ran = run(*words)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def test_the_benchmark_prints_every_number() -> None:
    told = numbers("bench.py", "--json", "--rounds", "1", "--quick")
    names = "cold_8k_us hit90_8k_us full_8k_us admit_64x8k_us decode_1024_us release_8k_us event_ns_per_block"
    more = "bytes_per_block tiers_events_factor gc_ms groups_cold_factor groups_hit_factor groups_decode_factor"
    assert {*names.split(), *more.split()} <= set(told)
    assert told["bytes_per_block"] <= 120 and told["ghost_bytes_per_slot"] == 256


def test_two_trees_are_compared_row_by_row() -> None:
    told = numbers("ab.py", ".", ".", "--rounds", "2", "--rows", "decode_1024_us", "--json")
    at = told["decode_1024_us"]
    assert at["ratio"] == pytest.approx(at["new_us"] / at["old_us"]) and at["low"] <= at["median"] <= at["high"]


def test_a_row_that_is_not_there_is_refused() -> None:
    ran = run("ab.py", ".", ".", "--rows", "warm")
    assert ran.returncode == 2 and "rows that exist" in ran.stderr


def test_the_disk_is_measured_beside_plain_calls(tmp_path: Path) -> None:
    words = ("--pages", "4", "--rounds", "1", "--threads", "2", "--manifest-pages", "3000", "--folder", str(tmp_path))
    told = numbers("disk.py", "--json", *words)
    assert set(told) == {"read, warm", "warm, per core", "read, cold", "write", "manifest"}
    assert not list(tmp_path.iterdir())
    assert told["read, warm"]["tier"] > 0 and 50 < told["manifest"]["bytes per page"] < 256


def test_orders_stand_beside_each_other_on_recorded_agents(tmp_path: Path) -> None:
    """Of three sessions the odd ones are judged. What was measured is kept, and only the rest is measured again."""
    for number in (1, 2, 3):
        asked = [{"t": 9 * nth, "type": "n", "in": 64 * 8 * (nth + 2), "out": 1, "stop": "tool_use",
                  "hash_ids": list(range(8 * (nth + 2)))} for nth in range(4)]  # fmt: skip
        text = json.dumps({"block_size": 64, "requests": asked})
        (tmp_path / f"trace_000{number}.json").write_text(text, encoding="utf-8")
    kept = tmp_path / "kept"
    words = ("--rows", "agents high", "--weka", str(tmp_path), "--cells", str(kept), "--jobs", "2")

    def rows(*more: str) -> list[list[str]]:
        ran = run("eviction.py", *words, *more)
        assert ran.returncode == 0, ran.stderr
        return [
            [cell.strip() for cell in row.strip("|").split("|")] for row in ran.stdout.splitlines() if row[1] == " "
        ]

    head, *found = rows("--columns", "lru,finish")
    assert head == ["load", "blocks", "lru", "finish"]
    sizes = ("7,437", "14,875", "37,250", "9,312 + 27,938")
    assert [cells[:2] for cells in found] == [["agents high", size] for size in sizes]
    rates = {cell.split()[0] for cells in found for cell in cells[2:]}
    assert rates == {"64.3"}, "the second half is the second session: of 2 + 3 + 4 + 5 blocks, 2 + 3 + 4 were there"
    assert [cells[2].count(",") for cells in found] == [0, 0, 0, 1], "with a host, what came up from it"
    told = json.loads(kept.read_text(encoding="utf-8"))
    told["cells"]["agents high | 14,875 | lru"][0] = 7.0
    del told["cells"]["agents high | 37,250 | lru"]
    kept.write_text(json.dumps(told), encoding="utf-8")
    assert [[cell.split()[0] for cell in cells[2:]] for cells in rows("--columns", "lru,optimum")[1:]] == [
        ["64.3", "64.3"], ["7.0", "64.3"], ["64.3", "64.3"], ["64.3", "64.3"]
    ]  # fmt: skip
    assert rows("--columns", "lru,exact", "--show")[2][2:] == [f"7.0{found[1][2][4:]}", "..."]
    ran = run("eviction.py", *words, "--every", "2")
    assert ran.returncode == 1 and "name another file" in ran.stderr


def test_plans_stand_beside_a_queueing_law_and_their_own_replay() -> None:
    """One worker, and several: as soon as the law allows, with no worker too many, and the same when typed in again."""
    ran = run("plan_cases.py", "--json", "--cases", "2")
    assert ran.returncode == 0, ran.stderr
    for found in json.loads(ran.stdout):
        law, replay = found["off"]
        assert law < 0.1 and replay < 0.001 and found["workers"] == found["least"], found
        assert found["planned"] <= found["case"]["within"]


def test_findings_are_measured_on_a_log_with_three_faults() -> None:
    ran = run("findings.py", "--requests", "600", "--tokens", "400")
    assert ran.returncode == 0 and "600 requests of" in ran.stdout, ran.stderr
    assert all(kind in ran.stdout for kind in ("salt at token", "changed at token"))


def test_the_order_that_learns_is_nowhere_far_below_lru(tmp_path: Path) -> None:
    """Where it has been: popular texts that are replaced on a slow clock (30 points), texts asked round and round."""
    kept = tmp_path / "kept.json"
    words = ("--loads", "drift,loop,shift", "--blocks", "1000", "--clocks", "0.001", "--json", str(kept))
    ran = run("scales.py", *words)
    assert ran.returncode == 0, ran.stderr
    above = {row["load"]: row["above"][0] for row in json.loads(kept.read_text())}
    assert set(above) == {"drift", "loop", "shift"} and min(above.values()) > -1
    assert above["loop"] > 40, "what is asked round and round LRU never finds"


def test_a_second_question_about_a_document_and_chats_are_found_in_one_pool() -> None:
    """By the default order of hybrids."""
    ran = run("windows.py", "--loads", "documents,chats", "--orders", "lru,auto")
    assert ran.returncode == 0, ran.stderr
    head, *rows = [line.split() for line in ran.stdout.splitlines()]
    assert head == ["load", "lru", "auto"]
    found = {load: (float(lru), float(auto)) for load, lru, auto in rows}
    assert found["documents"][1] >= 45 and found["chats"][1] >= 49
    assert all(auto > lru - 1 for lru, auto in found.values())
