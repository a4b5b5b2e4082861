"""Identity: requests share pages only if they would compute the same bytes.

With the others two things had one name: an adapter and a salt, or the weights before and after an update.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quire import Scope
from quire.integrations.vllm.common.request_identity import media_of
from quire.tiers.page_digest import BlockDigests
from tests.integrations.lasting_engine import SECONDS, LastingEngine
from tests.integrations.test_vllm_contract import image
from tests.integrations.test_vllm_outer import disk_at
from tests.integrations.toy_engine import ToyEngine
from tests.museum.toys import ask, kept, placed, serve
from tests.tiers.disk.rig import Kept
from tests.tiers.shared.machine import Machine, text

NAME = "acme"
SCOPES = (
    Scope(), Scope(lora=NAME), Scope(salt=NAME), Scope(lora=NAME, salt=NAME), Scope(lora=NAME + NAME),
    Scope(lora=NAME[:2], salt=NAME[2:]), Scope(epoch=1), Scope(salt="1"), Scope(salt=1), Scope(lora=1), Scope(salt=""),
    Scope(salt=NAME.encode()),
)  # fmt: skip


def test_vllm_44701_an_adapter_and_a_salt_of_one_name() -> None:
    """They shared one key space: a salt equal to an adapter's name got the pages computed with that adapter."""
    engine = ToyEngine(0, hybrid=False)
    lora = SimpleNamespace(lora_name=NAME)
    serve(engine, ask("adapter", lora_request=lora))
    assert engine.side.look(ask("salt", cache_salt=NAME), 0) == 0
    assert engine.side.look(ask("both", cache_salt=NAME, lora_request=lora), 0) == 0
    assert engine.side.look(ask("plain"), 0) == 0
    assert engine.side.look(ask("same", lora_request=lora), 0) == 20


def test_vllm_44701_no_two_scopes_have_one_name_anywhere() -> None:
    """In the tree, on disk and in a store, and in events."""
    assert len({scope.key for scope in SCOPES}) == len({scope.digest for scope in SCOPES}) == len(SCOPES)
    assert len({scope.event_hash(bytes(16)) for scope in SCOPES}) == len(SCOPES)
    names = [BlockDigests(bytes(32), scope, 4) for scope in SCOPES]  # in either half of a page's name
    for one in names:
        one.extend(np.arange(4, dtype=np.int32))
    assert len({one.tag for one in names}) == len({one[0] for one in names}) == len(SCOPES)


@pytest.mark.parametrize("mine", SCOPES[:4], ids=range(4))
def test_vllm_44701_a_shared_store_keeps_scopes_apart(tmp_path: Path, mine: Scope) -> None:
    """No other scope gets what one scope has published."""
    with ExitStack() as closing:
        one, other = Machine(str(tmp_path / "pages"), host=96), Machine(str(tmp_path / "pages"), host=96)
        closing.callback(one.close)
        closing.callback(other.close)
        one.serve(text(1, length=8), mine)
        one.settle()
        for scope in SCOPES:
            with other.fetch(text(1, length=8), scope) as fetch:
                assert fetch.tokens == (8 if scope == mine else 0)


def test_vllm_44701_one_image_named_like_two_that_overlap() -> None:
    """The same fault in our connector: an image id equal to the list that names two overlapping images."""
    pair = ask("pair", mm_features=[image(4, 4, "a"), image(6, 4, "b")])
    one = ask("one", mm_features=[image(4, 6, repr(sorted([("a", 0, 4), ("b", 2, 4)])))])
    (first,), (second,) = media_of(pair, 21), media_of(one, 21)
    assert first.runs == second.runs and first.digest != second.digest


def test_vllm_42695_pages_outside_the_engine_outlived_an_update_of_the_weights(tmp_path: Path) -> None:
    """Only the device's cache was reset. Here one reset covers host memory, disk and store."""
    below = disk_at(tmp_path) | {"shared": str(tmp_path / "store")}
    engine = LastingEngine(0, tmp_path, below, hybrid=False)
    request = ask("old weights")
    assert engine.side.look(request, 0) is None  # the store is asked
    engine.settle()
    serve(engine, request)
    engine.settle()
    assert engine.outer.keeper is not None and engine.outer.keeper.flush(SECONDS) and kept(engine) == 20
    assert engine.side.reset() is True
    again = ask("new weights")
    engine.side.arrive(again)
    engine.settle()
    while (gain := engine.side.look(again, 0)) is None:
        engine.settle()
    assert gain == 0 and kept(engine) == 0
    engine.side.finish(again)
    engine.side.close()
    later = LastingEngine(1, tmp_path, disk_at(tmp_path), hybrid=False)  # nor does the disk bring them back
    later.side.arrive(last := ask("later"))
    later.settle()
    assert later.side.look(last, 0) == 0
    later.side.finish(last)
    later.side.close()


def test_vllm_42695_two_engines_that_were_both_updated_share_nothing(tmp_path: Path) -> None:
    """The first update of one engine need not be the first of another: their new weights have no name in common."""
    for nth in range(2):
        engine = LastingEngine(nth, tmp_path, {"shared": str(tmp_path / "store")}, hybrid=False)
        assert engine.side.reset() is True
        request = ask(f"of engine {nth}")
        engine.side.arrive(request)
        engine.settle()
        while (gain := engine.side.look(request, 0)) is None:
            engine.settle()
        assert gain == 0
        serve(engine, request)
        engine.settle()
        engine.side.close()


def test_vllm_42695_a_tenants_epoch_is_part_of_what_lies_on_disk(tmp_path: Path) -> None:
    """In our own cache an update is a new epoch: no page of the old one is found, before or after a restart."""
    first = Kept(tmp_path)
    first.compute(1, Scope(epoch=1))
    assert first.keeper.flush(30.0) and first.found(1, Scope(epoch=2)) == 0
    first.close()
    second = Kept(tmp_path)
    assert second.fetched(1, Scope(epoch=2)) <= 0 and second.fetched(1, Scope(epoch=1)) == 16
    second.close()


def test_vllm_42695_what_was_found_before_an_update_is_not_loaded_after_it() -> None:
    """A lookup holds pages of the old weights: the reset ends that, and vLLM is told that the load failed."""
    engine = ToyEngine(0, hybrid=False)
    serve(engine, ask("first"))
    again = ask("again")
    assert engine.side.look(again, 0) == 20
    assert engine.side.reset() is True and not engine.cache.open_finds()
    placed(engine, again, 20, 20)
    orders = engine.side.order({}, (), lambda _: again.tables)
    assert (orders.loads, orders.refused) == ([], ["again"])
    engine.side.finish(again)
    engine.nothing_is_held()


def test_vllm_42695_what_the_old_weights_are_still_computing_is_not_kept() -> None:
    """A store in flight when the weights change holds KV of the old ones."""
    engine = ToyEngine(0, hybrid=False)
    request = ask("runs")
    assert engine.side.look(request, 0) == 0
    request.tables = [list(range(1, 8))]
    engine.side.place(request, request.tables, 0)
    orders = engine.side.order({"runs": 21}, (), lambda _: request.tables)
    assert engine.side.reset() is True
    for worker in engine.workers:
        worker.run_stores(orders)
        worker.received()
        engine.side.hear(worker.report())
    assert kept(engine) == kept(engine, None, Scope(epoch=1)) == 0
    request.num_computed_tokens = 21
    request.all_token_ids += range(50, 58)
    request.tables = [list(range(1, 10))]
    assert (
        engine.side.order({"runs": 8}, (), lambda _: request.tables).stores == []
    )  # nor is what it goes on to compute
    engine.side.finish(request)
    engine.nothing_is_held()
