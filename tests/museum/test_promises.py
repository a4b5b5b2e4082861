"""Promises: what a lookup reports is there when it is fetched, whatever others do meanwhile, and is not held after.

The others looked up without pinning, or unlocked under another key than they locked.
"""

from __future__ import annotations

import numpy as np

from quire import Cache, Refusal, Request, Scope, check
from quire.core.records.plan import Kind, MoveColumn
from quire.core.store import StoreName
from quire.integrations.vllm.common.cache_groups import HOST
from quire.transfer.wire.verdict import Key, Outcome
from tests.integrations.toy_engine import ToyEngine
from tests.museum.toys import PROMPT, ask, carry_out, load, placed, right, serve
from tests.scenarios.conftest import build, tokens
from tests.scenarios.test_tiers import PAGE, Machine, step
from tests.transfer.rig import Rig
from tests.transfer.sides import GROUPS, QuireSide


def crowd(cache: Cache, name: str, first: int, blocks: int) -> int:
    """Another writer asks for so many pages of host memory; how many it gets."""
    wish = Request(name, np.arange(first, first + 4 * blocks, dtype=np.int32))
    made = cache.writer(wish, tier=HOST)
    if isinstance(made, Refusal):
        return 0
    with made as writer:
        return writer.written(4 * blocks)


def test_vllm_39702_a_lookup_that_did_not_hold_what_it_found() -> None:
    """The hit was evicted between lookup and load, and the engine exited."""
    engine = ToyEngine(0, hybrid=False, host=6)
    serve(engine, ask("first"))
    again = ask("again")
    assert engine.side.look(again, 0) == 20
    assert [crowd(engine.cache, f"crowd {nth}", 1000 * nth, 1) for nth in range(1, 9)] == [1] * 8  # one slot for all
    assert crowd(engine.cache, "all", 9000, 6) == 0
    assert load(engine, again, 20) == set() and right(engine, again, 20)
    engine.side.finish(again)
    engine.nothing_is_held()
    assert crowd(engine.cache, "all", 9000, 6) == 6  # and then it holds nothing any more


def test_lmcache_4133_more_was_promised_than_came(store: StoreName) -> None:
    """768 tokens were promised, 651 arrived, and the engine exited. A claim is final: others evict everything else."""
    cache = build(store, 8, 8, block_size=8, groups=(PAGE,))
    machine = Machine(cache)
    prompt = tokens(range(48))
    cache.release(step(cache, machine, Request("first", prompt)))
    cache.release(step(cache, machine, Request("flood", tokens(range(100, 164)))))
    claims = cache.claim([Request("again", tokens(prompt, 7))])
    assert claims[0].start == 48
    for nth in range(2, 5):  # each takes the whole device but for what the claim needs none of
        cache.release(step(cache, machine, Request(f"flood {nth}", tokens(range(100 * nth, 100 * nth + 56)))))
    batch = cache.admit(claims)
    (sequence,) = batch.sequences
    machine.move(batch.plan)
    assert sequence.start == 48 and machine.read(sequence, 48) == prompt.tolist()
    machine.mover.close()


def test_sglang_27631_bringing_pages_up_evicted_those_pages(store: StoreName) -> None:
    """Making room on the device needed room on the host, and that evicted the pages being loaded."""
    cache = build(store, 10, 4, block_size=8, groups=(PAGE,))
    machine = Machine(cache)
    prompt = tokens(range(32))
    cache.release(step(cache, machine, Request("first", prompt)))
    cache.release(step(cache, machine, Request("other", tokens(range(100, 180)))))
    assert cache.usage(1).empty == 0 and cache.usage(0).empty == 0  # the host has the first, the device the other
    requests = [Request("new", tokens(range(500, 540))), Request("again", tokens(prompt, 7))]
    batch = cache.add_sequence_batch(requests)  # the first pushes pages down to where the second's are
    new, sequence = batch.sequences
    machine.move(batch.plan)
    assert (new.start, sequence.start) == (0, 32) and machine.read(sequence, 32) == prompt.tolist()
    kinds = batch.plan.moves[:, MoveColumn.KIND].tolist()
    assert kinds.count(Kind.EXCHANGE) == 4 and cache.usage(1).idle == 4  # with as many of the other's pages
    for one in (new, sequence):
        cache.release(one, store=False)
    machine.mover.close()


def test_sglang_27631_room_for_others_was_made_of_pages_about_to_be_loaded(store: StoreName) -> None:
    """The same between lookup and load: others push pages down while the host has nothing but what was promised."""
    cache = build(store, 10, 4, block_size=8, groups=(PAGE,))
    machine = Machine(cache)
    prompt = tokens(range(32))
    cache.release(step(cache, machine, Request("first", prompt)))
    cache.release(step(cache, machine, Request("other", tokens(range(100, 180)))))
    claims = cache.claim([Request("again", tokens(prompt, 7))])
    cache.release(step(cache, machine, Request("new", tokens(range(500, 540)))))  # five of the device's pages go
    batch = cache.admit(claims)
    (sequence,) = batch.sequences
    machine.move(batch.plan)
    assert sequence.start == 32 and machine.read(sequence, 32) == prompt.tolist()
    machine.mover.close()


def test_lmcache_3770_unlocked_under_another_key_than_it_was_locked(store: StoreName) -> None:
    """The unlock call left out the salt, and the pages stayed locked until a timeout."""
    cache = build(store, 8, block_size=8, groups=(PAGE,))
    machine = Machine(cache)
    for nth, salt in enumerate(("tenant 4", "tenant 5")):
        prompt = tokens(range(32), nth)
        cache.release(step(cache, machine, Request(salt, prompt, Scope(salt=salt))))
        with cache.claim([Request("look", tokens(prompt, 9), Scope(salt=salt))]) as claims:
            assert claims[0].start == 33 and cache.num_free() == 3
        with cache.find(Request("find", prompt, Scope(salt=salt))) as found:
            assert found.end == 32
        assert cache.num_free() == 8 and not cache.open_claims() and not cache.open_finds()
    last = step(cache, machine, Request("large", tokens(range(500, 564))))  # every slot can be had
    assert last.start == 0
    cache.release(last)
    check(cache)
    machine.mover.close()


def test_vllm_56640_an_entirely_local_hit_was_never_reported_as_done() -> None:
    """Its request waited forever. Here no load is ordered, so none is waited for."""
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("first"))
    request = ask("again")
    assert engine.side.look(request, 20) == 0
    placed(engine, request, 1, 0)
    orders = engine.side.order({"again": 1}, (), lambda _: request.tables)
    assert not orders.loads and not orders.refused
    assert carry_out(engine, orders) == set()
    engine.side.finish(request)
    engine.nothing_is_held()
    assert engine.side.look(ask("longer", [*PROMPT, 7, 7, 7, 7]), 20) == 0  # nor is there anything behind it


def test_vllm_56640_nothing_to_send_is_delivered_too() -> None:
    """The same between two engines: the decoder has the whole prompt, and the session still ends."""
    one, key, wish = GROUPS[:1], Key("r"), Request("r", tokens(range(16)))
    rig = Rig(QuireSide(one, (24,)), QuireSide(one, (24,)))
    rig.sides["d"].compute(wish)
    rig.sides["d"].end("r")
    rig.serve(wish, key)
    session = rig.ask(wish, key)
    assert session.wants == ((),)
    rig.step()
    assert session.verdict is not None and session.verdict.outcome is Outcome.DELIVERED and rig.empty()
