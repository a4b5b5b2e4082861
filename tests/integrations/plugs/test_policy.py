"""The policy beside vLLM's interface: what each of its calls does to what goes next. Needs no vLLM."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import QuireError
from quire.core.records.errors import MissingExtra
from quire.core.store.reuse import CONTINUED, FEW, LATER, NUM_CELLS
from quire.integrations.vllm.plugs.context_wishes import Wishes, wishes_of
from quire.integrations.vllm.plugs.key_policy import KeyPolicy
from quire.integrations.vllm.plugs.versions import ANY, TESTED, check_plug_version
from tests.effort import cases
from tests.integrations.operating.vllm_base import changes, signatures
from tests.integrations.plugs.offload_base import POLICY, POLICY_FILE, READ, known_policy, policy_of
from tests.integrations.plugs.plain_order import PlainOrder, shuffle

ROOT = Path(__file__).resolve().parents[3]
SIZE = 512  # tokens of a block


class Context:
    """One request, as vLLM's ReqContext."""

    def __init__(self, params: Any = None, hints: Any = None) -> None:
        self.req_id, self.kv_transfer_params, self.kv_hints = "r", params, hints
        self.states: dict[type, Any] = {}
        self.ends: dict[bytes, int] = {}

    def set_state(self, val: Any) -> None:
        self.states[type(val)] = val

    def get_state(self, cls: type) -> Any:
        return self.states.get(cls)

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self.ends.get(key)


class Chunk:
    def __init__(self, number: int) -> None:
        self.chunk_id, self.ref_cnt = number, -1


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Lru(KeyPolicy):
    eviction = "lru"


def keys_of(text: str, blocks: int, group: int = 0) -> list[bytes]:
    return [f"{text}{nth}".encode().ljust(32, b".") + group.to_bytes(4, "big") for nth in range(blocks)]


class Rig:
    """A policy with the calls that vLLM's manager makes."""

    def __init__(self, size: int, kind: type[KeyPolicy] = KeyPolicy) -> None:
        self.clock = Time()
        self.policy = kind(size, self.clock)
        self.made = 0

    def serve(self, *groups: list[bytes], context: Context | None = None, before: int = 0) -> set[bytes]:
        """A request with these keys, of which so many blocks were on the device; what was reused."""
        context = context or Context()
        self.clock.now += 1
        for group in groups:
            context.ends |= {key: (before + nth + 1) * SIZE for nth, key in enumerate(group)}
        keys = [key for group in groups for key in group]
        there = {key for key in keys if self.policy.get(key) is not None}
        missing = [key for key in keys if key not in there]
        for key in there:
            self.policy.mark_non_evictable(key)
            self.policy.mark_evictable(key)
        self.policy.on_store_miss(missing, context)
        for key in missing:
            chunk = Chunk(self.made)
            self.policy.insert(key, chunk)
            chunk.ref_cnt = 0
            self.policy.mark_evictable(key)
            self.made += 1
        self.policy.on_request_finished(groups, set(missing), there, context)
        return there

    def go(self, count: int, *protected: bytes) -> list[bytes]:
        gone = self.policy.evict(count, set(protected))
        assert gone is not None
        return [key for key, _ in gone]


def test_every_call_takes_what_vllm_gives_it() -> None:
    source = (ROOT / "quire/integrations/vllm/plugs/key_policy.py").read_text()
    ours = signatures(source, ("KeyPolicy",))
    assert ours.keys() >= POLICY.keys()
    same = POLICY.keys() - {"__init__", "insert"}
    assert {name: ours[name] for name in same} == {name: POLICY[name] for name in same}
    assert (known_policy("0.32.0")["insert"], known_policy("0.33.1")["insert"], ours["insert"]) == (
        "key chunk", "key chunk req_context", "key chunk req_context=",
    )  # fmt: skip
    assert READ == TESTED


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".vllm-env").exists(), reason="no vLLM: make vllm-env")
def test_the_table_is_what_the_installed_vllm_has() -> None:
    (base,) = (ROOT / ".vllm-env").glob(f"lib/python3*/site-packages/{POLICY_FILE}")
    assert changes(policy_of(base.read_text()), known_policy("0.32")) == []


@pytest.mark.parametrize("seed", range(cases(4, 200)))
def test_random_lives_evict_what_the_cores_own_order_says(seed: int) -> None:
    """Under vLLM's own manager, and for longer: `policy_lives`."""
    dice = np.random.default_rng(seed)
    kind, size = (Lru, KeyPolicy)[seed % 4 > 0], int(dice.choice([20, 60, 300]))
    rig = Rig(size, kind)
    plain, free = PlainOrder(size, kind.eviction, rig.clock), size
    if kind is KeyPolicy:
        shuffle(dice, rig.policy._order, plain.ranking.order)
    words: list[Any] = [None, None, None, {"quire": {"back": str(dice.choice(["soon", "later", "never"]))}}]
    words.append({"quire": {"priority": int(dice.integers(101)), "seconds": 5, "unknown": 1}})
    for number in range(300):
        context = Context(words[dice.integers(len(words))])
        context.req_id = str(number)
        rig.clock.now += float(dice.choice([0, 1e-4, 0.1, 3, 200]))
        text, own = int(dice.zipf(1.6)) % 20, int(dice.integers(100))
        names = keys_of(f"{text}.", int(dice.integers(9))) + keys_of(f"{text}.{own}.", int(dice.integers(7)))
        groups = [[key[:-1] + bytes([group]) for key in names] for group in range(int(dice.choice([1, 1, 2])))]
        every = [key for group in groups for key in group]
        if len(every) > size:
            continue
        missing = sum(rig.policy.get(key) is None for key in every)
        short = max(0, missing - free)
        gone = rig.policy.evict(short, set(every))
        assert plain.take(short, set(every)) == (None if gone is None else [key for key, _ in gone])
        if gone is None:
            continue
        made = [key for key in every if rig.policy.get(key) is None]
        rig.clock.now += 1
        plain.miss(made, context)
        for key in made:
            plain.come(key)
            plain.let_go(key)
        rig.clock.now -= 1
        reused = rig.serve(*groups, context=context)
        plain.finish(groups, reused, context)
        free += len(gone) - len(made)
    assert rig.made > size and free < size


def test_children_go_before_their_parents_whatever_their_ages() -> None:
    rig = Rig(20)
    head = keys_of("s", 3)
    rig.serve(head)
    rig.clock.now += 100
    rig.serve(other := keys_of("o", 1))
    for turn in range(3):  # the head gets uses, its tails none
        rig.serve([*head, *keys_of(f"t{turn}", 2)])
    assert rig.go(1) == other
    order = rig.go(9)
    for turn in range(3):
        first, second = keys_of(f"t{turn}", 2)
        assert order.index(second) < order.index(first) < order.index(head[2])
    assert order[-3:] == head[::-1]


def test_groups_go_together_by_where_their_blocks_end() -> None:
    rig = Rig(12, Lru)
    full, window = keys_of("a", 3), keys_of("a", 3, group=1)
    rig.serve(full, window)
    assert rig.go(6) == [window[2], full[2], window[1], full[1], window[0], full[0]]


def test_what_is_read_written_or_protected_stays() -> None:
    rig = Rig(4)
    keys = keys_of("a", 3)
    rig.serve(keys)
    rig.policy.insert(coming := keys_of("b", 1)[0], Chunk(9), Context())  # as from 0.33 on
    rig.policy.mark_non_evictable(keys[2])
    assert rig.policy.evict(2, {keys[0]}) is None and rig.policy.get(keys[1]) is not None
    assert rig.go(1, keys[0]) == [keys[1]]
    rig.policy.mark_evictable(keys[2])
    assert set(rig.go(2)) == {keys[0], keys[2]} and rig.policy.get(coming) is not None
    rig.policy.remove(coming)
    rig.policy.remove(coming)  # again: as vLLM's own
    assert rig.policy.get(coming) is None and rig.policy.evict(1, set()) is None and rig.policy.evict(0, set()) == []
    rig.policy.insert(coming, Chunk(9))  # and another time
    rig.policy.mark_evictable(coming)
    assert rig.go(1) == [coming]


def test_clear_takes_what_is_held_too() -> None:
    rig = Rig(2)
    rig.policy.insert(keys_of("a", 1)[0], Chunk(0))
    rig.policy.clear()
    assert rig.policy.get(keys_of("a", 1)[0]) is None
    rig.serve(keys_of("b", 2))
    assert len(rig.go(2)) == 2


def test_a_hint_of_the_caller_is_followed_and_unknown_words_leave_the_rest() -> None:
    for kind in (KeyPolicy, Lru):
        rig = Rig(9, kind)
        old, never, kept = keys_of("a", 2), keys_of("n", 2), keys_of("k", 2)
        rig.serve(kept, context=Context({"quire": {"priority": 80, "tokens": SIZE, "of_a_later_version": 1}}))
        rig.serve(old)
        rig.serve(never, context=Context({"quire": {"back": "never", "x": 2}}))
        assert rig.go(5) == [never[1], never[0], kept[1], old[1], old[0]]


def classes_of(rig: Rig, keys: list[bytes]) -> list[int]:
    """The class of each key, as the order sees it."""
    return [rig.policy._order.use([key], {key}, False) for key in keys]


def test_a_person_who_thinks_counts_only_behind_a_tool() -> None:
    for earlier, last in ((None, CONTINUED), ("soon", LATER)):
        rig, keys = Rig(9), keys_of("a", 3)
        rig.serve(keys[:2], context=Context({"quire": {"back": earlier}} if earlier else None))
        rig.serve(keys, context=Context({"quire": {"back": "later"}}))
        assert classes_of(rig, keys[2:]) == [last]


def test_what_an_order_prefers_never_goes_before_what_continues_it() -> None:
    """Used text goes first, says the order: but not while its end is there."""
    rig = Rig(9)
    head, tail = keys_of("s", 2), keys_of("t", 2)
    for _ in range(3):
        rig.serve(head)
    rig.policy._order.set_rank(np.arange(NUM_CELLS, dtype=np.int32)[::-1], False)
    rig.serve([*head, *tail])
    assert rig.go(4) == [*tail[::-1], *head[::-1]]


def test_blocks_that_come_back_are_met_step_by_step() -> None:
    rig = Rig(4)
    keys = keys_of("a", 2)
    for _ in range(2):
        rig.serve(keys)
    rig.go(2)
    context = Context()
    for key in keys:  # a prompt that is computed in two steps
        rig.policy.on_store_miss([key], context)
    rig.policy.on_store_miss(keys_of("new", 1), context)
    assert [(state.known, state.last) for state in context.states.values()] == [(2, FEW)]


def test_blocks_on_the_device_count_as_known_text() -> None:
    fresh, grown = Rig(4), Rig(4)
    fresh.serve(keys_of("a", 2))
    grown.serve(keys_of("a", 2), before=2)
    assert [rig.policy._order.use(keys_of("a", 2), set(keys_of("a", 2)), False) for rig in (fresh, grown)] == [0, 1]


@pytest.mark.parametrize(
    ("given", "wishes"),
    [
        ({"priority": 80, "seconds": 5, "unknown": object()}, Wishes(priority=80, seconds=5)),
        ({"priority": 101, "tokens": 7, "seconds": "x", "back": "soon"}, Wishes(back=1, tokens=7)),
        ({"priority": True, "seconds": -1, "tokens": -1, "back": "sometimes"}, Wishes()),
        ({"priority": 0, "seconds": float("nan")}, Wishes(priority=0)),
    ],
)
def test_what_cannot_be_read_is_left_out_alone(given: Any, wishes: Wishes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert wishes_of(Context({"quire": given})) == wishes


def test_nothing_said_costs_nothing_and_other_words_are_not_ours() -> None:
    assert wishes_of(Context()) is wishes_of(Context({"other": 1})) is wishes_of(Context({"quire": 7})) is None
    action = SimpleNamespace(action_type="quire.hint", action_version="1.0", payload={"back": "never"})
    assert wishes_of(Context(hints=SimpleNamespace(actions=[action]))) == Wishes(back=3)


def test_a_version_that_was_not_run_is_refused_with_the_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plug_version("QuirePolicy", "0.33.1+cpu")
    with pytest.raises(QuireError, match=f"QuirePolicy under vLLM '0.34.0'.*{ANY}=1"):
        check_plug_version("QuirePolicy", "0.34.0")
    monkeypatch.setenv(ANY, "1")
    check_plug_version("QuirePolicy", "0.34.0")


def test_without_vllm_it_says_where_to_run() -> None:
    with pytest.raises(MissingExtra, match=r"needs vLLM.*pip install quire-kv there"):
        __import__("quire.integrations.vllm.policy")
