"""PoolEngine: the workers of a pool scheduler, and what must hold. Tags stand for bytes, so that steps cost little.

Every page that anybody could find is looked at, not only what is loaded: `python -m tests.integrations.pool_runs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import Request, check
from quire.integrations.vllm.common.cache_groups import HOST
from quire.integrations.vllm.common.request_identity import media_of, scope_of
from quire.integrations.vllm.common.worker_orders import WorkerReport
from tests.integrations.pool_scheduler import Part, PoolScheduler, Run
from tests.integrations.toy_parts import SIZE, Tables, ToyRequest


class PoolEngine(PoolScheduler):
    """One engine, with all that it computes, loads and stores."""

    def expect(self, run: Run, tables: Tables, tokens: int, epoch: int) -> None:
        """What is read behind so many tokens is right on every rank."""
        for group, table in enumerate(tables):
            for block in range(self.first_read(group, tokens), tokens // SIZE):
                for rank, mover in enumerate(self.movers):
                    right = (self.text(run.request, block, epoch), group, rank)
                    if not table[block] or mover.device[table[block]] != right:
                        raise AssertionError(f"block {block} of {run.request.request_id}, group {group}, is wrong")

    # -- vLLM's workers ----------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """The oldest step that was ordered, and what is heard of it."""
        ordered, parts, zeroed = self.under_way.pop(0)
        self.clock += 1.0
        self.seen["steps"] += 1
        for worker in self.workers:
            worker.flush(ordered)
        for mover in self.movers:
            for block in zeroed:
                mover.device[block] = self.nothing()
        for worker in self.workers:
            worker.start_loads(ordered)
        heard = [(part, self._compute(part)) for part in parts]
        report: WorkerReport | None = None
        failed: set[str] = set()
        for worker in self.workers:
            worker.run_stores(ordered)
            got = worker.received()
            for name in got.ended:
                self.loading[name].request.loading -= 1
            failed |= got.failed
            told = worker.report()
            if told is not None:
                report = told if report is None else report.aggregate(told)
        for part, tokens in heard:
            self._sampled(part, tokens)
        self.side.hear(report)
        for name, run in list(self.loading.items()):
            run.request.failed = run.request.failed or name in failed
            if not run.request.loading:
                self._loaded(name, run)

    def _compute(self, part: Part) -> int:
        """KV of its tokens; returns how many tokens of what it samples are right."""
        run, request, start = part.run, part.run.request, part.run.real
        known, accepted = request.num_tokens, 0
        whole = part.num_tokens - part.drafts
        if run.is_mixed or start + whole > known or request.num_prompt_tokens > known:
            self._fill(part, start, start, start + part.num_tokens)  # what it goes on from was taken back
            return 0
        self.expect(run, part.tables, start, part.epoch) if part.epoch == self.epoch else None
        if part.samples and run in self.running and start + whole == known:
            left = request.num_prompt_tokens + request.max_tokens - known
            accepted = min(self.rng.randrange(part.drafts + 1), max(0, left - 1))
            request.all_token_ids += [self.rng.randrange(3) for _ in range(accepted + 1)]
        run.real = start + whole + accepted
        self._fill(part, start, run.real, start + part.num_tokens)
        return accepted + 1 if len(request.all_token_ids) > known else 0

    def _fill(self, part: Part, start: int, right: int, end: int) -> None:
        for block in range(start // SIZE, -(-end // SIZE)):
            for group, table in enumerate(part.tables):
                if block < len(table) and table[block]:
                    is_right = (block + 1) * SIZE <= right
                    text = self.text(part.run.request, block, part.epoch) if is_right else 0
                    for rank, mover in enumerate(self.movers):
                        mover.device[table[block]] = (text, group, rank) if is_right else self.nothing()

    def _sampled(self, part: Part, tokens: int) -> None:
        run, request = part.run, part.run.request
        if run not in self.running:
            late = request.status == "waiting" and part.samples and not request.failed and tokens == 0
            last = request.num_prompt_tokens + request.max_tokens - 1
            if late and run.real == request.num_tokens < last:
                request.all_token_ids.append(self.rng.randrange(3))  # told while it waits again
                self.seen["late tokens"] += 1
            return
        if part.samples:
            run.placeholders -= 1 + part.drafts
            request.num_computed_tokens -= 1 + part.drafts - tokens if tokens else 0
            if run.is_mixed and not tokens:
                request.all_token_ids.append(self.rng.randrange(3))
                request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
                run.placeholders = 0
        if request.num_tokens >= request.num_prompt_tokens + request.max_tokens:
            request.status = "over"
            self.running.remove(run)
            self.side.finish(request)
            self._release(run)
            self.seen["done"] += 1

    def _loaded(self, name: str, run: Run) -> None:
        del self.loading[name]
        if run.request.status == "over":
            self._release(run)
        elif run.request.failed:
            self.seen["failed loads"] += 1
            self._release(run)
            run.request.num_computed_tokens, run.request.status = 0, "waiting"
            run.request.failed = False
            self.waiting.insert(0, run.request)
        else:
            self.expect(run, run.tables, run.request.num_computed_tokens, self.epoch)
            self._name(run, run.request.num_computed_tokens)
            run.named.clear()
            self.seen["loaded tokens"] += run.request.num_computed_tokens
            self.seen["whole prompts"] += run.request.num_computed_tokens == run.request.num_tokens
            run.request.num_computed_tokens = run.real = min(run.real, run.request.num_tokens - 1)  # as vLLM does
            run.request.status = "waiting"
            self.loaded[name] = run
            self.waiting.insert(0, run.request)

    # -- all of it ---------------------------------------------------------------------------------------------------

    def run(self, requests: list[ToyRequest], *, abort: float = 0.0, reset: float = 0.0, looks: float = 0.02) -> None:
        """Until all are over, with what is to be found looked at now and then."""
        todo = list(requests)
        for _ in range(600 * len(requests)):
            while todo and self.rng.random() < 0.4:
                self.add(todo.pop(0))
            if self.rng.random() < abort and self.texts:
                self.abort(self.rng.choice(self.texts))
            if self.rng.random() < reset:
                self.reset(self.rng.random() < 0.5)
            self.schedule()
            if self.rng.random() < abort and self.texts:
                self.abort(self.rng.choice(self.texts))
            while len(self.under_way) > self.ahead:
                self.execute()
            if self.rng.random() < looks:
                check(self.cache)
                self.pages_are_right(self.rng.sample(self.texts, min(4, len(self.texts))))
            if not (todo or self.waiting or self.running or self.loading):
                break
        else:
            raise AssertionError("requests are still open: a livelock")
        self._end()

    def _end(self) -> None:
        while self.under_way:
            self.execute()
        for _ in range(10_000):
            if not self.side.is_pending:
                break
            self.schedule()
            self.execute()
        self.seen["pages"] += self.pages_are_right(self.texts)
        check(self.cache)
        side = self.side
        assert side.num_open == 0 and not side.is_pending and not side.is_storing and not side.is_coming
        assert not (side._tokens or side._failures or side._receipts or side._asked or side._stays or len(side.jobs))
        assert not self.cache.open_finds() and not self.cache.open_writers() and not self.cache.open_plans()
        assert self.cache.usage(HOST).held == 0
        assert len(self.pool.free) == len(self.pool.holders) - 1

    def all_is_found(self) -> None:
        """Where there was room and nothing failed: what was computed is there, but for the last step's."""
        for request in self.texts:
            if request.num_tokens < request.num_prompt_tokens + request.max_tokens:
                continue
            scope, tokens = scope_of(request, self.side.weights.number), np.array(request.all_token_ids, np.int32)
            media, late = (
                media_of(request, request.num_prompt_tokens),
                1 + 7 * (self.ahead + 1) * self.drafts + self.ahead,
            )
            with self.cache.find(Request("look", tokens, scope, media=media)) as found:
                assert found.end >= (request.num_tokens - late) // SIZE * SIZE, f"{request.request_id} to {found.end}"

    def pages_are_right(self, texts: list[ToyRequest]) -> int:
        """Every page that a text or a beginning of it finds has its right tag on every rank."""
        looked = 0
        for request in texts:
            if not request.num_tokens:
                continue
            scope, tokens = scope_of(request, self.side.weights.number), np.array(request.all_token_ids, np.int32)
            for end in {len(tokens), *range(SIZE, len(tokens), SIZE)}:
                media = media_of(request, min(end, request.num_prompt_tokens))
                with self.cache.find(Request("look", tokens[:end].copy(), scope, media=media)) as found:
                    looked += sum(self._pages_right(request, found, group) for group in range(len(self.windows)))
        return looked

    def _pages_right(self, request: ToyRequest, found: Any, group: int) -> int:
        pairs = list(zip(found.blocks(group).tolist(), found.slots(group).tolist(), strict=True))
        for block, slot in pairs:
            for rank, mover in enumerate(self.movers):
                right = (self.text(request, block, self.epoch), group, rank)
                assert mover.host[slot] == right, f"page {slot} of group {group} is wrong: block {block}"
        return len(pairs)
