"""Real vLLM with the connector beside real vLLM without it: the same tokens and logprobs, request by request. By hand.

    make vllm-env
    PYTHONPATH=. .vllm-env/bin/python -m tests.integrations.vllm_exact --model gemma3 --requests 120 --abort

Each run is a process of its own (`vllm_engine`, which has the options). `--all` runs the whole list of docs/vllm.md;
`--fault corrupt` is the control, which must be seen. Ends with 1 when something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.integrations.vllm_engine import options

CLOSE = 1e-3  # of a logprob: other batches add up in another order
ALL = (
    "--model llama --requests 120 --abort --host-blocks 40 --below disk",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 60 --below both --events",
    "--model llama --requests 40 --tp 2 --seed 10 --host-blocks 40 --below disk",
    "--model llama --requests 120 --abort --host-blocks 40 --below disk --fault bad_disk",
    "--model llama --requests 120 --abort --host-blocks 40 --below redis",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 60 --below disk --fault region",
    "--model llama --requests 120 --abort",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 160",
    "--model llama --requests 120 --abort --fault corrupt",
    "--model llama --requests 120 --abort --fault fail_load",
    "--model llama --requests 120 --abort --fault fail_store",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 160 --fault flip",
    "--model llama --requests 100 --abort --async-scheduling --seed 8",
    "--model llama --requests 100 --abort --async-scheduling --seed 8 --fault late",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 160 --fault region",
    "--model llama --requests 100 --abort --async-scheduling --seed 8 --fault region",
    "--model llama --requests 60 --draft ngram --seed 9 --events",
    "--model llama --requests 40 --tp 2 --seed 10",
    "--model smollm2 --requests 24 --seed 11 --device-blocks 24",
    "--model gemma3 --requests 60 --async-scheduling --device-blocks 64 --seed 12",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 160 --fault spread",
    "--model llama --requests 100 --abort --async-scheduling --seed 8 --fault spread",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 160 --fault spread_region",
    "--model nemotron --requests 60 --abort --device-blocks 64 --host-blocks 96",
    "--model nemotron --requests 60 --abort --device-blocks 64 --host-blocks 96 --fault corrupt",
    "--model nemotron --requests 60 --abort --device-blocks 64 --host-blocks 40 --below both --events",
    "--model nemotron --requests 60 --abort --device-blocks 64 --host-blocks 96 --async-scheduling --fault late",
    "--model nemotron --requests 60 --abort --device-blocks 64 --host-blocks 96 --fault spread_region",
    "--model lfm2 --requests 60 --abort --device-blocks 64 --host-blocks 60 --below disk",
    "--model lfm2 --requests 60 --abort --device-blocks 64 --host-blocks 96 --fault corrupt",
    "--model gemma3 --requests 60 --abort --device-blocks 64 --host-blocks 60 --multi --fault fail_load --below disk",
    "--model llama --requests 60 --abort --draft model --seed 5 --fault fail_load",
    "--model llama --requests 60 --abort --draft eagle --seed 4 --host-blocks 40 --below disk",
    "--model deepseek --requests 40 --abort --device-blocks 64 --host-blocks 40 --below disk",
    "--model deepseek --requests 40 --device-blocks 64 --fault corrupt",
    "--model llama --requests 40 --abort --v2 --fault fail_load",
    "--model llama --requests 40 --abort --v2 --async-scheduling --fault late",
)


def run(words: list[str], out: Path, connector: bool) -> dict[str, Any]:
    """One engine in a process of its own."""
    command = [sys.executable, "-m", "tests.integrations.vllm_engine", *words, "--out", str(out)]
    command += ["--connector"] if connector else []
    out.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode or not out.exists():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def plain_run(words: list[str], at: Path, runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Without the connector; faults, events and host memory do not matter there, so one run serves several."""
    own = [
        word
        for nth, word in enumerate(words)
        if word not in ("--events", "--multi")
        and not {"--fault", "--host-blocks", "--below"} & set(words[max(nth - 1, 0) : nth + 1])
    ]
    if " ".join(own) not in runs:
        runs[" ".join(own)] = run(own, at / "plain.json", False)
    return runs[" ".join(own)]


def compare(words: list[str], at: Path, runs: dict[str, dict[str, Any]]) -> bool:
    """Both runs; prints what was found. True when it is as it should be."""
    args = argparse.ArgumentParser(parents=[options()]).parse_args(words)
    shutil.rmtree(at / "below", ignore_errors=True)
    plain, ours = plain_run(words, at, runs), run(words, at / "ours.json", True)
    both = sorted(set(plain["answers"]) & set(ours["answers"]))
    differ = [name for name in both if plain["answers"][name][0] != ours["answers"][name][0]]
    same = [name for name in both if name not in differ]
    gaps = [
        abs(a - b) for name in same for a, b in zip(plain["answers"][name][1], ours["answers"][name][1], strict=True)
    ]
    gap = max(gaps, default=0.0)
    before, after = (sum(one["cached"][name] for name in both) for one in (plain, ours))
    missing = args.requests - len(both)
    print(
        f"{' '.join(words)}: {len(both)} requests in both, {len(differ)} differ, logprobs within {gap:.1e}, "
        f"cached tokens {before} -> {after}, preemptions {plain['preemptions']} and {ours['preemptions']}, "
        f"{plain['seconds']:.0f} and {ours['seconds']:.0f} s, {ours['groups']} groups"
    )
    drafts = [(made, ours["drafts"][at]) for at, made in plain["drafts"].items() if at in ours["drafts"]]
    if drafts:
        others = sum(one != other for one, other in drafts)
        taken = [run["metrics"].get("vllm:spec_decode_num_accepted_tokens", 0) for run in (plain, ours)]
        print(f"    {len(drafts)} drafts in both, {others} differ, {taken[0]:.0f} and {taken[1]:.0f} tokens accepted")
    print(
        "   ",
        {name: int(number) for name, number in sorted(ours["counts"].items()) if "seconds" not in name},
        flush=True,
    )
    if args.fault == "corrupt":
        return bool(differ)
    lost = missing and not args.abort
    if args.below == "both" and ours["counts"]["recorded"] < len(ours["answers"]):
        print("    requests are missing in the recording")
        return False
    return not differ and gap < CLOSE and not lost and bool(both)


def tried(words: list[str], at: Path, runs: dict[str, dict[str, Any]]) -> bool:
    """One comparison; an engine that died is told, and the others still run."""
    try:
        return compare(words, at, runs)
    except (RuntimeError, subprocess.TimeoutExpired) as wrong:
        print(f"{' '.join(words)}: {wrong}", flush=True)
        return False


def main() -> None:
    parser = argparse.ArgumentParser(parents=[options()], description=__doc__)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    lists = [one.split() for one in ALL] if args.all else [sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, dict[str, Any]] = {}
        fine = [tried(words, Path(folder), runs) for words in lists]
    raise SystemExit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
