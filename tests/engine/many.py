"""Thousands of random talks on several processes: python -m tests.engine.many llama 0 2000 --jobs 16

With `--store` each talk is played twice over a shared store of its own, the second time from what the first has sent,
and every page that goes out is held against what was computed. Seeds of engines without host memory are left out.
`--pairs` and `--seconds` end a run early: after so many pairs, or when the time is over.
"""

from __future__ import annotations

import sys
import time
import traceback
from argparse import ArgumentParser
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from quire.engine.model.layers import Model
from quire.engine.runner.engine import Engine
from quire.engine.setup.engine_config import EngineConfig
from quire.tiers.shared import SharedCache

from . import families, talks
from .memory.test_shared_talks import sharing
from .reference import Difference, Reference
from .steps import model_of
from .test_exact import ANSWERS_PER_TIE, OVERLAPPED, Pair, assert_seen, run_talk

_pairs: dict[str, Pair] = {}  # of this process


def pair_of(name: str) -> Pair:
    if name not in _pairs:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        _pairs[name] = Pair(name, model_of(name), Reference(families.build(name)))
    return _pairs[name]


def talk(job: tuple[str, int, bool, bool, bool]) -> tuple[int, Counter[str], list[str], str | None]:
    """Counts, ties, and what went wrong."""
    name, seed, stored, overlap, share = job
    try:
        counts, ties = (
            twice(name, seed, overlap, share) if stored else run_talk(pair_of(name), seed, overlap=overlap, share=share)
        )
    except AssertionError as wrong:
        where = traceback.extract_tb(wrong.__traceback__)[-1]
        return seed, Counter(), [], f"{wrong} ({where.filename}:{where.lineno}: {where.line})"
    return seed, counts, [str(tie) for tie in ties], None


class WithoutStore(Exception):
    """This talk's engine has no host memory, so no store."""


def only_sharing(folder: Path, opened: list[SharedCache], model: Model, config: EngineConfig, **more: Any) -> Engine:
    before = len(opened)
    engine = sharing(folder, opened, model, config, **more)
    if len(opened) == before:
        engine.close()
        raise WithoutStore
    return engine


def twice(name: str, seed: int, overlap: bool, share: bool) -> tuple[Counter[str], list[Difference]]:
    """One talk and again, over a store; nothing if that engine has none."""
    pair, opened = pair_of(name), list[SharedCache]()
    counts, ties = Counter[str](), list[Difference]()
    with TemporaryDirectory(prefix="quire-pair-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(talks, "Engine", partial(only_sharing, Path(folder), opened))
        for _ in range(2):
            try:
                seen, found = run_talk(pair, seed, overlap=overlap, share=share)
            except WithoutStore:
                return Counter(), []
            counts, ties = counts + seen, ties + found
    audits = [shared.audit for shared in opened if shared.audit is not None]
    assert not sum(audit.num_wrong for audit in audits), audits
    counts["pairs"], counts["pages sent"] = 1, sum(shared.counts().sent for shared in opened)
    counts["pages from the store"] = sum(shared.counts().hits for shared in opened)
    return counts, ties


def enough(pairs: int, asked: int | None) -> bool:
    return asked is not None and pairs >= asked


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=(*families.NAMES, *families.POOLED, *families.OWN_FORWARDS))
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--store", action="store_true", help="each talk twice, over a shared store")
    parser.add_argument("--overlap", action="store_true", help="each step is prepared while the one before computes")
    parser.add_argument("--alone", action="store_true", help="no prompt uses pages that a step is still computing")
    parser.add_argument("--pairs", type=int, help="end after so many pairs over a store")
    parser.add_argument("--seconds", type=float, help="end after this time")
    options = parser.parse_args()
    total, all_ties, wrong, played = Counter[str](), list[str](), list[str](), 0
    how = (options.store, options.overlap, not options.alone)
    jobs = [(options.name, seed, *how) for seed in range(options.first, options.last)]
    end = None if options.seconds is None else time.monotonic() + options.seconds
    with get_context("spawn").Pool(options.jobs) as pool:
        for seed, counts, ties, error in pool.imap_unordered(talk, jobs):
            played += 1
            total += counts
            all_ties += ties
            if error is not None:
                wrong.append(f"seed {seed}: {error}")
            if enough(total["pairs"], options.pairs) or (end is not None and time.monotonic() > end):
                break
    print(f"{options.name}: {played} talks, {len(wrong)} wrong, {len(all_ties)} ties, {dict(total)}")
    for line in [*wrong[:5], *all_ties]:
        print(line)
    if wrong or len(all_ties) * ANSWERS_PER_TIE > total["answers"]:
        return 1
    if not options.store:
        assert_seen(pair_of(options.name), total, OVERLAPPED if options.overlap else ())
    return 0


if __name__ == "__main__":
    sys.exit(main())
