"""Faults that others have reported, under vLLM's own scheduler on the CPU. A process, with one engine for its cases.

    PYTHONPATH=. .vllm-env/bin/python -m tests.museum.under_vllm --engine host      (disk, redis, states; --v2)

Every prompt is computed once with nothing to find: that answer is the right one, tokens and logprobs. What the device
has is then forgotten, so that the next answer rests on pages of the connector. tests/museum has the same cases with a
toy scheduler; the numbers are those of vLLM's issues.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from quire import InputError
from quire.integrations.vllm.common.worker_orders import Copy
from tests.integrations.vllm_engine import BLOCK, Redis, engine, interpret_kernels, options, settle

CLOSE = 1e-3  # of a logprob
MOST_STEPS = 3000
LATE = 12  # stores that are under way at most
Answer = tuple[list[int], list[float], int]  # tokens, logprobs, cached tokens of the prompt


class Tap:
    """In front of the real pages: loads that fail or do not end, stores that read their blocks some steps later."""

    def __init__(self, pages: Any) -> None:
        self.pages = pages
        self.fail_loads = 0
        self.is_holding = self.is_late = False
        self.held: list[Copy] = []
        self.stores: list[Copy] = []
        self.flushed = self.loads = 0

    def load(self, copy: Copy) -> None:
        self.loads += 1
        if self.fail_loads:
            self.fail_loads -= 1
            raise OSError("this load was made to fail")
        self.held.append(copy)

    def store(self, copy: Copy) -> None:
        (self.stores.append if self.is_late else self.pages.store)(copy)

    def flush(self, jobs: Iterable[int]) -> None:
        wanted = set(jobs)
        for copy in [copy for copy in self.stores if copy.job in wanted]:
            self.stores.remove(copy)
            self.pages.store(copy)
            self.flushed += 1

    def take_ended(self) -> list[Any]:
        if not self.is_holding:
            for copy in self.held:
                self.pages.load(copy)
            self.held = []
        ended: list[Any] = self.pages.take_ended()
        for copy in self.stores[: max(0, len(self.stores) - LATE) if self.is_late else None]:
            self.stores.remove(copy)
            self.pages.store(copy)
        return ended


class Rig:
    """One engine with the connector, and what it has answered."""

    def __init__(self, args: argparse.Namespace) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.llm = engine(args, True)
        self.core = self.llm.llm_engine
        self.scheduler = self.core.engine_core.engine_core.scheduler
        self.connector = get_kv_transfer_group()
        self.side = self.scheduler.connector.scheduler_side
        self.tap = Tap(self.connector.worker_side.mover)
        self.connector.worker_side.mover = self.tap
        self.rng, self.num_asked = random.Random(args.seed), 0
        self.pool = self.scheduler.kv_cache_manager.block_pool

    def text(self, blocks: int) -> list[int]:
        """A prompt that nobody has asked yet, a little longer than so many blocks."""
        return [self.rng.randrange(3, 500) for _ in range(blocks * BLOCK + 5)]

    def ask(self, prompt: list[int], count: int = 6, **more: Any) -> str:
        from vllm import SamplingParams

        self.num_asked += 1
        name = f"r{self.num_asked}"
        asked = SamplingParams(max_tokens=count, temperature=0, detokenize=False, ignore_eos=True, logprobs=0)
        self.core.add_request(name, {"prompt_token_ids": prompt} | more, asked)
        return name

    def step(self, answers: dict[str, Answer]) -> None:
        for out in self.core.step():
            if out.finished and out.outputs[0].finish_reason == "length":
                one = out.outputs[0]
                logprobs = [next(iter(step.values())).logprob for step in one.logprobs]
                answers[out.request_id] = list(one.token_ids), logprobs, out.num_cached_tokens

    def run(self) -> dict[str, Answer]:
        """Until nothing is open; raises when that takes for ever."""
        answers: dict[str, Answer] = {}
        for _ in range(MOST_STEPS):
            if not self.core.has_unfinished_requests():
                return answers
            self.step(answers)
        raise AssertionError(f"requests are open after {MOST_STEPS} steps: {self.scheduler.requests.keys()}")

    def answer(self, prompt: list[int], count: int = 6, **more: Any) -> Answer:
        name = self.ask(prompt, count, **more)
        return self.run()[name]

    def known(self, blocks: Iterable[int], count: int = 6) -> list[tuple[list[int], Answer]]:
        """Prompts with their right answers, which host memory has and the device has not."""
        made = [(text, self.answer(text, count)) for text in map(self.text, blocks)]
        assert all(right[2] == 0 for _, right in made), "the first answer was not computed"
        self.forget()
        return made

    def forget(self) -> None:
        """Of the device; what is being stored gets there first."""
        for _ in range(4):
            self.core.step()
        assert self.llm.reset_prefix_cache(), "vLLM could not reset its own cache"

    def count(self, name: str) -> float:
        self.side.counts.take()
        return float(self.side.counts.total.get(name, 0))

    def nothing_is_held(self) -> None:
        """By us, or in vLLM's pool of blocks."""
        settle(self.llm, None)
        assert self.pool.get_num_free_blocks() == self.pool.num_gpu_blocks - 1, "vLLM's blocks are not free"


def same(right: Answer, found: Answer) -> None:
    assert right[0] == found[0], f"other tokens: {right[0]} {found[0]}"
    gap = max(abs(a - b) for a, b in zip(right[1], found[1], strict=True))
    assert gap < CLOSE, f"logprobs differ by {gap}"


# -- host memory -------------------------------------------------------------------------------------------------------


def vllm_39702_a_hit_that_others_would_evict(rig: Rig) -> None:
    """Host memory is full, and requests beside the one that loads store more in the same steps."""
    before = rig.count("refused_loads"), rig.count("failed_loads")
    for _ in range(4):
        ((text, right), *_) = rig.known([6])
        others = [rig.ask(rig.text(5), 2) for _ in range(3)]
        name = rig.ask(text)
        answers = rig.run()
        same(right, answers[name])
        assert answers[name][2] == 6 * BLOCK and len(answers) == len(others) + 1
    assert (rig.count("refused_loads"), rig.count("failed_loads")) == before


def vllm_54914_a_full_host_for_long(rig: Rig) -> None:
    """Far more is stored than there is room for."""
    known = rig.known([2, 3, 4])
    for _ in range(12):
        for _ in range(4):
            rig.ask(rig.text(rig.rng.randrange(1, 8)), 2)
        text, right = rig.rng.choice(known)
        name = rig.ask(text)
        same(right, rig.run()[name])
    assert rig.count("evicted_pages") > 100


def vllm_57841_finished_loads_behind_a_request_that_lacks_their_blocks(rig: Rig) -> None:
    """Loads take most blocks of the device, and larger requests are in front of them."""
    known = rig.known([8, 8, 8])
    first = [rig.ask(rig.text(14), 40) for _ in range(2)]
    names = [rig.ask(text) for text, _ in known]
    last = rig.ask(rig.text(16), 4)
    answers = rig.run()
    assert set(answers) == {*first, *names, last}
    for name, (_, right) in zip(names, known, strict=True):
        same(right, answers[name])


def vllm_49250_a_load_that_fails_is_computed(rig: Rig) -> None:
    """One, two, and more than a request is offered; beside requests that run, and several in one step."""
    assert rig.scheduler.recompute_kv_load_failures
    for failing in (1, 2, 5):
        known, failed = rig.known([3, 5, 4]), rig.count("failed_loads")
        running = rig.ask(rig.text(2), 30)
        for _ in range(3):
            rig.core.step()
        rig.tap.fail_loads = failing
        names = [rig.ask(text, 6) for text, _ in known]
        answers = rig.run()
        assert running in answers and rig.count("failed_loads") > failed
        rig.tap.fail_loads = 0
        for name, (_, right) in zip(names, known, strict=True):
            same(right, answers[name])
        rig.forget()
        for text, right in known:  # and what was computed then was stored right
            same(right, rig.answer(text))


def vllm_52470_blocks_handed_out_while_their_store_still_reads_them(rig: Rig) -> None:
    """Stores come late, the device is full, requests are preempted."""
    rig.tap.is_late, before = True, rig.tap.flushed
    texts = [rig.text(6) for _ in range(6)]
    names = [rig.ask(text, 60) for text in texts]
    rights = rig.run()
    rig.tap.is_late = False
    assert rig.tap.flushed > before, "no store was hurried"
    rig.forget()
    loads = rig.tap.loads
    for text, name in zip(texts, names, strict=True):
        tokens, logprobs, _ = rights[name]
        same((tokens[:6], logprobs[:6], 0), rig.answer(text))
    assert rig.tap.loads > loads


def vllm_49176_a_page_that_went_bad_is_offered_once(rig: Rig) -> None:
    """Every page in host memory has changed: the load fails, and is not tried again and again."""
    ((text, right),) = rig.known([5])
    loads = rig.tap.loads
    rig.tap.pages.memory[:, 0] ^= 1
    found = rig.answer(text)
    same(right, found)
    assert found[2] == 0 and rig.tap.loads == loads + 1
    rig.tap.pages.memory[:, 0] ^= 1


def vllm_53042_no_more_memory_than_was_asked_for(rig: Rig) -> None:
    """All of host memory is touched: the process grows by that and no more."""
    host, memory = rig.side.options.host, rig.tap.pages.memory
    assert memory.numel() <= host
    before = resident()
    memory.fill_(0)
    assert resident() - before <= 1.05 * host + (4 << 20)
    rig.side.reset()


def vllm_56640_a_hit_that_is_all_on_the_device(rig: Rig) -> None:
    """Nothing is to be loaded, and nothing is waited for."""
    text = rig.text(4)
    right, loads = rig.answer(text), rig.tap.loads
    found = rig.answer(text)
    same(right, found)
    assert found[2] == 4 * BLOCK and rig.tap.loads == loads
    exact = text[: 4 * BLOCK]  # the whole prompt is there; its last token is computed all the same
    same(rig.answer(exact), rig.answer(exact))


def vllm_46283_an_abort_while_nothing_arrives(rig: Rig) -> None:
    """Its blocks are kept while bytes may come, and are free when the load has ended."""
    ((text, right),) = rig.known([6])
    rig.tap.is_holding = True
    name = rig.ask(text)
    for _ in range(4):
        rig.core.step()
    assert rig.tap.held, "no load was begun"
    rig.core.abort_request([name])
    running = rig.ask(rig.text(3), 4)
    answers: dict[str, Answer] = {}
    for _ in range(12):
        rig.step(answers)
    assert running in answers, "others stood still"
    rig.tap.is_holding = False
    rig.run()
    rig.nothing_is_held()
    same(right, rig.answer(text))


def vllm_44701_salts_are_apart(rig: Rig) -> None:
    """Each scope finds its own pages and nobody else's."""
    text = rig.text(4)
    salts: list[dict[str, Any]] = [{}, {"cache_salt": "acme"}, {"cache_salt": "other"}]
    for salt in salts:
        assert rig.answer(text, **salt)[2] == 0
    rig.forget()
    for salt in reversed(salts):
        assert rig.answer(text, **salt)[2] == 4 * BLOCK
    assert rig.answer(text, cache_salt="none")[2] == 0


def vllm_42695_new_weights(rig: Rig) -> None:
    """One reset covers the connector too; a lookup that was made before it finds nothing after it."""
    ((text, right),) = rig.known([4])
    assert rig.llm.reset_prefix_cache(reset_connector=True)
    found = rig.answer(text)
    same(right, found)
    assert found[2] == 0


def lmcache_4463_another_layout(rig: Rig) -> None:
    """vLLM's own tensors are taken; the same bytes in another form are refused, and so is another version."""
    import vllm

    from quire.integrations.vllm import connector

    group = rig.connector._groups[0]
    layers = rig.core.engine_core.engine_core.vllm_config.compilation_config.static_forward_context
    kv = {name: layers[name].kv_cache for name in group.layer_names}
    rig.connector.open_mover(kv)
    turns: tuple[Callable[[Any], Any], ...] = (
        lambda one: one.transpose(1, 2), lambda one: one.transpose(0, 1), lambda one: one[:, :1],
    )  # fmt: skip
    for turn in turns:
        refused(partial(rig.connector.open_mover, {name: turn(one) for name, one in kv.items()}))
    before, config = vllm.__version__, rig.connector._vllm_config
    try:
        vllm.__version__ = "0.99.0"
        refused(lambda: connector.QuireConnector(config, rig.connector.role, rig.connector._kv_cache_config))
    finally:
        vllm.__version__ = before


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except InputError:
        return
    raise AssertionError("it was not refused")


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# -- below it ----------------------------------------------------------------------------------------------------------


def vllm_57912_flipped_bits_on_disk(rig: Rig) -> None:
    """They are found when the page is read, and the rest of the prompt is computed."""
    (good, answer), *known = rig.known([3, 3, 4])
    assert rig.side.outer.keeper.flush(30.0)
    drop_host(rig)
    found = rig.answer(good)
    same(answer, found)
    assert found[2] == 3 * BLOCK, "a good page did not come back from disk"
    drop_host(rig)
    for path in Path(rig.side.options.disk).glob("*/pages-0"):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 4096):
            if any(data[at : at + 4096]):
                data[at + 9] ^= 1
        path.write_bytes(data)
    for text, right in known:
        found = rig.answer(text)
        same(right, found)
        assert found[2] == 0, "a bad page was loaded"
    assert rig.count("disk_failed") > 0


def vllm_49829_a_store_that_never_answers(rig: Rig) -> None:
    """A request waits for its pages so long and no longer, and is computed."""
    (good, answer), *known = rig.known([3, 3])
    assert rig.side.outer.shared.wait_until_idle(120)
    drop_host(rig)
    found = rig.answer(good)
    same(answer, found)
    assert found[2] == 3 * BLOCK, "nothing came from the store while it answered"
    rig.forget()
    assert Redis.running is not None
    os.kill(Redis.running.process.pid, signal.SIGSTOP)
    try:
        for text, right in known:
            found = rig.answer(text)
            same(right, found)
            assert found[2] == 0
    finally:
        os.kill(Redis.running.process.pid, signal.SIGCONT)


def drop_host(rig: Rig) -> None:
    """Other prompts take the place of what is in host memory."""
    for _ in range(-(-rig.side.cache.config.tiers[1].slots // 8) + 2):
        rig.answer(rig.text(8), 1)
    rig.forget()


# -- recurrent states --------------------------------------------------------------------------------------------------


def vllm_45238_a_second_turn_and_a_second_question(rig: Rig) -> None:
    """States are kept where vLLM ends a step: the next turn begins there, after the device has forgotten them."""
    ((text, right),) = rig.known([5], count=40)
    turn = text + right[0] + rig.text(1)
    cold = rig.answer(turn)
    assert cold[2] >= 5 * BLOCK, f"only {cold[2]} tokens were there"
    rig.forget()
    warm = rig.answer(turn)
    same(cold, warm)
    assert warm[2] >= 6 * BLOCK


def vllm_49250_a_state_that_fails_is_computed(rig: Rig) -> None:
    vllm_49250_a_load_that_fails_is_computed(rig)


ENGINES: dict[str, tuple[str, tuple[Callable[[Rig], None], ...]]] = {
    "host": (
        "--model llama --device-blocks 44 --host-blocks 60",
        (
            vllm_49250_a_load_that_fails_is_computed, vllm_39702_a_hit_that_others_would_evict,
            vllm_54914_a_full_host_for_long, vllm_57841_finished_loads_behind_a_request_that_lacks_their_blocks,
            vllm_52470_blocks_handed_out_while_their_store_still_reads_them,
            vllm_49176_a_page_that_went_bad_is_offered_once, vllm_56640_a_hit_that_is_all_on_the_device,
            vllm_46283_an_abort_while_nothing_arrives, vllm_44701_salts_are_apart, vllm_42695_new_weights,
            lmcache_4463_another_layout, vllm_53042_no_more_memory_than_was_asked_for,
        ),
    ),
    "disk": ("--model llama --device-blocks 44 --host-blocks 16 --below disk", (vllm_57912_flipped_bits_on_disk,)),
    "redis": (
        "--model llama --device-blocks 44 --host-blocks 16 --below redis --wait 1",
        (vllm_49829_a_store_that_never_answers,),
    ),
    "states": (
        "--model nemotron --device-blocks 64 --host-blocks 60",
        (vllm_45238_a_second_turn_and_a_second_question, vllm_49250_a_state_that_fails_is_computed),
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="host")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--v2", action="store_true")
    asked = parser.parse_args()
    words, cases = ENGINES[asked.engine]
    with tempfile.TemporaryDirectory() as folder:
        args = argparse.ArgumentParser(parents=[options()]).parse_args(words.split())
        args.out = str(Path(folder) / "out")
        if asked.v2:
            interpret_kernels()
        rig, failed = Rig(args), 0
        for case in cases:
            if asked.only in case.__name__:
                failed += not passes(rig, case)
        if Redis.running is not None:
            Redis.kill()
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # vLLM's threads do not end by themselves


def passes(rig: Rig, case: Callable[[Rig], None]) -> bool:
    """A case, from an empty cache to one that holds nothing."""
    import traceback

    try:
        assert rig.llm.reset_prefix_cache(reset_connector=True)
        case(rig)
        rig.nothing_is_held()
    except Exception:
        traceback.print_exc()
        print(f"FAILED {case.__name__}", flush=True)
        return False
    print(f"passed {case.__name__}", flush=True)
    return True


if __name__ == "__main__":
    main()
