"""The kit that brings vLLM to a GPU machine: what it carries, how it is packed, which runs it starts. Without a GPU."""

from __future__ import annotations

import json
import mmap
import random
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.vllm_gpu import disk_first_token, drive, exact, make_kit, perf, setup_kit, smoke
from benchmarks.vllm_gpu.engines import SHAPES, prompt, transfer_config
from benchmarks.vllm_gpu.trim_fatbin import ELF, MAGIC, trim
from quire.integrations.vllm.common.connector_options import read_options
from quire.integrations.vllm.plugs.tier_options import read_tier_options
from tests.integrations.vllm_engine import options as engine_options

ROOT = Path(__file__).resolve().parents[3]
KIT = ROOT / "benchmarks" / "vllm_gpu"
PINNED = (KIT / "requirements.txt").read_text()


def test_a_dry_run_tells_what_would_be_carried_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(checkout), *author, "commit", "-qm", "x", "--allow-empty"], check=True)
    words = ["make_kit", "--dry-run", "--out", str(tmp_path / "out"), "--quire", str(checkout)]
    monkeypatch.setattr(sys, "argv", words)
    make_kit.main()
    told = capsys.readouterr().out
    commit = make_kit.git(checkout, "log", "-1", "--format=%h").decode().strip()
    assert told.splitlines() == make_kit.plan(PINNED, commit) and f"Quire {commit}" in told
    assert not (tmp_path / "out").exists()


def test_every_pinned_package_has_a_piece() -> None:
    names = make_kit.packages(PINNED)
    assert len(names) == len(set(names)) and "vllm" in names and set(make_kit.SECOND) <= set(names)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line.split("#")[0].strip()) for line in PINNED.splitlines()
               if line.split("#")[0].strip())  # fmt: skip
    first, second, third = make_kit.plan(PINNED, "abc")
    carried = f"{first.split(', ')[-1]} {second.split(', ')[-1]}".split()
    assert sorted(carried) == sorted(set(names) - {"vllm"}) and "FlashAttention" in third
    assert make_kit.piece_of("apache_tvm_ffi-0.1-cp312-linux.whl") == 2 and make_kit.piece_of("anyio-4-any.whl") == 1


def wheel_of(at: Path) -> Path:
    """A wheel with what is packed of vLLM's, and what is not."""
    path = at / "vllm-1.0-cp38-abi3-linux.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("vllm/version.py", "number = 1\n")
        wheel.writestr("vllm/vllm-rs", "left out")
        wheel.writestr(make_kit.FLASH, b"flash" * 1000)
        wheel.writestr(make_kit.KERNELS, b"kernels")
        wheel.writestr(make_kit.FILES, b"files")
    return path


def test_what_is_packed_here_is_unpacked_there(tmp_path: Path) -> None:
    raw, site = tmp_path / "raw", tmp_path / "site"
    raw.mkdir()
    with zipfile.ZipFile(wheel_of(tmp_path)) as wheel:
        make_kit.once(make_kit.pack_python, wheel, raw / "vllm-py.tar.xz")
        flash = make_kit.once(make_kit.pack_flash, wheel, raw / "flash.so.deflate")
    setup_kit.unpack_vllm(raw, site)
    setup_kit.unpack_library(flash, site / "flash.so")
    setup_kit.unpack_library(raw / "not carried.xz", site / "none.so")
    files = {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()}
    assert (
        files == {"vllm/version.py", make_kit.FILES, "flash.so"} and (site / "flash.so").read_bytes() == b"flash" * 1000
    )
    size = make_kit.write_piece(tmp_path / "out", 3, [flash])
    assert sorted(file.name for file in (tmp_path / "out" / "piece3").iterdir()) == ["piece3.tar", "unpack.sh"]
    assert size == sum(file.stat().st_size for file in (tmp_path / "out" / "piece3").iterdir())


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    """Entries of a kind, for a GPU, with these bytes."""
    body = b""
    for kind, gpu, payload in entries:
        body += struct.pack("<HHIQ", kind, 0, 64, len(payload)) + bytes(12) + struct.pack("<I", gpu)
        body += bytes(64 - 32) + payload
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def library(section: bytes) -> bytearray:
    """An ELF file with that section, and one with the names of sections."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    head, at = 64, 64 + len(section) + len(names)
    rows = [(0, 0, 0), (1, head, len(section)), (12, head + len(section), len(names))]
    table = b"".join(struct.pack("<IIQQQQ", name, 0, 0, 0, offset, size) + bytes(24) for name, offset, size in rows)
    first = bytearray(head)
    struct.pack_into("<Q", first, 0x28, at)
    struct.pack_into("<HHH", first, 0x3A, 64, len(rows), 2)
    return first + bytearray(section + names + table)


def test_device_code_for_other_gpus_is_zeroed_in_place() -> None:
    ours, other, ptx = b"o" * 24, b"x" * 32, b"p" * 16
    data = library(fatbin((ELF, 90, ours), (ELF, 80, other)) + bytes(8) + fatbin((1, 80, ptx), (ELF, 100, other)))
    size = len(data)
    assert trim(data, 90) == (len(ours) + len(ptx), 2 * len(other))
    assert len(data) == size and ours in data and ptx in data and other not in data
    assert trim(library(b""), 90) == (0, 0)


def test_runs_are_planned_with_options_that_the_scripts_have(tmp_path: Path) -> None:
    for words in drive.smoke_plan(drive.TRITON).values():
        smoke.options().parse_args(words)
    plans = drive.exact_plan(tmp_path, flash=True)
    assert plans.keys() == {"tiny", "gemma", "1b", "1b-flash"}
    for model, kinds in plans.items():
        assert {"plain", "quire"} <= kinds.keys() and ("corrupt" in kinds) == (model != "gemma")
        for kind, words in kinds.items():
            args = exact.options().parse_args(words)
            wanted = {"plain": "none", "quire": "quire", "disk": "quire", "corrupt": "corrupt"}[kind]
            assert args.connector == wanted and bool(args.disk) == (kind == "disk")
    for line in drive.TOOL:
        assert engine_options().parse_args([*line.split(), "--gpu"]).gpu


def test_connectors_take_turns_and_none_runs_once() -> None:
    args, words = drive.options().parse_known_args(["perf", "--pairs", "3", "--lengths", "2048,8192"])
    plan = drive.perf_plan(args.pairs, args.connectors.split(","), words, [])
    kinds = [perf.options().parse_args(given).connector for _, given in plan]
    assert kinds == ["none", "quire", "offload", "quire", "offload", "quire", "offload"]
    assert len({name for name, _ in plan}) == len(plan)
    assert perf.options().parse_args(plan[0][1]).lengths == [2048, 8192]
    assert perf.options().parse_args([]).lengths == [2048, 8192, 32768, 131072]
    assert SHAPES["8b"]["max_position_embeddings"] >= 131072 + 64


def test_connectors_get_the_same_memory() -> None:
    quire, offload = (transfer_config(which, 1000, {}) for which in ("quire", "offload"))
    assert quire is not None and read_options(quire["kv_connector_extra_config"]).host == 1000
    assert offload is not None and offload["kv_connector_extra_config"] == {"cpu_bytes_to_use": 1000}
    assert transfer_config("none", 1000, {}) is None


def test_writer_and_reader_of_a_round_have_the_same_prompts_and_disk(tmp_path: Path) -> None:
    words = ["--model", "tiny", "--lengths", "256,1024", "--each", "2,1", "--folder", str(tmp_path), "--disk-gb", "1"]
    made = [disk_first_token.options().parse_args([*words, "--part", part]) for part in ("write", "read")]
    prompts = [disk_first_token.texts(args) for args in made]
    assert prompts[0] == prompts[1] and [len(text) for text in prompts[0]] == [256, 256, 256, 1024]
    assert len({tuple(text) for text in prompts[0]}) == 4  # nothing of one is found for another
    made[1].round = 1
    assert not {tuple(text) for text in prompts[0]} & {tuple(text) for text in disk_first_token.texts(made[1])}
    extra = {way: config["kv_connector_extra_config"] for way in disk_first_token.WAYS
             if (config := disk_first_token.config_of(way, made[0])) is not None}  # fmt: skip
    quire, (tier,), (fs,) = read_options(extra["quire"]), *(extra[way]["secondary_tiers"] for way in ("tier", "fs"))
    ours = read_tier_options({name: value for name, value in tier.items() if name not in ("type", "module_path")})
    assert (quire.disk, quire.disk_bytes, quire.wait) == (str(tmp_path / "quire"), 10**9, 60.0)
    assert (ours.folder, ours.bytes, ours.waiting) == (str(tmp_path / "tier"), 10**9, 1.0)
    assert fs["root_dir"] == str(tmp_path / "fs") and "new" not in extra
    assert quire.host == extra["fs"]["cpu_bytes_to_use"] == extra["tier"]["cpu_bytes_to_use"]


def test_first_tokens_are_summed_up_by_length_and_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    times = {"new": [9.0, 8.0, 10.0], "fs": [3.0, 5.0, 2.0]}
    found = [{"disk": 256, "way": way, "ms": ms, "cached": 255 - nth, "token": 7 + (way == "fs" and nth == 1)}
             for way, some in times.items() for nth, ms in enumerate(some)]  # fmt: skip
    disk_first_token.tell_all(found)
    new, fs = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (new["median_ms"], new["least_ms"], new["n"], new["same_token"]) == (9.0, 8.0, 3, 3)
    assert (fs["median_ms"], fs["least_ms"], fs["cached"], fs["same_token"]) == (3.0, 2.0, 253, 2)
    file = tmp_path / "file"
    file.write_bytes(bytes(3 * mmap.PAGESIZE))
    with file.open("rb") as opened:
        opened.read()
        assert disk_first_token.resident(opened.fileno()) == 3
    assert 0 <= disk_first_token.give_up_memory(tmp_path) <= 1


def answer(*tokens: int, gap: float = 0.0) -> list[Any]:
    return [list(tokens), [-1.0 - gap for _ in tokens]]


def test_answers_are_compared_by_token_and_logprob() -> None:
    told: dict[str, Any] = {"cached": {"a": 3}, "preempted": 1, "held": 0, "counts": {}}
    plain = told | {"answers": {"a": answer(1, 2), "b": answer(3), "c": answer(4), "gone": answer(5)}}
    ours = told | {"answers": {"a": answer(1, 2), "b": answer(7), "c": answer(4, gap=0.5)}}
    found = exact.compared(plain, ours)
    assert (found["requests"], found["differ"], found["logprob_gap"], found["nonzero_gaps"]) == (3, 1, 0.5, 1)
    args = exact.options().parse_args(["--requests", "4"])
    asked = [exact.workload(args, random.Random(5)) for _ in range(2)]
    assert asked[0] == asked[1] and len(asked[0]) == 4
    assert len(prompt(random.Random(1), 7, 100)) == 7


def test_a_job_tells_its_results_and_whether_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIT", str(tmp_path))
    (tmp_path / "logs").mkdir()
    good = drive.Job("good", [sys.executable, "-c", "print('{\"a\": 1}'); print('noise')"], 60)
    bad = drive.Job("bad", [sys.executable, "-c", "raise SystemExit('why')"], 60)
    assert good.wait() is True and bad.wait() is False
    told = capsys.readouterr().out
    assert '{"a": 1}' in told and "noise" not in told and "why" in told and "bad: FAILED (1)" in told


def test_the_page_is_short_and_its_commands_are_there() -> None:
    page = (KIT / "README.md").read_text()
    assert len(re.findall(r"\S*\w\S*", page)) <= 400
    for module in re.findall(r"python3? -m (benchmarks\.[\w.]+)", page):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()
    verbs = re.findall(
        r"^\| `(\w+)[^|]*` \|", page[page.index("| verb |") : page.index("Machines differ")], re.MULTILINE
    )
    for verb in verbs:
        assert drive.options().parse_known_args([verb])[0].verb == verb
    assert verbs == ["smoke", "exact", "tool", "perf", "disk", "anchor"]


def test_eight_bits_go_through_a_disk_and_a_store(tmp_path: Path) -> None:
    """Each line is one that the script takes; against the plain one what is compared is what both answered."""
    plans = drive.today_plan(tmp_path)
    assert sorted(plans) == sorted(drive.TODAY)
    for plan in plans.values():
        assert {"plain", "quire", "corrupt"} <= set(plan)
        read = {kind: exact.options().parse_args(words) for kind, words in plan.items()}
        assert read["plain"].connector == "none" and read["corrupt"].connector == "corrupt"
    eight = {kind: exact.options().parse_args(words) for kind, words in plans["tiny-fp8"].items()}
    assert {one.kv_dtype for one in eight.values()} == {"fp8"}
    assert len({eight["disk"].disk, eight["abort"].disk, None}) == 3 and eight["shared"].shared
    assert eight["abort"].abort and not eight["disk"].abort and eight["disk"].host_mb == 6
    answers = {"answers": {}, "cached": {}, "preempted": 0, "held": 0, "counts": {}}
    plain, ours = ({**answers, "answers": {name: [[1, 2], [0.0, -0.5]] for name in names}} for names in ("ab", "b"))
    assert exact.compared(plain, ours)["requests"] == 1
