"""The policy under vLLM's real CPUOffloadingManager: random lives with an oracle. In `make vllm-env`'s environment.

    PYTHONPATH=. .vllm-env/bin/python -m tests.integrations.plugs.policy_lives --operations 100000

The manager's calls reach two policies, the compiled order's and the reference store's, and the core's order told of the
same events without a policy (`plain_order`): all three must answer alike. The oracle knows which blocks may go: none
that is read, written or protected, and never more are there than it has. Most lives begin with an order by chance, so
that every class counts; each fifth is long, and learns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from quire.integrations.vllm.plugs.key_policy import Asked
from tests.integrations.plugs.plain_order import PlainOrder, shuffle

BLOCK = 16


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Both:
    """Two policies as one; what the manager is told of its chunks is checked on the way."""

    def __init__(self, size: int, kind: type[Any], clock: Time) -> None:
        self.size, self.compiled, self.twin = size, kind(size, clock, "compiled"), kind(size, clock, "twin")
        self.plain = PlainOrder(size, kind.eviction, clock)
        self.there: dict[bytes, Any] = {}
        self.calls = self.evicted = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.calls += 1
            told = given[-1]._state if name in ("on_store_miss", "on_request_finished") else None
            state = None if told is None else {of: copy(it) if of is Asked else it for of, it in told.items()}
            answer = getattr(self.compiled, name)(*given)
            if state is not None:
                after, given[-1]._state = given[-1]._state, state
            other = getattr(self.twin, name)(*given)
            if state is not None:
                assert repr(after) == repr(given[-1]._state)
            assert answer == other or (answer is other), (name, answer, other)
            self.tell_plain(name, given)
            return answer

        return call

    def tell_plain(self, name: str, given: tuple[Any, ...]) -> None:
        if name == "mark_evictable":
            self.plain.let_go(*given)
        elif name == "mark_non_evictable":
            self.plain.hold(*given)
        elif name == "on_store_miss":
            self.plain.miss(list(given[0]), given[1])
        elif name == "on_request_finished":
            self.plain.finish(given[0], given[2], given[3])
        else:
            assert name == "on_request_access", name

    def insert(self, key: bytes, chunk: Any, *context: Any) -> None:
        self.plain.come(key)
        assert key not in self.there and len(self.there) < self.size, "more blocks than there are"
        assert chunk.chunk_id not in {other.chunk_id for other in self.there.values()}, "two blocks in one place"
        self.there[key] = chunk
        self.compiled.insert(key, chunk, *context)
        self.twin.insert(key, chunk, *context)

    def get(self, key: bytes) -> Any:
        assert self.compiled.get(key) is self.twin.get(key) is self.there.get(key)
        return self.there.get(key)

    def remove(self, key: bytes) -> None:
        del self.there[key]
        self.plain.go(key)
        self.compiled.remove(key)
        self.twin.remove(key)

    def clear(self) -> None:
        self.there.clear()
        self.plain.clear()
        self.compiled.clear()
        self.twin.clear()

    def evict(self, n: int, protected: set[bytes]) -> Any:
        free = {key for key, chunk in self.there.items() if chunk.ref_cnt == 0} - protected
        gone, other = self.compiled.evict(n, protected), self.twin.evict(n, protected)
        assert gone == other, "the stores disagree"
        expected = self.plain.take(n, protected)
        assert expected == (None if gone is None else [key for key, _ in gone]), "the core's order says otherwise"
        assert (gone is None) == (n > len(free)), "room that is not there, or is there"
        for key, chunk in gone or ():
            assert key in free and self.there.pop(key) is chunk, "a block that may not go"
        assert gone is None or len(gone) == n
        self.evicted += len(gone or ())
        return gone


class Life:
    """Requests that share text, in any state at once."""

    def __init__(self, seed: int, size: int, kind: type[Any]) -> None:
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self.dice, self.clock = np.random.default_rng(seed), Time()
        self.manager = CPUOffloadingManager(size, "lru")
        self.policy = self.manager._policy = Both(size, kind, self.clock)
        if kind.eviction == "adaptive" and seed % 5:
            shuffle(self.dice, self.policy.compiled._order, self.policy.twin._order, self.policy.plain.ranking.order)
        self.live: list[dict[str, Any]] = []
        self.number = 0

    def step(self) -> None:
        self.clock.now += float(self.dice.choice([0, 1e-4, 0.1, 3, 200]))
        if len(self.live) < 6 and self.dice.random() < 0.4:
            self.begin()
        elif self.live:
            request = self.live[self.dice.integers(len(self.live))]
            acts = [self.load, self.loaded, self.store, self.stored, self.store, self.stored, self.finish]
            acts[self.dice.integers(len(acts))](request)
        if self.dice.random() < 0.0005:
            self.manager.reset_cache()
            self.live.clear()

    def begin(self) -> None:
        from vllm.v1.kv_offload.base import ReqContext, make_offload_key

        groups = int(self.dice.choice([1, 1, 2]))
        text, own = int(self.dice.zipf(1.6)) % 50, int(self.dice.integers(400))
        head, tail = int(self.dice.integers(0, 9)), int(self.dice.integers(0, 7))
        words: Any = [None, None, {"quire": {"back": self.dice.choice(["soon", "later", "never"])}}]
        words += [{"quire": {"priority": int(self.dice.integers(101)), "seconds": 5, "new": 1}}]
        context = ReqContext(str(self.number), words[self.dice.integers(len(words))])
        self.number += 1
        names = [f"{text}.{nth}" for nth in range(head)] + [f"{text}.{own}.{head + nth}" for nth in range(tail)]
        keys = [[make_offload_key(name.encode().ljust(32), group) for name in names] for group in range(groups)]
        for group in keys:
            for nth, key in enumerate(group):
                context.set_offload_key_position(key, (nth + 1) * BLOCK)
        self.manager.on_new_request(context)
        self.live.append({"context": context, "keys": keys, "done": 0, "loads": [], "stores": []})

    def load(self, request: dict[str, Any]) -> None:
        from vllm.v1.kv_offload.base import LookupResult

        hits = []
        for key in [key for group in request["keys"] for key in group]:
            if self.manager.lookup(key, request["context"]) is not LookupResult.HIT:
                break
            hits.append(key)
        if hits:
            self.manager.prepare_load(hits, request["context"])
            request["loads"].append(hits)

    def loaded(self, request: dict[str, Any]) -> None:
        if request["loads"]:
            self.manager.complete_load(request["loads"].pop(), request["context"])

    def store(self, request: dict[str, Any]) -> None:
        keys = [key for column in zip(*request["keys"], strict=True) for key in column]
        some = keys[request["done"] : request["done"] + int(self.dice.integers(1, 6))]
        request["done"] += len(some)
        made = self.manager.prepare_store(some, request["context"]) if some else None
        if made is not None and made.keys_to_store:
            request["stores"].append(made.keys_to_store)

    def stored(self, request: dict[str, Any]) -> None:
        if request["stores"]:
            keys, good = request["stores"].pop(0), bool(self.dice.random() < 0.9)
            self.manager.complete_store(keys, request["context"], good)

    def finish(self, request: dict[str, Any]) -> None:
        if self.dice.random() < 0.5:
            self.manager.on_request_finished(request["context"])
            while request["loads"]:
                self.loaded(request)
            while request["stores"]:
                self.stored(request)
            self.live.remove(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    args = parser.parse_args()
    from quire.integrations.vllm.policy import QuireLruPolicy, QuirePolicy

    calls = evicted = seed = 0
    while calls < args.operations:
        kind = QuireLruPolicy if seed % 4 == 3 else QuirePolicy
        life = Life(seed, int(np.random.default_rng(seed).choice([3, 20, 60, 300])), kind)
        for _ in range(2000 if seed % 5 else 15_000):
            life.step()
        calls, evicted, seed = calls + life.policy.calls, evicted + life.policy.evicted, seed + 1
    assert evicted > args.operations // 100
    print(f"{calls} calls in {seed} lives, {evicted} blocks evicted: all orders agree, nothing in use went")


if __name__ == "__main__":
    main()
