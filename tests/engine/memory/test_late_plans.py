"""What other threads than the engine's ask of the cache between its calls: no copy that waits for a step is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.core.outside.prefetch import Prefetch  # noqa: E402
from quire.core.records.request import Request  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402

from ..steps import SMALL, assert_exact, plain, step, words  # noqa: E402
from .test_disk import answer, keeper_of, lasting  # noqa: E402

NAME = "qwen3_next"
STALE = [words(40 * nth, 40) for nth in range(5)]  # their pages on the disk are damaged


class BadPages:
    """A participant: between two steps a page on the disk turns out to be bad, and the keeper's thread is told so."""

    num_open = 0

    def __init__(self, engine: Engine, scrubbed: bool) -> None:
        self.engine, self.left, self.scrubbed = engine, list(STALE), scrubbed
        self.num_failed = 0

    def step(self) -> None:
        branches = [branch for run in self.engine.runs.values() for branch in run.branches]
        ends = [branch.sequence.computed for branch in branches if branch.sequence is not None]
        if not self.left or not any(end and end % SMALL["snapshot_every"] == 0 for end in ends):
            return  # no state is to be copied
        cache, keeper = self.engine.cache, keeper_of(self.engine)
        if self.scrubbed:
            first = 3 * len(self.left)
            self.left.pop()
            keeper._found_bad(0, dict.fromkeys(range(first, first + 3), "bad"))
            keeper.idle()
            self.num_failed = keeper.report().scrubbed_bad
            return
        coming = cache.prefetch(Request("stale", np.array(self.left.pop(), np.int32)))
        assert isinstance(coming, Prefetch)
        self.num_failed += len(keeper.run(coming.plan).result())
        coming.close()

    def close(self) -> bool:
        return True


@pytest.mark.parametrize(("length", "scrubbed"), [(32, False), (48, True)])
def test_a_states_copy_runs_before_the_next_step_though_pages_on_the_disk_are_bad(
    length: int, scrubbed: bool, tmp_path: Path
) -> None:
    """A commit leaves it to the next plan. The keeper's thread must not be the one that takes it."""
    with lasting(NAME, tmp_path) as first:
        for prompt in STALE:
            answer(first, prompt)
    for file in tmp_path.rglob("pages-*"):
        file.write_bytes(bytes(file.stat().st_size))
    with lasting(NAME, tmp_path) as engine:
        engine.participants.append(bad := BadPages(engine, scrubbed))
        prompt = words(500, length)
        runs = [engine.submit(prompt, plain(40))]
        while step(engine) is not None:
            pass
        assert bad.num_failed and len(bad.left) < len(STALE) - 1
        text = (*prompt, *runs[0].answers[0].tokens)
        for end in range(length + 1, len(text) + 1, 4):
            runs.append(answer(engine, (*text[:end], *words(900, 5))))
        assert any(run.reused > length for run in runs)
        assert_exact(NAME, runs)
