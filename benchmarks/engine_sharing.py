"""What sharing pages that a step is computing saves: python -m benchmarks.engine_sharing

The engine with a small Llama on the CPU, twice: prompts with a common prefix wait for it (`share_pending=False`), or
use what a step computes for another. Steps until the first token of a request, on average, and prompt tokens computed,
which no other job on the machine changes. The answers must be the same.
"""

from __future__ import annotations

import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.engine import Engine, EngineConfig, Sampling, from_module
from quire.engine.model.layers import Model

Load = list[tuple[int, list[int]]]  # before which step a prompt comes, and its tokens
ANSWER = Sampling(max_tokens=16, ignore_eos=True)


def loads() -> dict[str, Load]:
    """Prompts that begin alike."""
    dice = random.Random(3)

    def text(count: int) -> list[int]:
        return [dice.randrange(16, 500) for _ in range(count)]

    same, long, known = text(500), text(4000), [text(300) for _ in range(4)]
    new = [text(300) for _ in range(16)]
    return {
        "16 equal ones of 500": [(0, same)] * 16,
        "16 with 4,000 in common": [(0, long + text(100)) for _ in range(16)],
        "64 of 4 prefixes of 300, one a step": [(nth, dice.choice(known) + text(20)) for nth in range(64)],
        "64 of 16 new prefixes of 300, 4 a step": [(nth // 4, new[nth // 4] + text(20)) for nth in range(64)],
    }


def play(model: Model, load: Load, overlap: bool, share: bool) -> tuple[float, int, list[tuple[int, ...]]]:
    """Steps to a first token, prompt tokens computed, and the answers."""
    config = EngineConfig(
        6000, max_num_tokens=2048, max_length=8192, overlap=overlap, share_pending=share, eviction="lru"
    )  # fmt: skip
    with Engine(model, config) as engine:
        waiting, runs, first, step = list(load), [], dict[int, int](), 0
        while waiting or engine.runs:
            while waiting and waiting[0][0] <= step:
                came, prompt = waiting.pop(0)
                runs.append((came, engine.submit(prompt, ANSWER)))
            engine.step()
            step += 1
            for nth, (came, run) in enumerate(runs):
                if run.times.first_token:
                    first.setdefault(nth, step - came)
        engine.drain()
    computed = sum(len(run.prompt) - run.reused for _, run in runs)
    return sum(first.values()) / len(first), computed, [tuple(run.answers[0].tokens) for _, run in runs]


def main() -> None:
    """Play and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16384,
    )  # fmt: skip
    model = from_module(LlamaForCausalLM(sizes).eval())
    print(f"{'':40}{'overlap':>8}{'steps: waits':>14}{'shares':>8}{'tokens: waits':>15}{'shares':>8}")
    for name, load in loads().items():
        for overlap in (False, True):
            waits, shares = (play(model, load, overlap, share) for share in (False, True))
            if waits[2] != shares[2]:
                raise SystemExit(f"{name}: other answers")
            print(f"{name:40}{overlap!s:>8}{waits[0]:14.2f}{shares[0]:8.2f}{waits[1]:15,}{shares[1]:8,}")


if __name__ == "__main__":
    main()
