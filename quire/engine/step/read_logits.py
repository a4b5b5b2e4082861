"""Reading logits: which tokens each branch of a step would go on with. Knows no cache and no scheduler.

    choose_tokens: logits -> tokens, where the model computes      UnreadTokens.read: -> on the host, when it asks

Plain rows come first in a step, a token each, and stay in arrays. Only `read` waits for the device: a next step may
take the tokens before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.records.request import Int32
from quire.core.records.span import Span
from quire.engine.sampling.answer_counts import Counts
from quire.engine.sampling.sample import BROKEN, broken, choose, log_probs
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.sample_table import NO_SAMPLES, SampleTable
from quire.engine.sampling.token_logprobs import TokenLogprobs, logprobs_of
from quire.engine.step.runs.branch import Branch
from quire.engine.tensors.on_device import on_device


class Wanted(NamedTuple):
    """A branch whose logits are to be looked at one by one."""

    branch: Branch
    rows: Span  # of the step's logits
    made: int  # tokens of its answer before the first one chosen, read or not


class NextTokens(NamedTuple):
    """What the logits of a step say."""

    plain: Int32  # a token of each plain row
    tokens: dict[Branch, list[int]]  # one per position of a branch; at a fork one per answer
    logprobs: dict[Branch, list[TokenLogprobs]]  # of these tokens, where they were asked for
    scores: dict[Branch, torch.Tensor]  # of beams the log-probabilities of all tokens
    unusable: list[Branch]  # their logits are not numbers; of their runs there is nothing else here


class UnreadTokens:
    """The tokens of a step, chosen on its device. `tokens` are there, `places` says which a branch's are."""

    __slots__ = ("_logits", "_num_plain", "_on_host", "_ready", "_wanted", "places", "tokens")

    def __init__(
        self, wanted: Sequence[Wanted], logits: torch.Tensor, tokens: torch.Tensor, num_plain: int,
        places: dict[Branch, slice],
    ) -> None:  # fmt: skip
        runs = [one.branch.run for one in wanted]
        kept = any(run.keeps_logits or run.beams or run.sampling.logprobs is not None for run in runs)
        self._wanted = {one.branch: one for one in wanted}
        self._logits = logits.clone() if kept else None  # the next step may be computed in their memory
        self.tokens, self.places, self._num_plain = tokens, places, num_plain
        self._on_host, self._ready = tokens, None
        if tokens.device.type == "cuda":
            self._on_host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._on_host.copy_(tokens, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(tokens.device))

    def read(self, wanted: set[Branch]) -> NextTokens:
        """Wait for the device; what the logits say for plain rows, and for these branches."""
        if self._ready is not None:
            self._ready.synchronize()
        found: NDArray[np.int64] = self._on_host.numpy()
        plain = found[: self._num_plain].astype(np.int32)
        if not wanted:
            return NextTokens(plain, {}, {}, {}, [])
        ids: list[int] = found.tolist()
        branches = [branch for branch in self._wanted if branch in wanted]
        unusable = self._unusable(branches, ids)
        failed = {branch.run.id for branch in unusable}
        good = [branch for branch in branches if branch.run.id not in failed]
        tokens = {branch: ids[self.places[branch]] for branch in good if branch in self.places}
        return NextTokens(plain, tokens, self._logprobs(tokens), self._scores(good), unusable)

    def _unusable(self, branches: list[Branch], ids: list[int]) -> list[Branch]:
        beams = [branch for branch in branches if branch.run.beams is not None]
        bad: set[int] = set()
        if beams and self._logits is not None:
            bad = set(broken(self._logits))
        return [
            branch for branch in branches
            if (BROKEN in ids[self.places[branch]] if branch in self.places else self._row(branch) in bad)
        ]  # fmt: skip

    def _row(self, branch: Branch) -> int:
        return self._wanted[branch].rows.start

    def _scores(self, branches: list[Branch]) -> dict[Branch, torch.Tensor]:
        """Of beams; and logits where a run keeps them."""
        if self._logits is None:
            return {}
        for branch in branches:
            if branch.run.keeps_logits:
                branch.run.logits = self._logits[self._wanted[branch].rows.end - 1].float().cpu()
        beams = [branch for branch in branches if branch.run.beams is not None]
        if not beams:
            return {}
        table = log_probs(self._logits[[self._row(beam) for beam in beams]])
        return dict(zip(beams, table, strict=True))

    def _logprobs(self, tokens: dict[Branch, list[int]]) -> dict[Branch, list[TokenLogprobs]]:
        """Of all who asked, in one go."""
        asked = [branch for branch in tokens if branch.run.sampling.logprobs is not None]
        if not asked or self._logits is None:
            return {}
        chosen = [max(0, token) for branch in asked for token in tokens[branch]]  # no token: there is no run any more
        rows = [row for branch in asked for row in _logit_rows(self._wanted[branch])]
        counts = [branch.run.sampling.logprobs or 0 for branch in asked for _ in tokens[branch]]
        logprobs = iter(logprobs_of(self._logits[rows], chosen, counts))
        return {branch: [next(logprobs) for _ in tokens[branch]] for branch in asked}


def choose_tokens(wanted: Sequence[Wanted], logits: torch.Tensor, plain: SampleTable = NO_SAMPLES) -> UnreadTokens:
    """For plain rows, whose logits are the first, and every branch but beams, whose tokens depend on each other.

    Without waiting for the device.
    """
    count = len(plain)
    samples: list[SampleRow] = []
    read: list[int] = []
    places: dict[Branch, slice] = {}
    for one in wanted:
        if one.branch.run.beams is None:
            first = count + len(samples)
            samples += _sample_rows(one)
            read += _logit_rows(one)
            places[one.branch] = slice(first, count + len(samples))
    table = plain.then(SampleTable.of(samples)) if samples else plain
    if len(table) and read != list(range(count, len(logits))):
        logits_read = logits[on_device([*range(count), *read], logits.device)]
    else:
        logits_read = logits
    return UnreadTokens(wanted, logits, choose(logits_read, table), count, places)


def _logit_rows(one: Wanted) -> list[int]:
    """Where each of its tokens is chosen: at a fork all from one row."""
    branch, rows = one.branch, one.rows
    return [rows.start] * branch.run.sampling.n if branch.splits else list(range(rows.start, rows.end))


def _sample_rows(one: Wanted) -> list[SampleRow]:
    """How its tokens are chosen: behind its answer, behind a token that is not read yet, and behind each draft."""
    branch, made, count = one.branch, one.made, len(one.rows)
    run = branch.run
    if branch.splits:
        mask = None if branch.mask is None else branch.mask.words()
        return [SampleRow(run.sampling, run.seed, nth, made, run.rules, mask=mask) for nth in range(run.sampling.n)]
    if run.rules is None and branch.mask is None:
        return [SampleRow(run.sampling, run.seed, branch.index, made + nth) for nth in range(count)]
    return _ruled_rows(branch, made, count)


def _ruled_rows(branch: Branch, made: int, count: int) -> list[SampleRow]:
    """Rows behind an answer of `made` tokens, and behind each draft as if it were right; with a mask there are none."""
    run, mask = branch.run, None if branch.mask is None else branch.mask.words()
    text = np.concatenate([branch.answer, branch.drafts])
    if run.rules is None or not run.rules.count:
        counts: list[Counts | None] = [None] * count
    else:
        counts = [branch.counts.behind(text[:made], text[made : made + nth]) for nth in range(count)]
    return [
        SampleRow(run.sampling, run.seed, branch.index, made + nth, run.rules, text[: made + nth], mask, counts[nth])
        for nth in range(count)
    ]
