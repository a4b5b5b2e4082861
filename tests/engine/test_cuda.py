"""The same random talks on a GPU, in float32: answers are those of plain transformers on the CPU.

Two machines round differently, so ties are counted as in the long run on the CPU: one answer of 2,000.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

from quire.engine import from_module  # noqa: E402

from . import families  # noqa: E402
from .reference import Difference, Reference  # noqa: E402
from .test_exact import ANSWERS_PER_TIE, OVERLAPPED, Pair, assert_seen, run_talk  # noqa: E402

NUM_TALKS = int(os.environ.get("QUIRE_TALKS", "40"))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", (*families.NAMES, *families.POOLED))
def test_random_talks_on_a_gpu(name: str, overlap: bool) -> None:
    if name in families.RECURRENT and not hasattr(transformers.DynamicCache, "get_conv_state"):
        pytest.skip(f"recurrent layers need transformers 5.22, this is {transformers.__version__}")
    model = from_module(families.build(name).to("cuda"), share_pool=name in families.POOLED)
    pair = Pair(name, model, Reference(families.build(name)))
    counts: Counter[str] = Counter()
    all_ties: list[Difference] = []
    for seed in range(NUM_TALKS):
        seen, ties = run_talk(pair, seed, overlap=overlap)
        counts += seen
        all_ties += ties
    print(f"{name}: {dict(counts)}, ties: {[(tie.gap, tie.place) for tie in all_ties]}")
    assert len(all_ties) * ANSWERS_PER_TIE <= max(ANSWERS_PER_TIE, counts["answers"])
    assert_seen(pair, counts, OVERLAPPED if overlap else ())
