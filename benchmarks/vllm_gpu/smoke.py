"""vLLM alone or with a connector: four prompts, three times; the third time nothing is left in vLLM's own cache."""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from benchmarks.vllm_gpu.engines import (
    SHAPES,
    ask,
    asked,
    engine,
    leave,
    make_model,
    prompt,
    quire_counts,
    settle,
    tell,
    transfer_config,
)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="tiny")
    parser.add_argument("--backend")
    parser.add_argument("--mode", choices=["eager", "graph", "default"], default="eager")
    parser.add_argument("--connector", choices=["none", "quire", "offload"], default="none")
    parser.add_argument("--length", type=int, default=600)
    return parser


def turns(llm: Any, args: argparse.Namespace, about: dict[str, Any]) -> list[Any]:
    """The same prompts three times; what each was answered."""
    rng, answers = random.Random(1), []
    prompts = asked([prompt(rng, args.length, SHAPES[args.model]["vocab_size"]) for _ in range(4)])
    for turn in range(3):
        if turn == 2:
            llm.reset_prefix_cache()
        begin = time.time()
        outs = llm.generate(prompts, ask(16), use_tqdm=False)
        settle(llm)
        answers.append([list(one.outputs[0].token_ids) for one in outs])
        cached = [one.num_cached_tokens for one in outs]
        tell(**about, turn=turn, seconds=round(time.time() - begin, 3), cached=cached, first=answers[-1][0][:8])
    return answers


def main() -> None:
    args, begin = options().parse_args(), time.time()
    llm = engine(
        make_model(args.model), mode=args.mode, attention_backend=args.backend,
        connector=transfer_config(args.connector, 256 << 20, {}), gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=2 << 30, max_model_len=2048, max_num_seqs=16,
    )  # fmt: skip
    started, config = time.time() - begin, llm.llm_engine.vllm_config
    about = {"smoke": args.model, "connector": args.connector, "backend": args.backend, "mode": args.mode}
    answers = turns(llm, args, about)
    tell(
        **about, same=answers[0] == answers[1] == answers[2], distinct=len({tuple(one) for one in answers[0]}),
        start_s=round(started, 1), v2_runner=bool(config.use_v2_model_runner),
        attention=str(config.attention_config.backend), counts=quire_counts(llm),
    )  # fmt: skip
    leave()


if __name__ == "__main__":
    main()
