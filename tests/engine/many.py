"""Thousands of random talks on several processes: python -m tests.engine.many llama 0 2000 --jobs 16"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import Counter
from multiprocessing import get_context

import torch

from . import families
from .reference import Reference
from .steps import model_of
from .test_exact import ANSWERS_PER_TIE, Pair, assert_seen, run_talk

_pairs: dict[str, Pair] = {}  # of this process


def pair_of(name: str) -> Pair:
    if name not in _pairs:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        _pairs[name] = Pair(name, model_of(name), Reference(families.build(name)))
    return _pairs[name]


def talk(job: tuple[str, int]) -> tuple[int, Counter[str], list[str], str | None]:
    """Counts, ties, and what went wrong."""
    name, seed = job
    try:
        counts, ties = run_talk(pair_of(name), seed)
    except AssertionError as wrong:
        return seed, Counter(), [], str(wrong)
    return seed, counts, [str(tie) for tie in ties], None


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=(*families.NAMES, *families.POOLED))
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    total, all_ties, wrong = Counter[str](), list[str](), list[str]()
    jobs = [(options.name, seed) for seed in range(options.first, options.last)]
    with get_context("spawn").Pool(options.jobs) as pool:
        for seed, counts, ties, error in pool.imap_unordered(talk, jobs, chunksize=4):
            total += counts
            all_ties += ties
            if error is not None:
                wrong.append(f"seed {seed}: {error}")
    print(f"{options.name}: {len(jobs)} talks, {len(wrong)} wrong, {len(all_ties)} ties, {dict(total)}")
    for line in [*wrong[:5], *all_ties]:
        print(line)
    if wrong or len(all_ties) * ANSWERS_PER_TIE > total["answers"]:
        return 1
    assert_seen(pair_of(options.name), total)
    return 0


if __name__ == "__main__":
    sys.exit(main())
