"""Many random runs of the pool engine: `python -m tests.integrations.pool_runs --seconds 600 [--from SEED]`."""

from __future__ import annotations

import argparse
import logging
import random
import time
import traceback
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from quire.integrations.vllm.requests import page_stores
from tests.integrations.pool_engine import PoolEngine
from tests.integrations.pool_scheduler import LONGEST
from tests.integrations.toy_parts import SIZE, ToyRequest

SALTS = [None, None, None, "a", "b"]
PARAMS: list[Any] = [
    None, None, None, {"quire": {"priority": 90, "tokens": 9}}, {"quire": {"seconds": 1 << 70}}, {"quire": 4}, "odd",
    {"quire": {"receipt": True}}, {"quire": {"decode_priority": 5, "decode_seconds": 0.5}}, {"quire": {"priority": []}},
]  # fmt: skip


def texts(rng: random.Random, count: int, longest: int) -> list[ToyRequest]:
    """Prompts that share beginnings, many of them of whole blocks or one token more or less; ids are used again."""
    roots = [[rng.randrange(3) for _ in range(longest)] for _ in range(rng.choice([1, 2, 4]))]
    made = []
    for nth in range(count):
        length = max(1, rng.randrange(0, longest // SIZE + 1) * SIZE + rng.choice([-1, 0, 1, 2]))
        prompt = rng.choice(roots)[:length]
        if rng.random() < 0.4:
            prompt = prompt[: rng.randrange(len(prompt))] + [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
        features = [
            SimpleNamespace(identifier=f"image {length}", mm_position=SimpleNamespace(offset=2, length=length))
            for length in rng.choice([[3], [7], [3, 7], [7, 3], [3, 3]])
        ] if rng.random() < 0.1 else []  # fmt: skip
        made.append(ToyRequest(
            f"r{nth}", prompt, len(prompt), rng.choice([1, 2, 5, 20, 60]), cache_salt=rng.choice(SALTS),
            lora_request=SimpleNamespace(lora_name="a") if rng.random() < 0.05 else None, mm_features=features,
            kv_transfer_params=rng.choice(PARAMS), skip_reading_prefix_cache=rng.random() < 0.05,
        ))  # fmt: skip
    return made


def run_seed(seed: int) -> PoolEngine:
    """One run; all about it comes from its seed."""
    rng = random.Random(seed)
    windows: list[int | None] = [None]
    windows += [rng.choice([None, 1, 2, 5, 9, 13, 30]) for _ in range(rng.choice([0, 0, 1, 1, 2, 5]))]
    rng.shuffle(windows)
    longest = rng.choice([24, 48, 120])
    faults = {name: rng.choice([0.0, 0.0, 0.1, 0.4]) for name in ("load raises", "store raises", "late", "unheard")}
    faults |= {name: rng.choice([0.0, 0.0, 0.05]) for name in ("page fails", "flush raises")}
    has_room = rng.random() < 0.2
    if has_room:
        faults = {name: faults[name] for name in ("late", "unheard")}
    room = len(windows) * (longest + 80) // SIZE + 8
    engine = PoolEngine(
        seed, windows, ranks=rng.choice([1, 1, 2, 3]), ahead=rng.choice([0, 1, 2]),
        host=4000 if has_room else rng.choice([1, 2, 3, 5, 12, 40, 200]), blocks=room + rng.choice([0, 0, 10, 100]),
        faults=faults, most=rng.choice([1, 1, 2, 3, 8, None]),
    )  # fmt: skip
    engine.drafts = rng.random() < 0.4
    many, few = rng.choice([(64, 4), (6, 2), (3, 0), (1000, 1000), (0, 0)])
    count = rng.choice([6, 14, 30])
    assert longest + 80 < LONGEST
    resets = 0.0 if has_room else rng.choice([0, 0, 0.02])
    with patch.multiple(page_stores, MANY=many, FEW=few):
        engine.run(texts(rng, count, longest), abort=rng.choice([0, 0.02, 0.1]), reset=resets)
    if has_room and not (engine.drafts and any(window and window < 13 for window in windows)):
        engine.all_is_found()  # else a window may pass a block in the step that takes its drafts: it is null then
    return engine


def main() -> None:
    """Until the time is over; prints what repeats a failure."""
    given = argparse.ArgumentParser()
    given.add_argument("--seconds", type=float, default=60)
    given.add_argument("--from", dest="first", type=int, default=0)
    given.add_argument("--seed", type=int)
    asked = given.parse_args()
    logging.disable(logging.CRITICAL)
    if asked.seed is not None:
        print(run_seed(asked.seed).seen)
        return
    until, seed, failed, seen = time.monotonic() + asked.seconds, asked.first, 0, Counter[str]()
    while time.monotonic() < until and failed < 5:
        try:
            seen += run_seed(seed).seen
        except Exception:
            failed += 1
            print(f"python -m tests.integrations.pool_runs --seed {seed}")
            traceback.print_exc()
        seed += 1
    print(f"{seed - asked.first} runs, {failed} failed: {dict(seen)}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
