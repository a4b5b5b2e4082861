"""SampleRow: all that one row of logits needs to become a token. Knows no batch and no branch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quire.core.records.request import Int32
from quire.engine.sampling.answer_counts import Counts
from quire.engine.sampling.params import Sampling
from quire.engine.sampling.token_rules import NO_IDS, TokenRules


class SampleRow(NamedTuple):
    """How one row's token is to be chosen; (seed, branch, position) is its chance."""

    sampling: Sampling
    seed: int
    branch: int
    position: int
    rules: TokenRules | None = None
    answer: Int32 = NO_IDS  # the tokens before it in its answer; read by rules only
    mask: Int32 | None = None  # bits of the tokens that may come, 32 to a number; None: all
    counts: Counts | None = None  # of the answer's tokens, where penalties ask for them; None: not counted yet

    @property
    def edited(self) -> bool:
        """Whether its logits are changed before a token is chosen."""
        return self.rules is not None or self.mask is not None

    def counted(self) -> Counts:
        """How often each token stands in the answer."""
        return np.unique(self.answer, return_counts=True) if self.counts is None else self.counts
