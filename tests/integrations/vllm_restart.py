"""A warm restart of a real vLLM: kill -9, start again, the first long prompt is served from disk. By hand.

    PYTHONPATH=. .vllm-env/bin/python -m tests.integrations.vllm_restart --model smollm2 --prompt 1500

Three processes, one after the other: vLLM without the connector; with it and a disk, killed when the pages are there;
with it once more. Prints how much of the prompt was cached and how long the first token took; the tokens must be equal.
Ends with 1 when something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.integrations.vllm_engine import engine, options

ROLES = ("plain", "killed", "again")


def ask(llm: Any, prompt: list[int]) -> dict[str, Any]:
    """One request, alone: its tokens, how much was cached, seconds until the first token and in all."""
    from vllm import SamplingParams

    core, begin, first = llm.llm_engine, time.perf_counter(), 0.0
    asked = SamplingParams(max_tokens=16, temperature=0, detokenize=False, ignore_eos=True, logprobs=0)
    core.add_request("one", {"prompt_token_ids": prompt}, asked)
    while core.has_unfinished_requests():
        for out in core.step():
            first = first or time.perf_counter() - begin
            if out.finished:
                tokens = list(out.outputs[0].token_ids)
                return {"tokens": tokens, "cached": out.num_cached_tokens, "first": first}
    raise SystemExit("the request has not ended")


def child(args: argparse.Namespace) -> None:
    """One process."""
    rng = random.Random(args.seed)
    prompt = [rng.randrange(3, 500) for _ in range(args.prompt)]
    warm = [rng.randrange(3, 500) for _ in range(40)]
    began = time.perf_counter()
    llm = engine(args, args.role != "plain")
    started = time.perf_counter() - began
    if args.role != "killed":
        ask(llm, warm)  # what vLLM does on its first step is not the prompt's
    result = ask(llm, prompt) | {"started": started}
    Path(args.out).with_name(f"{args.role}.json").write_text(json.dumps(result))
    if args.role == "killed":
        side = llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler_side
        whole = args.prompt // 32 * len(side.cache.config.groups)
        while side.outer.counts().disk_written < whole:
            time.sleep(0.1)
        side.outer.keeper.fence(30.0)
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(parents=[options()], description=__doc__)
    parser.add_argument("--prompt", type=int, default=600)
    parser.add_argument("--role", choices=ROLES)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    if args.role is not None:
        child(args)
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        size = ["--below", "disk", "--max-len", str(args.prompt + 40), "--device-blocks", str(args.prompt // 32 + 8)]
        for role in ROLES:
            words = [sys.executable, "-m", "tests.integrations.vllm_restart", *sys.argv[1:], *size]
            done = subprocess.run([*words, "--role", role, "--out", f"{folder}/out"], check=False, timeout=1800)
            if done.returncode not in (0, -signal.SIGKILL):
                raise SystemExit(f"{role} ended with {done.returncode}")
            found[role] = json.loads(Path(folder, f"{role}.json").read_text())
    for role, one in found.items():
        print(f"{role}: {one['cached']} of {args.prompt} tokens cached, first token after {one['first']:.2f} s")
    same = found["plain"]["tokens"] == found["killed"]["tokens"] == found["again"]["tokens"]
    left = [path.name for path in Path("/dev/shm").glob("quire-pages-*")]
    print("the same tokens" if same else "OTHER TOKENS", *(f"left behind: {name}" for name in left))
    raise SystemExit(0 if same and not left and found["again"]["cached"] >= args.prompt // 32 * 32 - 32 else 1)


if __name__ == "__main__":
    main()
