"""Talks: a random world of users around one engine, and an account of what happened in it.

A talk has a seed. From it come the engine's config (small blocks, small budgets, few pages), users with shared system
prompts, and their turns: going on, going back, asking again, editing what was said, repeating words, losing patience.
A turn's prompt contains what the engine answered before, so hits reach into answers and end inside blocks. Requests are
submitted at random steps. Some hosts are worn: now and then a page cannot be read back; some have a disk below them.
Every order of eviction is drawn, the adaptive one most; half of the engines make receipts; half of the users have a
tenant. Snapshots inside a step and where texts part are not drawn: where a model has states they are always on. The
clock is drawn as well, and moves when it is read. The driver steps the engine and checks the cache; comparing answers
is the test's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import quire
from quire.core.records.config import Eviction
from quire.core.records.groups import LayerGroup, Lengths, pools_of
from quire.engine import Model
from quire.engine.memory.disk_side import DiskConfig
from quire.engine.runner.engine import Engine
from quire.engine.sampling.params import Sampling
from quire.engine.setup.engine_config import EngineConfig, Graphs
from quire.tiers import ArenaTier, Bytes, TierError, TierInfo

from .families import FIRST_WORD, VOCAB
from .steps import by_pool

LONGEST_ANSWER = 16
MOST_BEAMS = 4
MOST_STEPS = 4000
Tokens = tuple[int, ...]
Speak = Callable[[np.random.Generator, int], Tokens]  # so many words


def random_words(dice: np.random.Generator, count: int) -> Tokens:
    """Any token ids."""
    return tuple(dice.integers(FIRST_WORD, VOCAB, count).tolist())


class Clock:
    """It moves whenever it is read: pages grow older, the same in every run of a seed."""

    def __init__(self, pace: float) -> None:
        self.now, self.pace = 0.0, pace

    def __call__(self) -> float:
        self.now += self.pace
        return self.now


class WornTier:
    """Host memory of which one read in three fails."""

    def __init__(self, pages: Sequence[int], groups: Sequence[LayerGroup], seed: int) -> None:
        pools = pools_of(groups)
        sizes = [group.page_bytes for group in groups]
        self.arena = ArenaTier("host", [pages[pool] for pool in pools], sizes, pools)
        self.dice = np.random.default_rng(seed)

    def info(self) -> TierInfo:
        return self.arena.info()

    def read(self, group: int, slots: Sequence[int], out: Sequence[Bytes]) -> None:
        self.arena.read(group, slots, out)
        failed = {slot: "worn out" for slot in slots if self.dice.integers(3) == 0}
        for slot, buffer in zip(slots, out, strict=True):
            if slot in failed:
                buffer[:] = 0xEE  # whoever reads it shall be seen
        if failed:
            raise TierError("host", group, failed)

    def write(self, group: int, slots: Sequence[int], data: Sequence[Bytes]) -> None:
        self.arena.write(group, slots, data)

    def close(self) -> None:
        self.arena.close()


@dataclass
class Done:
    """One request and what became of it; it listens to its own run."""

    prompt: Tokens
    sampling: Sampling
    engine: Engine
    run: Any = None
    heard: dict[int, list[int]] = field(default_factory=dict)  # by answer
    by_step: Counter[tuple[int, int]] = field(default_factory=Counter)  # tokens by answer and step
    ends: int = 0
    patience: int = MOST_STEPS  # steps until it is cancelled

    def hear(self, run: Any, branch: int, tokens: list[int]) -> bool:
        self.heard.setdefault(branch, []).extend(tokens)
        self.by_step[branch, self.engine.stats.num_steps] += len(tokens)
        return False

    def over(self, run: Any) -> None:
        self.ends += 1

    @property
    def guessed(self) -> int:
        """Tokens that came as accepted drafts: beyond one in a step."""
        return sum(self.by_step.values()) - len(self.by_step) if self.sampling.drafts else 0


@dataclass
class User:
    """What one user has said and heard, by turn, and when the next turn comes."""

    turns_left: int
    next_step: int
    history: list[Tokens] = field(default_factory=list)  # prompts with their answers
    open_runs: int = 0
    tenant: str | None = None


class Talk:
    """One world, from its first step to its last."""

    def __init__(
        self,
        model: Model,
        seed: int,
        *,
        num_users: int = 4,
        speak: Speak = random_words,
        overlap: bool = False,
        share: bool = True,
    ) -> None:
        self.dice, self.more_dice = np.random.default_rng(seed), np.random.default_rng((seed, 1))
        self.rest_dice = np.random.default_rng((seed, 2))  # so that the worlds stay what they were without it
        self.model, self.seed, self.speak = model, seed, speak
        self.pace = float(self.rest_dice.choice([1e-4, 0.02, 1.0]))  # seconds, whenever the clock is read
        cramped = self._one_in(3)  # short prompts in few small pages: what is generated fights for room
        self.longest = int(self.dice.integers(12, 30) if cramped else self.dice.integers(40, 130))  # of a prompt
        self.largest_block, self.most_spare = (6, 3) if cramped else (16, 10)
        self.most_beams = int(self.dice.choice([1, 1, 2, MOST_BEAMS]))
        graphs: Graphs = "on" if seed % 2 else "off"  # "on" on a CPU: steps of fixed sizes, uncaptured
        self.config = replace(self._draw_rest(self._draw_config()), overlap=overlap, graphs=graphs, share_pending=share)
        worn = self._draw_host()
        self.folder = TemporaryDirectory(prefix="quire-talk-") if self.config.disk_pages else None
        disk = DiskConfig(self.folder.name) if self.folder else None
        worn = None if disk else worn
        self.engine = Engine(model, self.config, colder=worn, clock=Clock(self.pace), disk=disk)
        self.systems = [self._words(int(self.dice.integers(4, self.longest // 2))) for _ in range(2)]
        turns, first = self.dice.integers(1, 4, num_users), self.dice.integers(0, 5, num_users)
        self.users = [User(*pair) for pair in zip(turns.tolist(), first.tolist(), strict=True)]
        for user in self.users:
            user.tenant = [None, None, "a", "b"][self.rest_dice.integers(4)]
        self.open: list[tuple[User, Done]] = []
        self.done: list[Done] = []
        self.counts: Counter[str] = Counter()

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _one_in(self, number: int) -> bool:
        return bool(self.dice.integers(number) == 0)

    def _words(self, count: int) -> Tokens:
        return self.speak(self.dice, count)

    def _draw_config(self) -> EngineConfig:
        dice = self.dice
        block = int(dice.integers(4, self.largest_block + 1))
        sequences = int(dice.integers(MOST_BEAMS, 10))
        budget = int(dice.integers(sequences + block, max(sequences + block, 48) + 17))
        chunk = int(dice.integers(block, budget + 1)) if self._one_in(2) else None
        every = block * int(dice.integers(1, 6))
        longest = self.longest + LONGEST_ANSWER
        groups = self.model.groups(block, every)
        first = max(1, self.longest - block)
        lives = [(prompt, prompt + LONGEST_ANSWER, self.most_beams) for prompt in range(first, self.longest + 1)]
        lives += [(prompt, prompt + 1, 1) for prompt in range(self.longest, longest)]  # one that comes back
        most = [
            max(
                group.most(Lengths(prompt, prompt, end), beams, block, chunk or budget)
                for prompt, end, most_beams in lives
                for beams in range(1, most_beams + 1)
            )
            for group in groups
        ]
        least = by_pool(most, groups)
        device = tuple(pages + int(dice.integers(0, 3 if self._one_in(2) else self.most_spare)) for pages in least)
        plenty = int(dice.integers(1, 5))
        host = (0,) * len(least) if self._one_in(3) else tuple(int(dice.integers(0, plenty * n)) for n in least)
        reuse = not self._one_in(8)
        return EngineConfig(
            device_pages=device, host_pages=host if reuse else 0, block_size=block, max_num_tokens=budget,
            max_sequences=sequences, max_length=longest, max_chunk=chunk, snapshot_every=every, reuse=reuse,
            partial_reuse=not self._one_in(4), wait_for_reuse=not self._one_in(3),
        )  # fmt: skip

    def _draw_rest(self, config: EngineConfig) -> EngineConfig:
        """The order of eviction, receipts, and a disk below a host that is sound then."""
        dice = self.rest_dice
        orders: list[Eviction] = ["adaptive", "adaptive", "lru", "release_order"]
        order, receipts = orders[orders.index(dice.choice(orders))], bool(dice.integers(2))
        pages = config.host_pages
        wet = dice.integers(3) == 0 and not isinstance(pages, int) and all(pages)
        return replace(config, eviction=order, receipts=receipts, disk_pages=64 if wet else 0)

    def _draw_host(self) -> list[WornTier] | None:
        pages = self.config.host_pages
        if isinstance(pages, int) or not any(pages) or self._one_in(3):
            return None  # a plain one, or none at all
        groups = self.model.groups(self.config.block_size, self.config.snapshot_every)
        return [WornTier(pages, groups, self.seed)]

    def _draw_sampling(self) -> Sampling:
        dice = self.dice
        fields: dict[str, Any] = {"max_tokens": int(dice.integers(1, LONGEST_ANSWER + 1))}
        kind = dice.integers(10)
        if kind < 2 and self.most_beams > 1:
            fields["beams"] = int(dice.integers(2, self.most_beams + 1))
            fields["n"] = int(dice.integers(1, fields["beams"] + 1))
            fields["length_penalty"] = float(dice.choice([0.5, 1.0, 1.0, 2.0]))
        elif kind < 4:
            fields["n"] = int(dice.integers(2, 4))
        if "beams" not in fields and self._one_in(3):
            fields |= {"temperature": float(dice.choice([0.3, 0.7, 1.0])), "seed": int(dice.integers(1 << 40))}
            fields |= {"top_p": float(dice.choice([1.0, 0.9])), "top_k": int(dice.choice([0, 0, 20]))}
        if "beams" not in fields and not self.model.recurrent and not self._one_in(3):
            fields |= {"drafts": int(dice.integers(1, 6)), "ngram": int(dice.integers(1, 4))}
        if self._one_in(6):
            fields["stop_ids"] = tuple(sorted(set(self._words(12))))
        if self._one_in(6):
            fields["ignore_eos"] = True
        return Sampling(**fields, **({} if "beams" in fields else self._draw_rules(fields["max_tokens"])))

    def _draw_rules(self, max_tokens: int) -> dict[str, Any]:
        """Fields about particular tokens, for one request in six; dice of their own, so that the worlds stay."""
        dice = self.more_dice
        rules: dict[str, Any] = {
            "min_tokens": int(dice.integers(max_tokens + 1)),
            "logit_bias": {int(token): float(dice.integers(-6, 7)) for token in dice.integers(VOCAB, size=8)},
            "presence_penalty": float(dice.choice([-1.0, 0.5, 2.0])),
            "frequency_penalty": float(dice.choice([-0.5, 0.5, 2.0])),
            "repetition_penalty": float(dice.choice([0.8, 1.2, 2.0])),
            "min_p": float(dice.choice([0.05, 0.3])),
            "logprobs": int(dice.integers(4)),
            "priority": int(dice.integers(-1, 2)),
        }
        if dice.integers(6):
            return {}
        return {name: value for name, value in rules.items() if dice.integers(3) == 0}

    def _draw_prompt(self, user: User) -> Tokens:
        """A first turn, or one that has to do with earlier ones."""
        dice = self.dice
        system = self.systems[dice.integers(len(self.systems))]
        new = self._words(int(dice.integers(1, 20)))
        if self._one_in(4):
            new = self._words(int(dice.integers(2, 5))) * int(dice.integers(2, 6))  # repeats: drafts hit
        kind = dice.integers(7) if user.history else 0
        if kind == 0:
            prompt = (*system, *new)
        elif kind <= 3:
            prompt = (*user.history[-1], *new)
        elif kind == 4:
            prompt = (*user.history[dice.integers(len(user.history))], *new)
        elif kind == 5:
            prompt = user.history[dice.integers(len(user.history))]
        else:
            prompt = self._edited(user.history[-1])
        if len(prompt) > self.longest:
            prompt = (*system, *new)
        return prompt[: self.longest]

    def _edited(self, prompt: Tokens) -> Tokens:
        place = int(self.dice.integers(len(prompt)))
        return (*prompt[:place], *self._words(1), *prompt[place + 1 :])

    # -- driving -----------------------------------------------------------------------------------------------------

    def run(self) -> list[Done]:
        """Step until every user has had all turns; the requests in the order they ended."""
        step = 0
        while self.open or any(user.turns_left for user in self.users):
            for user in self.users:
                if user.turns_left and not user.open_runs and user.next_step <= step:
                    self._take_turn(user)
            report = self.engine.step()
            if report is not None and not report.num_tokens:
                self.engine.outer.rest()
            if report is not None:
                assert report.num_tokens <= self.config.max_num_tokens
                self.counts["steps"] += 1
                self.counts["mixed steps"] += report.num_admitted > 0 and report.num_branches > report.num_admitted
            self._check_tokens()
            self.counts["chunks"] += len(self.engine.scheduler.prompts)  # that need one more step
            quire.check(self.engine.cache)
            self._hear(step)
            step += 1
            assert step < MOST_STEPS, f"seed {self.seed}: stuck with {self.open}"
        self._close()
        return self.done

    def _check_tokens(self) -> None:
        """The cache knows of every branch what the branch has; the newest token may not have its place yet."""
        for branch in [branch for run in self.engine.runs.values() for branch in run.branches]:
            if branch.sequence is not None:
                known = self.engine.cache.tokens(branch.sequence)
                known = known[: len(known) - len(branch.drafts)]  # those of a step that was not read yet
                assert branch.length - len(known) in (0, 1) and np.array_equal(known, branch.tokens[: len(known)])

    def _take_turn(self, user: User) -> None:
        user.turns_left -= 1
        for _ in range(2 if self._one_in(4) else 1):
            done = Done(self._draw_prompt(user), self._draw_sampling(), self.engine)
            done.run = self.engine.submit(done.prompt, done.sampling, listener=done, tenant=user.tenant)
            if self._one_in(16):
                done.patience = int(self.dice.integers(1, 12))
            self.open.append((user, done))
            user.open_runs += 1

    def _hear(self, step: int) -> None:
        for _, done in self.open:
            done.patience -= 1
            if done.patience == 0:
                self.engine.cancel(done.run)
        for user, done in [pair for pair in self.open if pair[1].run.done]:
            self.open.remove((user, done))
            self.done.append(done)
            user.open_runs -= 1
            user.next_step = step + int(self.dice.integers(0, 6))
            answer = done.run.answers[self.dice.integers(len(done.run.answers))]
            user.history.append((*done.prompt, *answer.tokens))
            self._count(done)

    def _count(self, done: Done) -> None:
        run = done.run
        told = {nth: answer.tokens for nth, answer in enumerate(run.answers) if answer.tokens}
        assert done.ends == 1 and done.heard == told
        self._check_receipt(done)
        self.counts["requests"] += 1
        self.counts["answers"] += len(run.answers)
        self.counts["reused tokens"] += run.reused
        self.counts["computed tokens"] += run.computed
        self.counts["preemptions"] += run.num_preemptions
        for answer in run.answers:
            self.counts[f"ended by {answer.finish}"] += 1
        self.counts["beams"] += done.sampling.beams > 1
        self.counts["ruled"] += done.sampling.edits_logits
        self.counts["drafts accepted, ruled"] += done.guessed * done.sampling.edits_logits
        for answer in run.answers:
            said = [one.token for one in answer.logprobs]
            assert said == ([] if done.sampling.logprobs is None else answer.tokens)
        self.counts["sampled"] += not done.sampling.greedy
        self.counts["drafts accepted"] += done.guessed
        self.counts["drafts accepted, sampled"] += done.guessed * (not done.sampling.greedy)

    def _check_receipt(self, done: Done) -> None:
        """Each token of a prompt was reused, or has one reason why it was not. Who never got in has none."""
        receipt = done.run.receipt
        if receipt is None:
            assert not self.config.receipts or done.run.answers[0].finish == "cancelled"
            return
        ends = [receipt.reused, *(miss.stop for miss in receipt.misses)]
        assert ends[-1] == len(done.prompt) and [miss.start for miss in receipt.misses] == ends[:-1], receipt
        self.counts["receipts"] += 1
        self.counts["evicted by receipt"] += receipt.missed("evicted") > 0

    def _close(self) -> None:
        """Nobody lives, every slot is accounted for; add up what the engine and the cache have counted."""
        engine, cache, counts = self.engine, self.engine.cache, self.counts
        if engine.disk_side is not None:
            engine.disk_side.keeper.flush()
            counts["disks"] += 1
            counts["from disk"] += sum(cache.stats(group).prefetched for group in range(len(cache.config.groups)))
        if engine.shared_side is not None:  # a fetch that nobody waits for any more may still be writing
            while not engine.shared_side.shared.wait_until_idle(0.05):
                engine.step()
        counts[f"{self.config.eviction} order"] += 1
        quire.check(cache)
        assert engine.step() is None and not engine.runs and cache.num_sequences == 0, engine.runs
        for group in range(len(cache.config.groups)):
            for tier in range(len(cache.config.tiers)):
                usage = cache.usage(tier, group)
                assert usage.held == 0 and usage.empty + usage.idle + usage.shadows == usage.capacity, usage
            stats = cache.stats(group)
            for name in (
                "reused_full",
                "reused_pending",
                "reused_partial",
                "onboarded",
                "offloaded",
                "copied",
                "dropped",
            ):
                counts[name] += getattr(stats, name)
            counts["ghosts"] += cache.usage(0, group).ghosts if self.config.eviction == "adaptive" else 0
        ahead = engine.in_flight.counts
        counts["tokens ahead"] += ahead.num_ahead
        counts["waits for a token"] += ahead.num_waits
        counts["drained"] += ahead.num_drains
        counts["computed in vain"] += ahead.num_dropped
        counts["forks"] += engine.forks.num_forks
        counts["steps of fixed size"] += engine.graphs.num_replays if engine.graphs else 0
        counts["drafts rejected"] += engine.scheduler.num_drafts - engine.advance.num_accepted
        counts["waits for reuse"] += engine.scheduler.num_waits
        counts["failed moves"] += engine.pages.mover.stats().num_failed
        engine.close()
        if self.folder:
            self.folder.cleanup()
