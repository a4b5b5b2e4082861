"""Shapes, memory, the time model and the command line of `quire replay`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest

from quire import InputError, LayerGroup, RetainRange
from quire.cli import main as cli
from quire.cli.simulate import replay_command as replay
from quire.cli.simulate import sweep_command
from quire.cli.simulate.replay_options import add_options, settings_of
from quire.core.records.memory import parse_bytes, say_bytes
from quire.simulate.setup.engine_pace import Pace
from quire.simulate.setup.replay_settings import Memory, ReplaySettings
from quire.simulate.setup.shape import PRESETS, find_shape
from tests.trace.test_replay_trace import GOOD, written

TINY = ["--limit", "8", "--device-blocks", "400", "--block-size", "512"]


def options(*words: str) -> ReplaySettings:
    parser = ArgumentParser()
    add_options(parser)
    return settings_of(parser.parse_args(words))


def test_memory_as_people_write_it() -> None:
    for text, number in (("40GB", 40 * 10**9), ("1.5 GiB", 3 * 2**29), ("512mib", 2**29), ("4096", 4096), (".5k", 500)):
        assert parse_bytes(text) == number
    with pytest.raises(InputError, match="no machine has so many"):
        parse_bytes("9" * 400)
    for text in ("", "GB", "-3GB", "4 apples", "1e9"):
        with pytest.raises(InputError, match="write 40GB"):
            parse_bytes(text)
    assert [say_bytes(n) for n in (12, 4e3, 1.7e12)] == ["12 B", "4.0 kB", "1.7 TB"]


def test_presets_divide_a_memory_between_their_groups() -> None:
    assert PRESETS["llama-3-8b"].slots(40 * 10**9, 16) == (40 * 10**9 // (131_072 * 16),)
    for shape in PRESETS.values():
        for size in (16, 512):
            slots = shape.slots(40 * 10**9, size)
            pages = zip(slots, shape.groups(size), strict=True)
            taken = sum(count * group.page_bytes for count, group in pages)
            assert 0.9 * 40e9 < taken <= 40e9 and min(slots) > 10, shape.name
    assert PRESETS["gemma-3-like"].groups(16)[1].window == 1024
    assert PRESETS["qwen3-next-like"].groups(16)[1].kind == "state"


def test_a_shape_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'typical_tokens = 1000\n[[group]]\nname = "full"\nbytes_per_token = 100\n'
        '[[group]]\nname = "local"\nbytes_per_token = 10\nwindow = 128\nsinks = 4\nshare = 0.25\n'
        '[[group]]\nname = "ssm"\nstate_bytes = 5000\nsnapshot_every = 256\nsnapshot_at_end = false\n'
        "snapshot_inside = true\n"
    )
    shape = find_shape(str(path))
    assert shape.name == "mine" and shape.groups(16) == (
        LayerGroup("full", page_bytes=1600),
        LayerGroup("local", page_bytes=160, window=128, sinks=4),
        LayerGroup("ssm", page_bytes=5000, snapshot_every=256, snapshot_at_end=False, snapshot_inside=True),
    )
    # the rest, three quarters, by a prompt of 1,000 tokens: 100,000 bytes and 5 states of 5,000
    assert shape.shares() == pytest.approx((0.75 * 0.8, 0.25, 0.75 * 0.2))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("nonsense", "it cannot be read"),
        ("a = 1", r"it has no \[\[group\]\]"),
        ("[[group]]\nbytes = 3", "a group has the key 'bytes'"),
        ("[[group]]\nname = 'x'", "its bytes_per_token is 0"),
        ("[[group]]\nsnapshot_every = 16", "its state_bytes is 0"),
        ("[[group]]\nbytes_per_token = 1\nshare = 2.0", "its share is 2.0"),
        ("[[group]]\nstate_bytes = 1\nsnapshot_every = 16\nsnapshot_at_end = 1", "its snapshot_at_end is 1"),
        ("[[group]]\nbytes_per_token = 1\nsnapshot_inside = true", "its snapshot_inside is True"),
        ("[[group]]\nbytes_per_token = 1\nwindow = '5'", "its window is '5'"),
        ("[[group]]\nbytes_per_token = 1\nsinks = true", "its sinks is True"),
        ("[[group]]\nbytes_per_token = 1\nshare = true", "its share is True"),
        ("typical = 5\n[[group]]\nbytes_per_token = 1", "it has the key 'typical'"),
        ("typical_tokens = 0\n[[group]]\nbytes_per_token = 1", "typical_tokens is 0"),
    ],
)
def test_a_shape_that_is_none(tmp_path: Path, text: str, fact: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=fact):
        find_shape(str(path))


def test_shares_that_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    group = "[[group]]\nname = '{}'\nbytes_per_token = 1\nshare = 0.7\n"
    path.write_text(group.format("a") + group.format("b"))
    with pytest.raises(InputError, match=r"its shares add up to 1.4"):
        find_shape(str(path)).shares()


def test_the_time_of_a_step_is_what_the_model_says() -> None:
    pace = Pace(1000, decode_ms=10, decode_ms_per_sequence=1, links=(100.0,))
    assert pace.step(500, 0, [0, 0], [0, 0]) == 0.5
    assert pace.step(500, 10, [0, 20], [0, 0]) == pytest.approx(0.2 + 0.5 + 0.02)  # up, prompt, one turn
    assert pace.step(500, 0, [0, 0], [0, 90]) == pytest.approx(0.9)  # pages go down meanwhile
    assert pace.step(1, 0, [0, 0], [0, 0]) == pace.least == 0.011  # one token, alone: the weights are read all the same
    assert pace.step(1, 1, [0, 0], [0, 0]) == pytest.approx(0.012)
    assert pace.link(2) == 5e9 and Pace().link(1) == 50e9
    for wrong in (
        {"prefill_tokens_per_second": 0}, {"decode_ms": -1}, {"decode_ms_per_sequence": -1}, {"links": (0,)},
        {"prefill_tokens_per_second": inf}, {"decode_ms": nan}, {"decode_ms_per_sequence": nan}, {"links": (inf,)},
        {"decode_ms_per_sequence": inf},
    ):  # fmt: skip
        with pytest.raises(InputError):
            Pace(**wrong)


def test_options_become_settings() -> None:
    assert options() == ReplaySettings(pace=Pace(links=(50e9,)))
    words = "--device 10GB --host-blocks 7,8 --tier disk=1TB --link disk=2GB --shape gemma-3-like --token-budget 0"
    words += " --retain 0:512:80 --retain 512::20:1.5 --one-phase --no-shadows --no-partial-reuse --prefill-only"
    made = options(*words.split())
    assert made.tiers == (Memory("device", 10**10), Memory("host", blocks=(7, 8)), Memory("disk", 10**12))
    assert made.retain == (RetainRange(0, 512, 80), RetainRange(512, None, 20, 1.5))
    assert made.pace.links == (50e9, 2e9) and not (made.two_phase or made.shadows or made.partial_reuse)
    assert made.token_budget is None and made.max_chunk is None and made.prefill_only
    assert options("--token-budget", "2048").max_chunk == 2048  # chunks by default
    assert options("--token-budget", "2048", "--max-chunk", "0").max_chunk is None
    assert options("--device-blocks", "9").tiers == (Memory("device", blocks=(9,)), Memory("host"))
    assert made.with_memory("device", "10GB") == made and Memory("disk", "1 TB") == Memory("disk", 10**12)
    assert made.with_memory("host", "1.5GiB").to_json()["memory"]["host"] == 3 << 29
    for size in ("ten", -1, None):
        with pytest.raises(InputError, match=r"host memory of .*: it is not an amount of memory; write 40GB, 512MiB"):
            made.with_memory("host", size)  # type: ignore[arg-type]
    assert made.with_memory("host", 5).with_memory("tape", 6).tiers[1:] == (
        Memory("host", 5), Memory("disk", 10**12), Memory("tape", 6),
    )  # fmt: skip
    for wrong, fact in (
        ("--device 1GB --device-blocks 3", "both say"),
        ("--host-blocks x", "not whole numbers"),
        ("--retain 5", "not a rule"),
        ("--tier disk", "NAME=BYTES"),
        ("--link disk=3GB", "the colder tiers are host"),
    ):
        with pytest.raises(InputError, match=fact):
            options(*wrong.split())


def test_the_command_prints_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "sample", "--json", *TINY]) == 0
    result = json.loads(capsys.readouterr().out)
    names = "requests requests_per_second broken_promises worst_overshoot_tokens hit_rate hit_rate_by_tier tokens_saved"
    names += " evictions onboarded_bytes offloaded_bytes block_hit_rate hit_rate_by_group wall_seconds cache_seconds"
    assert {*names.split(), "model", "series", "settings", "refused", "skipped_lines", "batches"} <= set(result)
    assert result["requests"] == 8 and "not measured" in result["model"]["note"]
    series = result["series"]
    lists = [part for item in series.values() for part in (item.values() if isinstance(item, dict) else [item])]
    assert {len(item) for item in lists} == {len(series["seconds"])} and len(series["seconds"]) <= 400


def test_the_command_compares_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert replay.main(["sample", "--compare", "--html", str(page), *TINY]) == 0
    assert "two-phase" in capsys.readouterr().out.lower()
    assert "Two-phase beside one at a time" in page.read_text(encoding="utf-8")
    assert replay.main(["sample", "--compare", "--json", *TINY]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["two_phase"]["requests"] == both["one_at_a_time"]["requests"] == 8
    assert set(both) == {"two_phase", "one_at_a_time", "reuse_gained_tokens"}
    assert both["reuse_gained_tokens"] == both["two_phase"]["tokens_saved"] - both["one_at_a_time"]["tokens_saved"]
    assert replay.main(["sample", *TINY]) == 0 and "8" in capsys.readouterr().out


def test_a_configuration_that_cannot_take_effect_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--shape", "gemma-3-like", "--block-size", "16", "--device-blocks", "9000,40", "--max-chunk", "256"]
    assert replay.main(["sample", "--limit", "2", "--json", *words]) == 0
    assert "quire replay: note: group 'local' (window 1024)" in capsys.readouterr().err


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, "{", GOOD)
    assert replay.main([str(path), *TINY]) == 2
    assert "quire replay: t.jsonl line 2: it is not JSON" in capsys.readouterr().err
    assert replay.main([str(path), "--skip-bad", "--json", *TINY]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["skipped_lines"] == 1 and "skipped: t.jsonl line 2" in told.err
    folder = ["sample", "--html", str(tmp_path)]
    rates = [["sample", name, number] for name in ("--speed", "--prefill-rate") for number in ("inf", "nan")]
    files = (["none.jsonl"], ["sample", "--html", "/no/such/folder/x.html"], folder)
    for words in (*files, *rates, ["sample", "--limit", "0"], ["sample", "--device-blocks", "9" * 30]):
        assert replay.main(words) == 2
        assert capsys.readouterr().err.startswith("quire replay: ")
    with pytest.raises(SystemExit):
        replay.main(["sample", "--token-budget", "-1"])


@pytest.mark.parametrize("tool", [replay.main, sweep_command.main])
@pytest.mark.parametrize(
    "words",
    [
        "--device-blocks=-1",
        "--disk-blocks=-1",
        f"--decode-stride={'9' * 24}",
        f"--block-size={'9' * 24}",
        "--decode-ms=1e308",
        "--decode-ms-per-sequence=1e308",
        "--speed=1e-300",
        "--speed=1e308",
        "--prefill-rate=1e-300",
        "--disk=1GB --disk-latency=1e15",
    ],
)
def test_numbers_that_no_machine_has_are_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], tool: Callable[[list[str]], int], words: str
) -> None:
    serial = ["--workers", "1"] if tool is sweep_command.main else []
    assert tool(["sample", "--limit", "3", "--device-blocks", "400", "--json", *serial, *words.split()]) == 2
    told = capsys.readouterr()
    assert "Traceback" not in told.err + told.out
    assert re.search(r"[^:;]+: [^;]+; \S", told.err + told.out)


def test_a_clock_that_would_run_over_ends_the_replay_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Each rate is one that a machine might have: it is what they take together."""
    for slow in ("--prefill-rate=1e-8", "--decode-ms=1e15", "--decode-ms-per-sequence=1e15"):
        assert replay.main(["sample", "--limit", "3", *TINY, slow]) == 2
        assert "its clock goes to 1e+09; give a faster engine" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_loses_no_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert replay.main(["sample", "--html", str(tmp_path / "x.html"), "--json", *TINY]) == 2
    told = capsys.readouterr()
    assert "No space left on device; name a file" in told.err and json.loads(told.out)["requests"] == 8


def started(*words: str) -> subprocess.Popen[bytes]:
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "quire.cli", *words], env=paths, **pipes)  # type: ignore[call-overload, no-any-return]


def test_a_reader_that_has_enough_is_no_error() -> None:
    """As in `quire replay sample --json | head -c 10`."""
    tool = started("replay", "sample", "--json", *TINY)
    assert tool.stdout is not None and tool.stderr is not None
    tool.stdout.close()
    assert tool.stderr.read() == b"" and tool.wait(120) == cli.BROKEN_PIPE
    tool.stderr.close()


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "trace_of", stopped)
    assert cli.main(["replay", "sample"]) == 130 and capsys.readouterr().err == "quire replay: interrupted\n"
