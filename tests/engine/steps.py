"""Driving an engine step by step, with every promise checked on the way. Knows no test.

Answers are compared with plain transformers (`reference.py`); models and what they answered are shared by all files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

import quire
from quire.core.records.groups import LayerGroup, pools_of
from quire.engine import Model, from_module
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.sampling.sample import sample
from quire.engine.setup.engine_config import EngineConfig
from quire.engine.step.runs.branch import Branch, Run
from quire.engine.step.step_report import StepReport

from . import families
from .reference import Reference, assert_same

MOST_STEPS = 2000
SMALL: dict[str, Any] = {
    "block_size": 8, "max_num_tokens": 64, "max_sequences": 8, "max_length": 256, "snapshot_every": 16,
}  # fmt: skip


@cache
def model_of(name: str) -> Model:
    """A tiny model, for engines only."""
    return from_module(families.build(name), share_pool=name in families.POOLED)


@cache
def reference_of(name: str) -> Reference:
    """One with the same weights, for transformers only."""
    return Reference(families.build(name))


def by_pool(pages: Sequence[int], groups: Sequence[LayerGroup]) -> list[int]:
    """Pages of each pool that has room for what each of its groups is to have."""
    total = Counter[int]()
    for pool, number in zip(pools_of(groups), pages, strict=True):
        total[pool] += number
    return [total[pool] for pool in sorted(total)]


def open_engine(model: str | Model, pages: Any, host: Any = 0, **settings: Any) -> Engine:
    """An engine with small blocks, steps and snapshots, unless told otherwise."""
    given = {name: settings.pop(name) for name in ("connector", "colder") if name in settings}
    config = EngineConfig(pages, host, **(SMALL | settings))
    engine = Engine(model_of(model) if isinstance(model, str) else model, config, **given)
    engine.cache.take_events()  # that it was created
    return engine


def plain(max_tokens: int, **fields: Any) -> Sampling:
    """An answer of exactly so many tokens."""
    return Sampling(max_tokens=max_tokens, ignore_eos=True, **fields)


def words(start: int, count: int) -> tuple[int, ...]:
    """Token ids of a prompt: consecutive, round and round."""
    span = families.VOCAB - families.FIRST_WORD
    return tuple(families.FIRST_WORD + (start + place) % span for place in range(count))


# -- steps -------------------------------------------------------------------------------------------------------------


def step(engine: Engine) -> StepReport | None:
    """One step within its budget, after which the cache is whole and every branch's pages are of its own tokens."""
    report = engine.step()
    if report is not None:
        assert report.num_tokens <= engine.config.max_num_tokens
    quire.check(engine.cache)
    check_places(engine)
    for branch in holders(engine):
        assert branch.sequence is not None
        tokens = engine.cache.tokens(branch.sequence)
        tokens = tokens[: len(tokens) - len(branch.drafts)]  # those of a step that was not read yet
        assert tokens.tolist() == branch.tokens[: len(tokens)].tolist(), f"{branch.run}: other tokens in its pages"
        assert branch.length - len(tokens) in (0, 1), f"{branch.run}: {len(tokens)} of {branch.length} tokens"
    return report


def check_places(engine: Engine) -> None:
    """Every branch of a live run is in one place, and nobody else is anywhere."""
    scheduler = engine.scheduler
    found = Counter([*scheduler.waiting, *holders(engine)])
    live = [branch for run in engine.runs.values() for branch in run.branches]
    assert not set(found) - set(live) and not [branch for branch, times in found.items() if times > 1]
    for branch in live:
        delivered = branch.log_probs is not None
        assert (branch in found) or (delivered and branch.sequence is None), f"{branch.run}: a branch is nowhere"
        assert delivered == (place_of(engine, branch) in ("held", "elsewhere"))
        assert (branch.sequence is None) == (branch not in holders(engine))
    check_plain(engine)


def check_plain(engine: Engine) -> None:
    """Every ready branch is among the plain rows or the special ones, and the arrays say what the branch does."""
    queues = engine.scheduler.queues
    rows, special = queues.plain.ready, list(queues.special)
    branches = queues.plain.branches_in(rows)
    assert set(branches) == {branch for branch in queues.ready if branch.is_plain} == set(queues.ready) - set(special)
    for row, branch in zip(rows.tolist(), branches, strict=True):
        assert branch.sequence is not None and branch.sequence.row == row
        assert queues.plain.known[row] == branch.length and queues.plain.last[row] == branch.tokens[-1]


def finish(engine: Engine, most: int = MOST_STEPS) -> int:
    """Step to the end; the number of steps. More than `most` is a failure: it would never end."""
    for number in range(most):
        if step(engine) is None:
            assert_clean(engine)
            return number
    raise AssertionError(f"not done after {most} steps: {list(engine.runs.values())}")


def holders(engine: Engine) -> list[Branch]:
    """Branches with pages."""
    scheduler = engine.scheduler
    return [*scheduler.ready, *scheduler.unread, *scheduler.prompts, *scheduler.held]


def place_of(engine: Engine, branch: Branch) -> str:
    """Where a branch is: one of the queues' places; elsewhere: a beam that delivered and lost its pages."""
    for name in ("waiting", "prompts", "ready", "unread", "held"):
        if branch in getattr(engine.scheduler, name):
            return name
    return "elsewhere"


def places_of(engine: Engine, run: Run) -> set[str]:
    """Where the branches of a run are."""
    return {place_of(engine, branch) for branch in run.branches}


# -- what must hold ----------------------------------------------------------------------------------------------------


def assert_clean(engine: Engine) -> None:
    """Nobody is in the engine, and every slot is empty or may be evicted."""
    scheduler, pages = engine.scheduler, engine.cache
    assert not engine.runs and not holders(engine) and not scheduler.waiting
    assert engine.num_lingering == 0 and pages.num_sequences == 0
    for group in range(len(pages.config.groups)):
        assert pages.num_free(group) == pages.config.slots_of(0, group)
        for tier in range(len(pages.config.tiers)):
            usage = pages.usage(tier, group)
            assert usage.held == 0 and usage.empty + usage.idle + usage.shadows == usage.capacity
    quire.check(pages)


def tokens_of(run: Run) -> list[list[int]]:
    """Its answers."""
    return [answer.tokens for answer in run.answers]


def assert_exact(name: str, runs: Iterable[Run]) -> None:
    """Every answer is that of plain transformers."""
    for run in runs:
        assert run.done and run.error is None, f"{run}: {run.error}"
        if run.sampling.beams > 1 or not all(_said(name, run, nth) for nth in range(run.sampling.n)):
            seeded = replace(run.sampling, seed=run.seed)
            assert_same(reference_of(name), run.prompt.tolist(), seeded, tokens_of(run), name)


def _said(name: str, run: Run, nth: int) -> bool:
    """Whether each token of an answer is what the model says behind those before it: one forward instead of many."""
    reference, sampling, answer = reference_of(name), run.sampling, run.answers[nth].tokens
    ends = reference.ends(sampling)
    if not answer or ends.intersection(answer[:-1]) or (answer[-1] not in ends and len(answer) < sampling.max_tokens):
        return False
    text = [*run.prompt.tolist(), *answer[:-1]]
    logits = reference.module(torch.tensor([text]), use_cache=False, logits_to_keep=len(answer)).logits[0]
    seeded = replace(sampling, seed=run.seed)
    rows = [reference.row(run.prompt.tolist(), seeded, nth, answer[:place]) for place in range(len(answer))]
    return sample(logits, rows) == answer


def assert_begun(name: str, run: Run) -> None:
    """What a stopped run has answered is how the whole answer begins; a beam search answers all at once or nothing."""
    wanted: Sequence[Sequence[int]] = reference_of(name).answers(run.prompt.tolist(), run.sampling)
    for whole, tokens in zip(wanted, tokens_of(run), strict=True):
        assert tuple(tokens) == tuple(whole[: len(tokens)])


def facts(engine: Engine) -> tuple[object, ...]:
    """What a refused call must leave as it is."""
    scheduler, pages = engine.scheduler, engine.cache
    groups, tiers = range(len(pages.config.groups)), range(len(pages.config.tiers))
    usage = [pages.usage(tier, group) for tier in tiers for group in groups]
    places = [list(place) for place in (engine.runs, scheduler.waiting, scheduler.ready, scheduler.prompts)]
    return (usage, [pages.stats(group) for group in groups], places, pages.num_sequences)
