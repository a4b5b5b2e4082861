"""One run: many requests that share beginnings, few device blocks, greedy, with logprobs; the answers as JSON.

The same seed asks the same requests in the same order. `--compare NAME PLAIN OURS` compares what two runs wrote.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.vllm_gpu.engines import (
    SHAPES,
    Tokens,
    ask,
    core,
    engine,
    leave,
    make_eagle,
    make_model,
    prompt,
    quire_counts,
    settle,
    tell,
    transfer_config,
)

TIE = 0.05  # of a logprob, in bf16


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="tiny")
    parser.add_argument("--connector", choices=["none", "quire", "corrupt"], default="none")
    parser.add_argument("--backend")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--device-blocks", type=int, default=900)
    parser.add_argument("--host-mb", type=int, default=400)
    parser.add_argument("--disk", help="a folder below host memory")
    parser.add_argument("--shared", help="a store below host memory: a folder or redis://...")
    parser.add_argument("--abort", action="store_true", help="some requests are cancelled on the way")
    parser.add_argument("--kv-dtype", default="auto", help="of the KV cache: fp8")
    parser.add_argument(
        "--draft", choices=["model", "eagle"], help="by the model itself, or by a layer that looks ahead"
    )
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--longest", type=int, default=3000, help="prompt")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out")
    parser.add_argument("--compare", nargs=3, metavar=("NAME", "PLAIN", "OURS"))
    return parser


def start(args: argparse.Namespace) -> Any:
    more: dict[str, Any] = {"disk": args.disk, "disk_bytes": "2GB", "wait": 30.0} if args.disk else {}
    more |= {"shared": args.shared, "wait": 30.0} if args.shared else {}
    model = make_model(args.model)
    return engine(
        model, kv_cache_dtype=args.kv_dtype, attention_backend=args.backend, block_size=16, max_num_seqs=16,
        connector=transfer_config(args.connector, args.host_mb << 20, more), gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=2 << 30,  # engines beside each other: none measures what is free
        num_gpu_blocks_override=args.device_blocks, max_model_len=args.longest + 700, max_num_batched_tokens=1024,
        async_scheduling=args.async_scheduling,
        speculative_config=drafter(args.draft, model),
    )  # fmt: skip


def drafter(kind: str | None, model: str) -> dict[str, Any] | None:
    """vLLM's speculative_config."""
    if kind is None:
        return None
    by = (
        {"method": "eagle", "model": make_eagle(model)}
        if kind == "eagle"
        else {"method": "draft_model", "model": model}
    )
    return by | {"num_speculative_tokens": 3}


def workload(args: argparse.Namespace, rng: random.Random) -> list[tuple[str, Tokens, int]]:
    """Name, prompt and number of tokens to generate of each request."""
    vocab, longest, made = SHAPES[args.model]["vocab_size"], args.longest, []
    roots = [prompt(rng, rng.choice([longest // 6, longest // 3, longest]), vocab) for _ in range(10)]
    for nth in range(args.requests):
        root = rng.choice(roots)
        text = root[: rng.randrange(longest // 10, longest)] + prompt(rng, rng.randrange(1, 100), vocab)
        made.append((f"r{nth}", text, rng.choice([4, 24, 80])))
    return made


def serve(llm: Any, args: argparse.Namespace) -> dict[str, Any]:
    """All requests, up to 20 at a time: tokens, logprobs and cached tokens of each that was not cancelled."""
    rng, answers, cached = random.Random(args.seed), {}, {}
    dice, running = random.Random(args.seed), list[str]()  # who is cancelled does not change who is asked
    todo, driver = workload(args, rng), llm.llm_engine
    while todo or driver.has_unfinished_requests():
        while todo and driver.get_num_unfinished_requests() < 20 and rng.random() < 0.7:
            name, text, count = todo.pop(0)
            driver.add_request(name, {"prompt_token_ids": text}, ask(count, logprobs=0))
            running.append(name)
        if args.abort and running and dice.random() < 0.05:
            driver.abort_request([running.pop(dice.randrange(len(running)))])
        for out in driver.step():
            if out.finished and out.request_id in running:
                running.remove(out.request_id)
                one = out.outputs[0]
                logprobs = [next(iter(step.values())).logprob for step in one.logprobs]
                answers[out.request_id] = [list(one.token_ids), logprobs]
                cached[out.request_id] = out.num_cached_tokens
    return {"answers": answers, "cached": cached}


def num_held(llm: Any) -> int:
    """Pages and jobs that Quire still holds when all requests are over: must be 0."""
    from quire import check

    side = core(llm).scheduler.connector.scheduler_side
    if side.outer is not None and side.outer.keeper is not None:
        side.outer.keeper.flush(30.0)
    settle(llm)
    check(side.cache)
    held: int = side.cache.usage(1).held + side.num_open
    return held


def compared(plain: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Two runs, request by request: tokens and logprobs."""
    both = sorted(set(plain["answers"]) & set(ours["answers"]))
    pairs = {one: (plain["answers"][one], ours["answers"][one]) for one in both}
    same = [pair for pair in pairs.values() if pair[0][0] == pair[1][0]]
    ties = sum(is_near_tie(*pair) for pair in pairs.values() if pair[0][0] != pair[1][0])
    gaps = [abs(a - b) for one, other in same for a, b in zip(one[1], other[1], strict=True)]
    return {
        "requests": len(both), "differ": len(both) - len(same), "near_ties": ties,
        "logprob_gap": max(gaps, default=0.0), "nonzero_gaps": sum(gap > 0 for gap in gaps), "of": len(gaps),
        "cached": [sum(one["cached"].values()) for one in (plain, ours)],
        "preempted": [one["preempted"] for one in (plain, ours)], "held": ours["held"], "counts": ours["counts"],
    }  # fmt: skip


def is_near_tie(plain: Any, ours: Any) -> bool:
    """Whether two answers part where each run gave its own choice the same logprob but for rounding: kernels differ by
    batch. A sign of a tie, no proof: what a run gave the other's choice is not known here."""
    first = next(nth for nth, (one, other) in enumerate(zip(plain[0], ours[0], strict=True)) if one != other)
    return bool(abs(plain[1][first] - ours[1][first]) < TIE)


def main() -> None:
    args = options().parse_args()
    if args.compare:
        name, *files = args.compare
        tell(exact=name, **compared(*(json.loads(Path(one).read_text()) for one in files)))
        return
    llm, begin = start(args), time.time()
    found = serve(llm, args)
    found["seconds"] = time.time() - begin
    settle(llm)
    found["held"] = None if args.connector == "none" else num_held(llm)
    found["counts"] = quire_counts(llm)
    found["preempted"] = sum(int(one.value) for one in llm.get_metrics() if one.name == "vllm:num_preemptions")
    Path(args.out).write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
