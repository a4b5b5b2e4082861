"""What the hooks of the vLLM connector cost vLLM's scheduler, per request and step, with prompts of 8,192 tokens.

    python benchmarks/vllm_hooks.py [--tokens 8192] [--block 32] [--groups 3] [--rounds 200] [--runs 3] [--eviction lru]

Needs no vLLM: the hooks are called as its scheduler calls them, with requests that have the same fields (token ids as a
list of ints, as vLLM keeps them). Medians in microseconds, of one run or the least of several, and the least of all
that were measured; copies of bytes are not in it, those are the workers'. Its tokens are converted once, when a request
comes; vLLM looks it up up to four times per admission. The thread's own time comes from runs of their own: to ask for
it makes each hook 1 to 3 longer.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from quire import Cache
from quire.integrations.vllm.common.cache_groups import cache_config
from quire.integrations.vllm.common.connector_options import ConnectorOptions
from quire.integrations.vllm.common.worker_orders import StepOrders, WorkerReport
from quire.integrations.vllm.scheduler_side import SchedulerSide

WINDOW = 1024  # tokens
NO_REQUEST = SimpleNamespace(request_id="")  # of whom nothing is computed


class FullAttentionSpec(SimpleNamespace):
    """Known by its name, as vLLM's is."""


class SlidingWindowSpec(SimpleNamespace):
    """The same."""


class Rig:
    """A scheduler's side with one long prompt in host memory."""

    def __init__(self, args: argparse.Namespace, clock: Callable[[], int]) -> None:
        tokens, block, groups = args.tokens, args.block, args.groups
        self.tokens, self.block, self.groups, self.number, self.clock = tokens, block, groups, 0, clock
        specs: list[Any] = [FullAttentionSpec(block_size=block, page_size_bytes=1)]
        specs += [SlidingWindowSpec(block_size=block, page_size_bytes=1, sliding_window=WINDOW)] * (groups - 1)
        made = [SimpleNamespace(kv_cache_spec=spec, layer_names=["layer"]) for spec in specs]
        model = SimpleNamespace(kv_cache_groups=made, kv_cache_tensors=[SimpleNamespace(size=4096)], num_blocks=1)
        options = ConnectorOptions(host=groups * 4096 * 8 * (tokens // block), eviction=args.eviction)
        config = cache_config(model, options, world_size=1, max_length=2 * tokens, events=False)
        self.cache = Cache(config)
        self.side = SchedulerSide(self.cache, options, world_size=1)
        self.spent: dict[str, list[float]] = {}
        self.steps: list[float] = []  # all hooks of a step
        self.step = 0.0
        self.last = StepOrders()

    def blocks(self, tokens: int) -> list[list[int]]:
        """A table of vLLM's: all groups have their blocks from one pool."""
        count = tokens // self.block
        return [list(range(1 + group * count, 1 + (group + 1) * count)) for group in range(self.groups)]

    def request(self, prompt: list[int]) -> Any:
        self.number += 1
        return SimpleNamespace(
            request_id=f"r{self.number}", all_token_ids=list(prompt), num_tokens=len(prompt), num_computed_tokens=0,
            prompt_token_ids=list(prompt),
            num_prompt_tokens=len(prompt), prompt_embeds=None, cache_salt=None, lora_request=None, mm_features=(),
            kv_transfer_params=None, block_hashes=(), resumable=False, skip_reading_prefix_cache=False,
        )  # fmt: skip

    def timed(self, row: str, act: Callable[[], Any]) -> Any:
        begin = self.clock()
        result = act()
        spent = (self.clock() - begin) / 1e3
        self.spent.setdefault(row, []).append(spent)
        self.step += spent
        return result

    def step_ends(self) -> None:
        """All hooks since the last one were of one step."""
        self.steps.append(self.step)
        self.step = 0.0

    def order(
        self, request: Any, count: int, table: list[list[int]], fresh: Iterable[int] = (), gone: Iterable[str] = ()
    ) -> None:
        self.last = self.side.order({request.request_id: count}, gone, lambda _: table, fresh)

    def hear(self) -> None:
        jobs = [copy.job for copy in (*self.last.loads, *self.last.early, *self.last.stores)]
        self.side.hear(WorkerReport(dict.fromkeys(jobs, 1)) if jobs else None)

    def one_life(self, prompt: list[int], new: list[int]) -> None:
        """A request whose prompt is there: it loads, computes the rest, decodes one block and ends."""
        request, side = self.request([*prompt, *new]), self.side
        table = self.blocks(2 * self.tokens)
        passed = max(0, (len(prompt) - WINDOW) // self.block)
        for windowed in table[1:]:  # vLLM has no blocks where a window has passed
            windowed[:passed] = [0] * passed
        self.timed("a request comes: its tokens", lambda: side.arrive(request))
        gain = self.timed("first look", lambda: side.look(request, 0))
        assert gain == len(prompt)
        for _ in range(3):
            self.timed("look again", lambda: side.look(request, 0))
        self.timed("place: order the load", lambda: side.place(request, table, gain))
        self.timed("a step that only loads", lambda: self.order(NO_REQUEST, 0, table))
        assert self.last.loads
        self.timed("hear of the load", self.hear)
        self.step_ends()
        request.num_computed_tokens = gain
        self.timed("place: it is loaded, opens its writer", lambda: side.place(request, table, 0))
        self.timed("first step: takes slots", lambda: self.order(request, len(new), table))
        self.timed("hear of a store", self.hear)
        self.step_ends()
        request.num_computed_tokens = request.num_tokens
        for nth in range(2 * self.block):
            request.all_token_ids.append(nth)
            request.num_tokens += 1
            whole = request.num_tokens % self.block == 0
            row = "decode step that fills a block" if whole else "decode step"
            self.timed(row, lambda: self.order(request, 1, table))
            self.timed("hear of a store" if whole else "hear of nothing", self.hear)
            self.timed("metrics of a step", side.counts.take)
            request.num_computed_tokens += 1
            self.step_ends()
        self.timed("finish", lambda: side.finish(request))

    def one_cold_life(self, prompt: list[int]) -> None:
        """A request that nobody has asked before: all of it is computed in one step, and stored with that and others.

        vLLM takes back what windows have passed, with the next step.
        """
        request, side = self.request(prompt), self.side
        table = self.blocks(self.tokens)
        side.arrive(request)
        self.timed("new prompt: look", lambda: side.look(request, 0))
        self.timed("new prompt: place, opens its writer", lambda: side.place(request, table, 0))
        self.timed("new prompt: the step that computes it", lambda: self.order(request, len(prompt), table))
        request.num_computed_tokens = len(prompt)
        stored = self.hear_of_a_part()
        table = [list(blocks) for blocks in table]
        for windowed in table[1:]:
            windowed[: (len(prompt) - WINDOW) // self.block] = [0] * ((len(prompt) - WINDOW) // self.block)
        row = "new prompt: the next step stores a part"
        fresh = [self.tokens + group for group in range(self.groups)]  # a block of each for what is generated
        self.timed(row, lambda: self.order(request, 1, table, fresh))
        stored += self.hear_of_a_part()
        while side.stores.num_carried:
            self.timed("new prompt: each step that stores the rest", lambda: self.order(request, 1, table))
            stored += self.hear_of_a_part()
        assert stored == self.groups * (len(prompt) // self.block)
        side.finish(request)

    def one_short_life(self, prompt: list[int], how: str) -> None:
        """The same, but it ends with that step, or is preempted; and vLLM hands out none, one or all of its blocks."""
        request, side = self.request(prompt), self.side
        table = self.blocks(self.tokens)
        side.arrive(request)
        side.look(request, 0)
        side.place(request, table, 0)
        self.order(request, len(prompt), table)
        self.hear()
        if how == "preempted":
            row, gone = "new prompt, preempted: a step that stores all that is left", (request.request_id,)
            self.timed(row, lambda: self.order(NO_REQUEST, 0, table, gone=gone))
            self.timed("new prompt, preempted: hear of all that was left", self.hear)
            side.finish(request)
            return
        self.timed("new prompt: finish with the step that computed it", lambda: side.finish(request))
        if how == "one":
            row = "new prompt, over, its last block somebody's again: a step that stores it"
            self.timed(row, lambda: self.order(NO_REQUEST, 0, table, [table[0][-1]]))
            self.timed("new prompt, over: hear of that", self.hear)
        elif how == "all":
            row = "new prompt, over, all its blocks somebody's again at once: a step that stores them"
            all_of_them = [block for blocks in table for block in blocks]
            self.timed(row, lambda: self.order(NO_REQUEST, 0, table, all_of_them))
            self.timed("new prompt, over: hear of all that was left", self.hear)
        while side.stores.num_carried:
            over = "new prompt, over" if how == "none" else f"new prompt, over, {how} of its blocks stored before"
            self.timed(f"{over}: each step that stores the rest", lambda: self.order(NO_REQUEST, 0, table, [0]))
            self.timed(f"{over}: hear of a part of it", self.hear)

    def hear_of_a_part(self) -> int:
        """How many pages it stored."""
        self.timed("new prompt: hear of a part of it", self.hear)
        return sum(len(part.blocks) for copy in (*self.last.early, *self.last.stores) for part in copy.parts)


def run(args: argparse.Namespace, clock: Callable[[], int]) -> dict[str, list[float]]:
    """One run: microseconds of each hook."""
    rig = Rig(args, clock)
    prompt = [nth * 7919 % 50_000 for nth in range(args.tokens)]
    first = rig.request([*prompt, 1])
    rig.side.look(first, 0)
    table = rig.blocks(2 * args.tokens)
    rig.side.place(first, table, 0)
    rig.order(first, args.tokens + 1, table)
    rig.hear()
    while rig.side.stores.num_carried:
        rig.order(first, 1, table)
        rig.hear()
    rig.side.finish(first)
    gc.disable()
    for nth in range(args.rounds):
        rig.one_life(prompt, [50_000 + nth] * (args.block + 5))
    for nth in range(args.rounds // 4):
        rig.one_cold_life([(nth + 2) * 60_000 + one for one in prompt])
    for kind, how in enumerate(("none", "one", "all", "preempted")):
        for nth in range(args.rounds // 4):
            rig.one_short_life([(nth + 2) * 60_000 + 7 + kind + one for one in prompt], how)
    gc.enable()
    return rig.spent | {"**all hooks of one step**": rig.steps}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("tokens", 8192), ("block", 32), ("groups", 1), ("rounds", 200), ("runs", 1)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--eviction", default="auto", help="the order of eviction (default %(default)s)")
    args = parser.parse_args()
    runs = [run(args, time.perf_counter_ns) for _ in range(args.runs)]
    own = [run(args, time.thread_time_ns) for _ in range(args.runs)]
    print(f"{args.tokens} tokens, blocks of {args.block}, {args.groups} groups, {args.rounds} requests; microseconds")
    print(f"| hook | median, least of {args.runs} runs | its 10th percentile | 90th | least | the thread's own time |")
    print("|---|---|---|---|---|---|")
    for row in runs[0]:
        best = min((spent[row] for spent in runs), key=statistics.median)
        tenths = statistics.quantiles(best, n=10) if len(best) > 1 else best
        least, worked = min(min(spent[row]) for spent in runs), min(statistics.median(spent[row]) for spent in own)
        median = statistics.median(best)
        print(f"| {row} | {median:.1f} | {tenths[0]:.1f} | {tenths[-1]:.1f} | {least:.1f} | {worked:.1f} |")


if __name__ == "__main__":
    main()
