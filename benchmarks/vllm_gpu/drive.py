"""Starts the scripts and prints what they found: drive smoke | exact | tool | perf | disk | anchor, after env.sh.

Each script is a process with a time limit. Words after perf, disk and anchor that are not theirs go to the script.
Leaves $OUT/results.jsonl and $OUT/logs.tar.gz. Ends with 1 when a script failed; answers that differ are only told.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from benchmarks.vllm_gpu.engines import on_cpu

Plan = dict[str, list[str]]
TRITON = ["--backend", "TRITON_ATTN"]
SMALL_PERF = ["--model", "tiny", "--lengths", "256,600", "--load", "4,96,8", "--host-gb", "0.1", "--trials", "2"]
SIZES = {  # model: requests, device blocks, host MB, host MB above a disk
    "tiny": (200, 400, 120, 24),
    "gemma": (120, 1600, 120, 30),
    "1b": (80, 500, 2000, 400),
}
TOOL = (  # lines of tests/integrations/vllm_exact.py that need no stand-in on a GPU
    "--model llama --requests 120 --abort",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 160",
    "--model llama --requests 100 --abort --async-scheduling --seed 8",
    "--model gemma3 --requests 60 --async-scheduling --device-blocks 64 --seed 12",
    "--model llama --requests 60 --draft ngram --seed 9 --events",
    "--model llama --requests 120 --abort --host-blocks 40 --below disk",
    "--model gemma3 --requests 120 --abort --device-blocks 64 --host-blocks 60 --below both --events",
)
SMALL = "--requests 120 --device-blocks 400 --host-mb 120"
TODAY = {  # KV in eight bits, drafters with layers of their own, latent attention
    "tiny-fp8": f"--model tiny {SMALL} --backend TRITON_ATTN --kv-dtype fp8",
    "tiny-draft": f"--model tiny {SMALL} --backend TRITON_ATTN --draft model",
    "tiny-eagle": f"--model tiny {SMALL} --backend TRITON_ATTN --draft eagle",
    "mla": f"--model mla {SMALL} --backend TRITON_MLA",
}
BELOW = ("tiny-fp8",)  # of these also a disk and a store below little host memory, and requests that are cancelled
CONNECTORS = ("none", "quire", "offload")


class Job:
    """A process, its log and its limit in seconds."""

    def __init__(self, name: str, words: list[str], limit: float, env: dict[str, str] | None = None) -> None:
        self.name, self.limit, self.begin = name, limit * (10 if on_cpu() else 1), time.time()
        self.log = Path(os.environ["KIT"]) / "logs" / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=os.environ | (env or {}))

    def wait(self) -> bool:
        """Prints its lines of results, and the end of its log when it failed. True when it did not."""
        code: int | str
        try:
            code = self.process.wait(max(self.begin + self.limit - time.time(), 1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = f"over {self.limit:g} s"
        text = self.log.read_text(errors="replace")
        print(
            f"-- {self.name}: {'ok' if code == 0 else f'FAILED ({code})'} {time.time() - self.begin:.0f} s", flush=True
        )
        print("".join(f"{line}\n" for line in text.splitlines() if line.startswith("{")), end="", flush=True)
        if code != 0:
            print(text[-1800:], flush=True)
        return code == 0


def script(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.vllm_gpu.{name}", *words]


def backend(kit: Path) -> list[str]:
    """vLLM takes FlashAttention 3 where piece 3 has brought it."""
    has_flash = (kit / "site" / "vllm" / "vllm_flash_attn" / "_vllm_fa3_C.abi3.so").exists()
    return [] if has_flash or on_cpu() else TRITON


def smoke_plan(chosen: list[str]) -> Plan:
    """The connectors, graphs, torch.compile and a model with windows, beside each other."""
    plan = {"quire": ["--connector", "quire", *chosen]}
    if not on_cpu():
        plan |= {
            "offload": ["--connector", "offload", *chosen],
            "graph": ["--mode", "graph", *chosen],
            "compile": ["--mode", "default", *chosen],
            "gemma-quire": ["--model", "gemma", "--length", "1500", "--connector", "quire", *chosen],
            "triton-quire": ["--connector", "quire", *TRITON],
        }
    return plan


def exact_plan(work: Path, flash: bool) -> dict[str, Plan]:
    """Each model without a connector, with Quire, with a disk below it, and with the control, which must differ."""
    plans: dict[str, Plan] = {}
    for model, (requests, blocks, host, above) in ({"tiny": (12, 70, 100, 6)} if on_cpu() else SIZES).items():
        base = ["--model", model, "--requests", str(requests), "--device-blocks", str(blocks), "--host-mb", str(host)]
        words = [*base, "--longest", "600"] if on_cpu() else [*base, *TRITON]
        disk = ["--connector", "quire", "--host-mb", str(above), "--disk", str(work / f"disk-{model}")]
        plans[model] = {"plain": words, "quire": [*words, "--connector", "quire"], "disk": [*words, *disk]}
        if model != "gemma":
            plans[model]["corrupt"] = [*words, "--connector", "corrupt"]
        if flash and model == "1b":
            plans["1b-flash"] = three_of([*base, "--backend", "FLASH_ATTN", "--async-scheduling"])
    return plans


def today_plan(work: Path) -> dict[str, Plan]:
    """Each of today's models without a connector, with Quire and with the control; of some what lies below, too."""
    plans = {name: three_of(words.split()) for name, words in TODAY.items()}
    for name in BELOW:
        quire = [*plans[name]["quire"], "--host-mb", "6"]
        plans[name] |= {
            "disk": [*quire, "--disk", str(work / f"disk-{name}")],
            "shared": [*quire, "--shared", str(work / f"store-{name}")],
            "abort": [*quire, "--disk", str(work / f"abort-{name}"), "--abort"],
        }
    return plans


def three_of(words: list[str]) -> Plan:
    """Without a connector, with Quire, and the control."""
    kinds = {"plain": "none", "quire": "quire", "corrupt": "corrupt"}
    return {kind: [*words, "--connector", connector] for kind, connector in kinds.items()}


def perf_plan(pairs: int, connectors: list[str], words: list[str], chosen: list[str]) -> list[tuple[str, list[str]]]:
    """Without a connector once; the others in turn, so that a machine's moods fall on all of them alike."""
    words = [*SMALL_PERF, *words] if on_cpu() else [*chosen, *words]
    rounds = [(f"perf-{nth}-{kind}", kind) for nth in range(pairs) for kind in connectors if kind != "none" or not nth]
    return [(name, ["--connector", kind, *words]) for name, kind in rounds]


def invariant() -> dict[str, str]:
    """The same bits whatever else is in the batch: then any difference is the connector's."""
    return {"VLLM_BATCH_INVARIANT": "0" if on_cpu() else os.environ.get("KIT_INVARIANT", "1")}


def smoke(args: argparse.Namespace, kit: Path) -> bool:
    """vLLM alone first."""
    chosen = backend(kit)
    if not Job("smoke-alone", script("smoke", *chosen), 150).wait():
        return False
    jobs = [Job(f"smoke-{name}", script("smoke", *words), 200) for name, words in smoke_plan(chosen).items()]
    return sum(not job.wait() for job in jobs) == 0  # every one is waited for


def exact(args: argparse.Namespace, kit: Path, width: int = 7) -> bool:
    """`width` engines at a time; then each against the plain one of its model."""
    work = kit / "exact"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    plans = today_plan(work) if args.today else exact_plan(work, args.flash)
    running, good = list[Job](), True
    make = "import sys; from benchmarks.vllm_gpu.engines import make_model; make_model(sys.argv[1])"
    for model in plans:  # before: two processes must not write one folder
        good &= Job(f"make-{model}", [sys.executable, "-c", make, model.split("-")[0]], 120).wait()
    todo = [(f"exact-{model}-{kind}", words) for model, kinds in plans.items() for kind, words in kinds.items()]
    while todo or running:
        while todo and len(running) < (2 if on_cpu() else width):
            name, words = todo.pop(0)
            running.append(Job(name, script("exact", *words, "--out", str(work / f"{name}.json")), 230, invariant()))
        good &= running.pop(0).wait()
    for model, kinds in plans.items():
        for kind in [one for one in kinds if one != "plain"]:
            plain, ours = work / f"exact-{model}-plain.json", work / f"exact-{model}-{kind}.json"
            if plain.exists() and ours.exists():
                told = f"{model} {kind}{' (the control: must differ)' if kind == 'corrupt' else ''}"
                subprocess.run(script("exact", "--compare", told, str(plain), str(ours)), check=True)
    return good


def tool(args: argparse.Namespace, kit: Path) -> bool:
    """The project's own comparison, all lines beside each other."""
    jobs = []
    for nth, line in enumerate(TOOL[:1] if on_cpu() else TOOL):
        words = [sys.executable, "-m", "tests.integrations.vllm_exact", *line.split()]
        jobs.append(Job(f"tool-{nth}", [*words, *([] if on_cpu() else ["--gpu"])], 300, invariant()))
        time.sleep(2)  # a start each: not all at one moment
    good = True
    for job in jobs:
        fine = job.wait()
        good &= fine
        for line in job.log.read_text(errors="replace").splitlines():
            if "requests in both" in line:
                print("  ", line, flush=True)
                with open(Path(os.environ["OUT"]) / "results.jsonl", "a") as file:
                    file.write(json.dumps({"tool": line, "good": fine}) + "\n")
    return good


def perf(args: argparse.Namespace, kit: Path) -> bool:
    """One after another, each alone on the machine."""
    kinds = [kind for kind in args.connectors.split(",") if kind != "offload" or not on_cpu()]  # it needs a GPU
    plan = perf_plan(args.pairs, kinds, args.words, backend(kit))
    return sum(not Job(name, script("perf", *words), args.limit).wait() for name, words in plan) == 0


def disk(args: argparse.Namespace, kit: Path) -> bool:
    """First tokens of prompts that lie on disk only: Quire, vLLM's tiers, none."""
    return Job("disk", script("disk_first_token", *backend(kit), *args.words), args.limit).wait()


def anchor(args: argparse.Namespace, kit: Path) -> bool:
    """vLLM alone on the rows of benchmarks/gpu_engine.py."""
    return Job("anchor", script("anchor", *backend(kit), *args.words), args.limit).wait()


VERBS = {one.__name__: one for one in (smoke, exact, tool, perf, disk, anchor)}


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in (smoke, tool):
        verbs.add_parser(verb.__name__, help=verb.__doc__)
    same = verbs.add_parser("exact", help=exact.__doc__)
    same.add_argument("--flash", action="store_true", help="FlashAttention too")
    same.add_argument("--today", action="store_true", help="KV in eight bits, drafters, latent attention alone")
    one = verbs.add_parser("perf", help=perf.__doc__)
    one.add_argument("--pairs", type=int, default=1, help="rounds, in which connectors take turns")
    one.add_argument("--connectors", default=",".join(CONNECTORS))
    one.add_argument("--limit", type=float, default=280, help="seconds of one engine")
    for script_verb, limit in ((disk, 420), (anchor, 280)):
        more = verbs.add_parser(script_verb.__name__, help=script_verb.__doc__)
        more.add_argument("--limit", type=float, default=limit, help="seconds")
    return parser


def main() -> None:
    if "KIT" not in os.environ:
        raise SystemExit("first: . ~/quire-kit/quire/benchmarks/vllm_gpu/env.sh")
    args, words = options().parse_known_args()
    if words and args.verb not in ("perf", "disk", "anchor"):
        raise SystemExit(f"{args.verb} takes no {' '.join(words)}")
    args.words, begin, kit = words, time.time(), Path(os.environ["KIT"])
    out = Path(os.environ.setdefault("OUT", str(kit / "out")))
    for folder in (kit / "logs", out):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        good = VERBS[args.verb](args, kit)
    finally:
        with tarfile.open(out / "logs.tar.gz", "w:gz") as tar:
            tar.add(kit / "logs", "logs")
    print(f"== {args.verb}: {'ok' if good else 'SOMETHING FAILED'}, {time.time() - begin:.0f} s", flush=True)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
