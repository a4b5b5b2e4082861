"""What a model answers without any cache of ours, and the comparison with what an engine answered.

Beam answers come from transformers' `generate`. For others one pass of the model over prompt and answer, without any
cache, says of every token what comes behind those before it: the greatest logit, or what is sampled, by the rules about
tokens. Where the answer is not what comes of that, it is made token by token: by `generate`, or by sampling from the
logits of the whole text so far. Knows no engine.

A *tie* is a difference that float32 rounding explains: the reference's logits of the two tokens are closer than TIE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from quire.engine.sampling.params import Sampling
from quire.engine.sampling.sample import sample
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.token_rules import rules_of

TIE = 1e-4
NUDGES = (1e-6, 1e-5, 5e-5, 1e-3, 1e-2)  # how far logits are moved to see whether a sampled token was a close call
TRIES = 1024  # with each: beside two likely tokens there may be one of a few in a million, which a processor hits
SCORES = 1e-3  # beam scores agree this well

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """Where an answer leaves the reference, and by how much the reference preferred its own token."""

    answer: int
    place: int
    wanted: Tokens
    got: Tokens
    gap: float

    @property
    def tie(self) -> bool:
        return self.gap < TIE

    def __str__(self) -> str:
        word = "a tie" if self.tie else "no rounding"
        return f"answer {self.answer} differs at {self.place}: {word}, gap {self.gap:.1e}\n{self.wanted}\n{self.got}"


class Reference:
    """One model of its own; its answers are kept. With `steps`, sampling uses the model's own cache."""

    def __init__(self, module: PreTrainedModel, *, steps: bool = False) -> None:
        self.module = module
        self.steps = steps
        eos = module.generation_config.eos_token_id
        self.eos_ids: frozenset[int] = frozenset([eos] if isinstance(eos, int) else eos or [])
        self.pad = module.generation_config.pad_token_id or 0
        module.generation_config = GenerationConfig(pad_token_id=self.pad)  # nothing but what a call says
        self._answers: dict[tuple[Tokens, Sampling], tuple[list[Tokens], list[float] | None]] = {}

    def answers(self, prompt: Sequence[int], sampling: Sampling) -> list[Tokens]:
        """The `n` answers."""
        return self._known(tuple(prompt), sampling)[0][: sampling.n]

    def scores(self, prompt: Sequence[int], sampling: Sampling) -> list[float] | None:
        """Scores of a beam search."""
        return self._known(tuple(prompt), sampling)[1]

    def _known(self, prompt: Tokens, sampling: Sampling) -> tuple[list[Tokens], list[float] | None]:
        plain = replace(sampling, drafts=0, ngram=1)  # speculation changes no answer
        if (prompt, plain) not in self._answers:
            self._answers[prompt, plain] = self._compute(prompt, plain)
        return self._answers[prompt, plain]

    def _compute(self, prompt: Tokens, sampling: Sampling) -> tuple[list[Tokens], list[float] | None]:
        if sampling.beams > 1:
            return self._generate(prompt, sampling)
        if not _is_drawn(sampling):
            return self._generate(prompt, replace(sampling, n=1))[0] * sampling.n, None
        return [self._drawn(prompt, sampling, branch) for branch in range(sampling.n)], None

    def ends(self, sampling: Sampling) -> set[int]:
        """Tokens that end such an answer."""
        return {*sampling.stop_ids, *(() if sampling.ignore_eos else self.eos_ids)}

    def _generate(self, prompt: Tokens, sampling: Sampling) -> tuple[list[Tokens], list[float] | None]:
        ids = torch.tensor([prompt])
        ends = self.ends(sampling)
        options: dict[str, Any] = {"eos_token_id": sorted(ends)} if ends else {}
        if sampling.beams > 1:
            options |= {"num_beams": sampling.beams, "num_return_sequences": sampling.n, "early_stopping": False}
            options |= {"length_penalty": sampling.length_penalty}
        made = self.module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=sampling.max_tokens, do_sample=False,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
        answers = [_cut(row, ends) for row in made.sequences[:, len(prompt) :].tolist()]
        return answers, made.sequences_scores.tolist() if sampling.beams > 1 else None

    def _drawn(self, prompt: Tokens, sampling: Sampling, branch: int) -> Tokens:
        ends, own = self.ends(sampling), DynamicCache(config=self.module.config)
        answer: Tokens = ()
        while len(answer) < sampling.max_tokens and not (answer and answer[-1] in ends):
            if self.steps:
                new = (*prompt, *answer)[own.get_seq_length() :]
                logits = self.module(torch.tensor([new]), past_key_values=own, use_cache=True).logits[0, -1:]
            else:
                logits = self.logits((*prompt, *answer))
            answer = (*answer, *sample(logits, [self.row(prompt, sampling, branch, answer)]))
        return answer

    def row(self, prompt: Sequence[int], sampling: Sampling, branch: int, answer: Sequence[int]) -> SampleRow:
        """How the token behind an answer so far is chosen."""
        text = np.array(prompt, np.int32)
        rules = rules_of(sampling, text, self.eos_ids, None)
        seed = 0 if sampling.seed is None else sampling.seed
        return SampleRow(sampling, seed, branch, len(answer), rules, np.array(answer, np.int32))

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """After the last token: [1, vocabulary]; everything computed at once."""
        out: torch.Tensor = self.module(torch.tensor([tuple(tokens)]), use_cache=False, logits_to_keep=1).logits[0]
        return out

    # -- comparison --------------------------------------------------------------------------------------------------

    def differences(self, prompt: Sequence[int], sampling: Sampling, got: Sequence[Sequence[int]]) -> list[Difference]:
        """Where the answers leave the reference; empty when they are equal."""
        pairs = [(nth, tuple(one)) for nth, one in enumerate(got)]
        if sampling.beams == 1 and len(got) == sampling.n and all(self._confirms(prompt, sampling, *p) for p in pairs):
            return []
        wanted = self.answers(prompt, sampling)
        assert len(got) == len(wanted), f"{len(got)} answers instead of {len(wanted)}"
        both = [(nth, one, tuple(other)) for nth, (one, other) in enumerate(zip(wanted, got, strict=True))]
        return [self._difference(tuple(prompt), sampling, *pair) for pair in both if pair[1] != pair[2]]

    def _confirms(self, prompt: Sequence[int], sampling: Sampling, branch: int, got: Tokens) -> bool:
        """Whether every token of an answer is what comes behind those before it, and it ends where it must.

        Then it is the reference's own, in one pass over all of it instead of one for each token.
        """
        ends = self.ends(sampling)
        if not got or ends & set(got[:-1]) or not (len(got) == sampling.max_tokens or got[-1] in ends):
            return False
        text = torch.tensor([(*prompt, *got[:-1])])
        logits = self.module(text, use_cache=False, logits_to_keep=len(got)).logits[0]
        if not _is_drawn(sampling):
            return tuple(logits.argmax(-1).tolist()) == got
        return tuple(sample(logits, [self.row(prompt, sampling, branch, got[:at]) for at in range(len(got))])) == got

    def _difference(self, prompt: Tokens, sampling: Sampling, nth: int, wanted: Tokens, got: Tokens) -> Difference:
        pairs = enumerate(zip(wanted, got, strict=False))
        place = next((at for at, (one, other) in pairs if one != other), min(len(wanted), len(got)))
        gap = float("inf")
        if sampling.beams > 1:
            gap = abs(self._score(prompt, wanted, sampling) - self._score(prompt, got, sampling))
        elif place < min(len(wanted), len(got)):
            logits = self.logits((*prompt, *wanted[:place]))
            if sampling.greedy and not sampling.edits_logits:
                gap = float(logits[0, wanted[place]] - logits[0, got[place]])
            else:
                gap = _nudge(logits, self.row(prompt, sampling, nth, wanted[:place]), got[place])
        return Difference(nth, place, wanted, got, gap)

    def _score(self, prompt: Tokens, answer: Tokens, sampling: Sampling) -> float:
        logits = self.module(torch.tensor([(*prompt, *answer)]), use_cache=False).logits[0]
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        total = float(rows[torch.arange(len(answer)), torch.tensor(answer)].sum())
        return total / float(len(answer) ** sampling.length_penalty)


def _is_drawn(sampling: Sampling) -> bool:
    """Token by token from the logits, as transformers' `generate` does not do it."""
    return sampling.beams == 1 and (not sampling.greedy or sampling.edits_logits)


def _cut(tokens: list[int], ends: set[int]) -> Tokens:
    """Without what pads the rows of a batch."""
    last = next((place for place, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tuple(tokens[: last + 1])


def _nudge(logits: torch.Tensor, row: SampleRow, token: int) -> float:
    """The smallest change of logits after which that token is drawn; inf: none of those tried."""
    dice = torch.Generator().manual_seed(0)
    for size in NUDGES:
        for _ in range(TRIES):
            noise = (torch.rand(logits.shape, generator=dice) * 2 - 1) * size
            if sample(logits + noise, [row]) == [token]:
                return size
    return float("inf")


def assert_same(
    reference: Reference, prompt: Sequence[int], sampling: Sampling, got: Sequence[Sequence[int]], what: str = ""
) -> None:
    """Every answer is the reference's, token by token; a tie is a failure too, and called so."""
    found = reference.differences(prompt, sampling, got)
    assert not found, f"{what} prompt of {len(prompt)} tokens, {sampling}: " + "; ".join(map(str, found))
