"""Run and Branch: what a user asked for, and each answer that is being generated for it. Knows no cache calls.

run --- branch 0   prompt + answer 0      one branch for a plain request, n for n answers,
    \\-- branch 1   prompt + answer 1      one per live beam for a beam search
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from quire.core.records.hint_words import Back
from quire.core.records.reports.receipt import Receipt
from quire.core.records.request import Int32, Request
from quire.core.state.prepared import Prepared
from quire.core.state.sequence import Sequence
from quire.engine.sampling.answer_counts import AnswerCounts
from quire.engine.sampling.params import Sampling
from quire.engine.step.runs.branch_prefetch import BranchPrefetch
from quire.engine.step.runs.page_hints import COMPLETE, NO_HINTS
from quire.engine.step.runs.tenant import NO_DEADLINE, Tenant
from quire.engine.step.runs.times import RunTimes, Times
from quire.insight.deadlines.step_costs import StepWork

if TYPE_CHECKING:
    import torch

    from quire.engine.sampling.token_logprobs import TokenLogprobs
    from quire.engine.sampling.token_rules import TokenRules
    from quire.engine.step.runs.beam import Beams
    from quire.engine.structured_outputs.token_mask import TokenMask

Age = tuple[int, float, int, int]
Finish = Literal["eos", "stop", "length", "cancelled", "error"]


@dataclass(slots=True)
class Answer:
    """One answer, complete or so far."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None  # None: not complete
    score: float | None = None  # of a beam search
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one per token, if they were asked for
    called: bool = False  # it calls a tool, as its listener says

    @property
    def reason(self) -> str | None:
        """Why it ended, as clients and traces call it."""
        return self.finish if self.finish not in COMPLETE else "tool_calls" if self.called else "stop"

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score {self.score:.3f}"
        return f"Answer({len(self.tokens)} tokens, {self.finish or 'not complete'}{score})"


class Listener(Protocol):
    """Gets tokens as they come, in the engine's thread. It must not block."""

    def hear(self, run: Run, branch: int, tokens: list[int]) -> bool:
        """New tokens of one answer, whose `finish` is set if they are its last; True: it shall end here."""
        ...

    def over(self, run: Run) -> None:
        """The run is done; its answers are final."""
        ...


class ExpectedWork(NamedTuple):
    """What a prompt will cost, as it was counted when it came."""

    work: StepWork
    slots: tuple[int, ...]  # by group


class Run:
    """One submitted request and its answers."""

    __slots__ = (
        "answers", "arrival", "beams", "branches", "computed", "deadline", "done", "error", "expected", "fallback",
        "hints", "id", "keeps_logits", "listener", "logits", "num_preemptions", "receipt", "received", "request",
        "reused", "rules", "sampling", "seed", "tenant", "times",
    )  # fmt: skip

    def __init__(self, request: Request, sampling: Sampling, seed: int, listener: Listener | None, now: float) -> None:
        self.id = request.id
        self.arrival = 0  # order of submission: of equals who came first goes first
        self.tenant = Tenant(request.id)  # as which it takes turns
        self.deadline = NO_DEADLINE  # of equal turns the earliest goes first
        self.expected: ExpectedWork | None = None  # what its prompt costs, where deadlines are kept
        self.request = request
        self.sampling = sampling
        self.seed = seed
        self.listener = listener
        self.answers = [Answer() for _ in range(sampling.n)]
        self.branches: list[Branch] = []  # live ones; of a beam search the live beams, best first
        self.beams: Beams | None = None
        self.rules: TokenRules | None = None  # None: no field is about particular tokens
        self.hints = NO_HINTS  # of what becomes of its pages
        self.done = False
        self.error: str | None = None
        self.receipt: Receipt | None = None  # why no more was reused when it was first admitted, if receipts are made
        self.reused = 0  # prompt tokens that were not computed when it was first admitted
        self.computed = 0  # tokens computed for it so far, again or not
        self.num_preemptions = 0
        self.keeps_logits = False  # those of its last step, for the peer that decodes
        self.logits: torch.Tensor | None = None
        self.received = 0  # bytes of its prompt's KV that a peer has sent
        self.fallback = ""  # why a prompt that a peer should have sent was computed here
        self.times = Times(now)

    @property
    def prompt(self) -> Int32:
        """Its tokens."""
        return self.request.tokens

    @property
    def order(self) -> tuple[int, int]:
        """Sort key within a tenant: by priority, then by submission."""
        return self.sampling.priority, self.arrival

    @property
    def fresh(self) -> bool:
        """It has computed nothing yet that it could reuse itself."""
        return not self.num_preemptions and not self.times.first_token

    @property
    def time_to_first_token(self) -> float:
        """Seconds from submission until the first token of an answer was on the host; nan when none came."""
        return self.times.first_token - self.times.submitted if self.times.first_token else float("nan")

    def back_of(self, index: int) -> Back | None:
        """When the text of an answer is asked for again, as far as is known. Which beams become one is not."""
        if self.beams is not None:
            return self.hints.back
        answer = self.answers[index]
        return self.hints.at_end(answer.finish, answer.called)

    @property
    def user_times(self) -> RunTimes:
        """How long it took, as the caller sees it."""
        return self.times.seen(max(len(answer.tokens) for answer in self.answers))

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else f"{len(self.branches)} branches"
        return f"Run({self.id!r}, {len(self.prompt)} tokens, {state})"


class Branch:
    """Tokens of one answer in the making, behind its prompt. `sequence` is its hold on pages; None while it waits."""

    __slots__ = (
        "_begun", "_buffer", "_filled", "counts", "drafts", "id", "index", "log_probs", "made", "mask", "prefetch",
        "prepared", "run", "sequence",
    )  # fmt: skip

    def __init__(self, run: Run, index: int, id: Hashable, tokens: Int32, mask: TokenMask | None = None) -> None:
        self.run = run
        self.index = index  # which answer it makes
        self.id = id  # of its sequence
        self._begun = len(run.prompt)
        # What it has made: the tokens of its answer themselves. Which beams become an answer is not known yet.
        self.made = run.answers[index].tokens if run.beams is None else tokens[self._begun :].tolist()
        self._filled = len(tokens)  # of the buffer; the rest of what was made follows when it is asked for
        self._buffer = np.empty(self._filled + max(16, run.sampling.max_tokens), np.int32)
        self._buffer[: self._filled] = tokens
        self.sequence: Sequence | None = None
        self.prepared: Prepared | None = None  # its next claim, while it waits
        self.prefetch: BranchPrefetch | None = None  # pages on their way, while it waits for the first time
        self.drafts: Int32 = _NONE  # guessed tokens that this step computes beside its last one
        self.counts = AnswerCounts()  # of its answer's tokens, for penalties
        self.mask = mask  # what may come next; None: anything
        self.log_probs: torch.Tensor | None = None  # a beam's, while it waits for the others

    @property
    def length(self) -> int:
        """Tokens of prompt and answer so far."""
        return self._begun + len(self.made)

    @property
    def ahead(self) -> int:
        """Tokens behind `length` that steps in flight make, not read yet. What it was handed out has been launched."""
        if self.sequence is None:
            return 0
        return max(0, self.sequence.ran + 1 - self.length - len(self.drafts))

    @property
    def tokens(self) -> Int32:
        """Prompt and answer so far (a view)."""
        length, filled = self.length, self._filled
        if filled < length:
            if length > len(self._buffer):
                self._buffer = np.concatenate([self._buffer, np.empty(length, np.int32)])
            self._buffer[filled:length] = self.made[filled - self._begun :]
            self._filled = length
        return self._buffer[:length]

    @property
    def answer(self) -> Int32:
        """The answer so far (a view)."""
        return self.tokens[self._begun :]

    @property
    def last_token(self) -> int:
        """The last of its tokens."""
        return self.made[-1] if self.made else int(self._buffer[self._begun - 1])

    @property
    def age(self) -> Age:
        """Who comes first within a tenant: by priority, deadline, submission, then by number."""
        run = self.run
        return run.sampling.priority, run.deadline, run.arrival, self.index

    @property
    def splits(self) -> bool:
        """Its next tokens are the first of a run with several answers: each answer goes its own way from there."""
        run = self.run
        return run.sampling.n > 1 and run.beams is None and len(run.branches) == 1 and not run.answers[0].tokens

    @property
    def needs_tokens(self) -> bool:
        """The host must have read its last token before its next can be computed."""
        run = self.run
        return bool(
            self.mask is not None or run.rules is not None or run.beams is not None or run.sampling.drafts
            or self.splits
        )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Its next token takes its last one and nothing else, and only a token is wanted of it: see `plain_rows`."""
        run = self.run
        return run.sampling.logprobs is None and not run.keeps_logits and not self.needs_tokens

    @property
    def may_go_on(self) -> bool:
        """Its next token can be computed: its last was read, or need not be, and its answer has room for one more."""
        if not self.ahead:
            return True
        end = len(self.run.prompt) + self.run.sampling.max_tokens
        return self.length + self.ahead < end and not self.needs_tokens

    @property
    def back(self) -> Back | None:
        """When its text is asked for again."""
        return self.run.back_of(self.index)

    def __repr__(self) -> str:
        return f"Branch({self.id!r}, answer {self.index}, {self.length} tokens)"

    def append(self, tokens: list[int]) -> None:
        """New tokens of the answer."""
        self.made.extend(tokens)
        if self.mask is not None:
            for token in tokens:
                self.mask.accept(token)

    def end_prefetch(self) -> None:
        """It has pages of its own now, or wants none."""
        prefetch, self.prefetch = self.prefetch, None
        if prefetch is not None:
            prefetch.close()

    def request(self) -> Request:
        """What to claim: the prompt, or the prompt and what was generated before it lost its pages."""
        first = self.run.request
        if self.length == len(first.tokens):
            return first if first.id == self.id else replace(first, id=self.id, beams=1)
        return replace(first.continued(self.tokens.copy(), len(first.tokens)), id=self.id)


_NONE = np.empty(0, np.int32)
NO_DRAFTS = _NONE
