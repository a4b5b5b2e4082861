"""docs/support.md: every cell of the table is tried on a real cache."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import (
    Cache,
    CacheConfig,
    Encoder,
    InputError,
    Kind,
    LayerGroup,
    Request,
    RetainRange,
    Retention,
    Sequence,
    Stored,
    TierConfig,
    check,
)
from quire.core.outside.prefetch import Prefetch
from quire.core.records.plan import Plan
from quire.integrations.vllm.common.cache_groups import layer_group
from quire.tiers import ArenaTier, PageLayout
from quire.tiers.disk import DiskFolder, DiskKeeper
from quire.tiers.shared import SharedCache, SharedConfig, Turns
from tests.integrations.states.state_engine import StateEngine
from tests.integrations.toy_engine import ToyEngine
from tests.integrations.toy_parts import requests

PAGE = Path(__file__).resolve().parent.parent / "docs" / "support.md"
SIZE = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"window": 8},
    "sink": {"window": 8, "sinks": 4},
    "state": {"snapshot_every": 4},
    "cross": {"cross": True},
}


def table() -> dict[tuple[str, str], str]:
    """Feature and kind to the first words of the cell: yes, no, refused."""
    rows = [
        re.split(r" *\| *", line.strip("| ")) for line in PAGE.read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    kinds = rows[0][1:]
    cells = {
        (row[0], kind): cell for row in rows[2:] if len(row) == 6 for kind, cell in zip(kinds, row[1:], strict=True)
    }
    return {place: re.sub(r" *\(\d+\)$", "", cell) for place, cell in cells.items()}


class Rig:
    """A cache with one group of that kind (a cross group needs one that reads text besides), and its number."""

    def __init__(
        self, kind: str, *, device: int = 24, host: int = 24, disk: int = 0, rows: int = 8, **more: Any
    ) -> None:
        own = LayerGroup(kind, page_bytes=64, **OPTIONS[kind], **more)
        self.groups = (LayerGroup("text", page_bytes=64), own) if kind == "cross" else (own,)
        self.group, self.kind = len(self.groups) - 1, kind
        tiers = [TierConfig("device", device), TierConfig("host", host)]
        tiers += [TierConfig("disk", disk, slow=True)] if disk else []
        sizes = CacheConfig(tuple(tiers), SIZE, self.groups, rows, 64, max_chunk=8)
        self.cache = Cache(replace(sizes, events=not disk, lasting=bool(disk)))

    def request(self, name: str, tokens: Any, encoder: int = 0, **more: Any) -> Request:
        """With a cross group it reads an encoder's input of eight places."""
        if self.kind == "cross":
            more["encoder"] = Encoder(8, tokens=np.full(8, encoder, np.int32))
        return Request(name, np.array(list(tokens), np.int32), **more)

    def run(self, request: Request) -> Sequence:
        """Computed to its end, part by part."""
        batch = self.cache.add_sequence_batch([request])
        (sequence,) = batch.sequences
        while True:
            self.cache.finish(batch.plan)
            self.cache.commit(sequence)
            check(self.cache)
            if sequence.computed == sequence.prompt_end:
                return sequence
            batch = self.cache.add_sequence_batch([], continuing=[sequence])

    def append(self, sequence: Sequence, *tokens: int) -> None:
        plan = self.cache.grow(sequence, np.array(tokens, np.int32))
        assert plan is not None
        self.cache.finish(plan)


def fork(kind: str) -> bool:
    rig = Rig(kind)
    first = rig.run(rig.request("a", range(10)))
    made = rig.cache.fork(first, ["b", "c"])
    assert made is not None
    others, plan = made
    rig.cache.finish(plan)
    for one in (first, *others):
        rig.append(one, 50 + one.row)
        rig.cache.commit(one)
    check(rig.cache)
    return {one.computed for one in (first, *others)} == {11}


def forked_when_full(kind: str, num_beams: int) -> bool:
    """Whether a prompt can still be forked when others have taken all the room they can get."""
    rig = Rig(kind, rows=64)
    first = rig.run(rig.request("a", range(10), beams=num_beams))
    others = [Request(nth, np.array([100 + nth], np.int32)) for nth in range(40)]
    batch = rig.cache.add_sequence_batch(others)
    rig.cache.finish(batch.plan)
    assert batch.refused
    made = rig.cache.fork(first, ["b", "c"])
    check(rig.cache)
    return made is not None and len(made[0]) == 2


def beams(kind: str) -> bool:
    assert not forked_when_full(kind, 1)
    return forked_when_full(kind, 3)


def decoded(kind: str, drafts: tuple[int, ...]) -> int:
    """How much can be reused of a prompt and four sampled tokens, each with drafts that were all wrong."""
    rig = Rig(kind)
    one = rig.run(rig.request("a", range(8)))
    for token in (50, 51, 52, 53):
        rig.append(one, token, *drafts)
        if drafts:
            rig.cache.trim(one, len(drafts))
        rig.cache.commit(one)
    rig.cache.release(one)
    check(rig.cache)
    return rig.cache.probe([rig.request("b", [*range(8), 50, 51, 52, 53, 54])])[0].start


def drafts(kind: str) -> bool:
    """Drafts that were taken back leave things as they would be without them."""
    assert decoded(kind, ()) == 12
    return decoded(kind, (90, 91)) == 12


def draft_group(kind: str) -> bool:
    """A group that always has room for drafts behind a sequence."""
    rig = Rig(kind, extra_tokens=6)
    one = rig.run(rig.request("a", range(10)))
    return one.capacity(rig.group) >= 16


def chunks(kind: str) -> bool:
    rig = Rig(kind)
    batch = rig.cache.add_sequence_batch([rig.request("a", range(20))])
    (one,) = batch.sequences
    return batch.num_tokens <= 8 and rig.run(rig.request("b", range(100, 120))).computed == 20 and one.live


def suspend(kind: str) -> bool:
    rig = Rig(kind)
    again = rig.cache.suspend(rig.run(rig.request("a", range(10))))
    check(rig.cache)
    resumed = rig.run(again)
    return resumed.start >= 8 and resumed.computed == 10


def tiers(kind: str) -> bool:
    """Pages that were pushed to the host are found and brought up again."""
    rig = Rig(kind, device=10, host=40)
    rig.cache.release(rig.run(rig.request("a", range(16))))
    for nth in range(1, 10):  # states at the ends of texts go last
        rig.cache.release(rig.run(rig.request(f"f{nth}", range(100 * nth, 100 * nth + 16), encoder=nth)))
    batch = rig.cache.add_sequence_batch([rig.request("b", [*range(16), 50])])
    up = [move.group for move in batch.plan if move.kind in (Kind.ONBOARD, Kind.EXCHANGE) or move.src[0] > 0]
    check(rig.cache)
    return batch.sequences[0].start == 16 and rig.group in up


def transfer(kind: str) -> bool:
    pytest.importorskip("msgspec", reason="transfer needs the extra transfer")
    from quire.transfer import Aux, Endpoint, Key, LocalHub, Outcome, QuireView, Source

    hub, rigs = LocalHub(), {name: Rig(kind) for name in "pd"}
    pages = {name: [ArenaTier("device", [24], [64]).view(0) for _ in rig.groups] for name, rig in rigs.items()}
    ends = {name: Endpoint(hub.link(name, pages[name]), QuireView(rig.cache)) for name, rig in rigs.items()}
    request, key = rigs["p"].request("a", range(10)), Key("a")
    sent = rigs["p"].run(request)
    for nth, layers in enumerate(rigs["p"].groups):
        slots = [sent.state_slot(nth)] if layers.current else [slot for slot in sent.slots(nth) if slot >= 0]
        pages["p"][nth][slots] = 42
    ends["p"].send(key, "a")
    assert ends["p"].put(key, 10, last=True, aux=Aux(first_tokens=(7,)))
    session, ended = None, []
    for _ in range(100):
        session = session or ends["d"].receive(key, request, Source(("p",)))
        ends["p"].step()
        ended += ends["d"].step()
    one, group = rigs["d"].cache.sequence("a"), rigs["d"].group
    slots = [one.state_slot(group)] if kind == "state" else [slot for slot in one.slots(group) if slot >= 0]
    check(rigs["d"].cache)
    delivered = [session.verdict.outcome for session in ended if session.verdict is not None]
    return delivered == [Outcome.DELIVERED] and one.computed == 10 and bool((pages["d"][group][slots] == 42).all())


def retention(kind: str) -> bool:
    """A range of the request sets the priority of the group's pages."""
    rig = Rig(kind)
    rig.cache.release(rig.run(rig.request("a", range(16), retention=Retention((RetainRange(0, None, 90),)))))
    told = [event for event in rig.cache.take_events() if isinstance(event, Stored) and event.group == rig.group]
    assert told
    return all(priority == 90 for event in told for priority in event.priorities)


def partial_hits(kind: str) -> bool:
    rig = Rig(kind)
    rig.cache.release(rig.run(rig.request("a", range(16))))
    return rig.run(rig.request("b", [*range(14), 50, 51])).start == 14


def events(kind: str) -> bool:
    rig = Rig(kind)
    rig.cache.release(rig.run(rig.request("a", range(16))))
    return any(isinstance(event, Stored) and event.group == rig.group for event in rig.cache.take_events())


def recovery_in_place(kind: str) -> bool:
    """A sequence whose page did not come goes on from an earlier token; otherwise it is lost, with its request."""
    rig = Rig(kind, device=10, host=40)
    rig.cache.release(rig.run(rig.request("a", range(16))))
    for nth in range(1, 10):  # states at the ends of texts go last
        rig.cache.release(rig.run(rig.request(f"f{nth}", range(100 * nth, 100 * nth + 16), encoder=nth)))
    batch = rig.cache.add_sequence_batch([rig.request("b", [*range(16), 50])])
    rows = enumerate(batch.plan)
    failed = [nth for nth, move in rows if move.group == rig.group and (move.src[0] > 0 or move.kind is Kind.EXCHANGE)]
    (setback,) = rig.cache.finish(batch.plan, failed[:1]).setbacks
    check(rig.cache)
    assert setback.lost is (setback.request is not None)
    return not setback.lost


def check_finished(cache: Cache, plan: Plan) -> None:
    """Nothing was carried here, and nothing failed."""
    assert not cache.finish(plan).setbacks


def settle(glue: SharedCache, turns: Turns | None, cache: Cache) -> None:
    """Until everything has come and gone."""
    while turns is not None and not glue.wait_until_idle(0.005):
        turns.run(lambda plan: check_finished(cache, plan))
    assert glue.wait_until_idle(120)


def shared(kind: str) -> bool:
    """Another cache goes on behind a prompt that this one has computed, through a folder."""
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for name in ("a", "b"):
            rig = Rig(kind)
            arenas = [ArenaTier(tier, [24] * len(rig.groups), [64] * len(rig.groups)) for tier in ("device", "host")]
            turns = Turns() if kind == "state" else None
            with SharedCache(rig.cache, arenas, SharedConfig(folder), bytes(32), turns=turns) as glue:
                request = rig.request(name, range(16))
                with glue.fetch(request, wait=60):
                    settle(glue, turns, rig.cache)
                    with rig.cache.find(request) as found:
                        ends.append(found.end)
                rig.cache.release(rig.run(rig.request(name, range(16))))
                glue.publish(rig.request("again", range(16)), edges=(16,))
                settle(glue, turns, rig.cache)
            check(rig.cache)
        return ends == [0, 16]


def disk(kind: str) -> bool:
    """Another cache goes on behind a prompt that an earlier one has computed and left in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        starts = []
        for name in ("a", "b"):
            rig = Rig(kind, disk=24)
            sizes = [64] * len(rig.groups)
            arenas = [ArenaTier(tier, [24] * len(rig.groups), sizes) for tier in ("device", "host")]
            kept = DiskFolder(folder, bytes(32), sizes, [24] * len(rig.groups))
            with DiskKeeper(rig.cache, kept, arenas, [PageLayout(64)] * len(rig.groups)) as keeper:
                request = rig.request(name, range(17))
                prefetch = keeper.prefetch(request)
                assert isinstance(prefetch, Prefetch)
                keeper.idle()
                with rig.cache.claim([request]) as claims:
                    starts.append(claims[0].start)
                prefetch.close()
                rig.cache.release(rig.run(request))
                assert keeper.flush()
            check(rig.cache)
        return starts == [0, 16]


VLLM_SPECS = {  # what vLLM calls a group of that kind
    "full": "FullAttentionSpec", "window": "SlidingWindowSpec", "sink": "SinkFullAttentionSpec", "state": "MambaSpec",
    "cross": "CrossAttentionSpec",
}  # fmt: skip


def vllm(kind: str) -> bool:
    """A group of vLLM's becomes one of ours, and requests find in host memory what vLLM has no blocks for."""
    named = {"block_size": SIZE, "page_size_bytes": 64, "sliding_window": 8, "mamba_cache_mode": "align"}
    spec = type(VLLM_SPECS[kind], (SimpleNamespace,), {})(**named)
    if layer_group(0, SimpleNamespace(kv_cache_spec=spec, layer_names=["layer"])).kind != kind:
        return False
    engine = StateEngine(0, host=60) if kind == "state" else ToyEngine(0, hybrid=kind == "window", host=60)
    engine.run(requests(random.Random(0), 12))
    return engine.seen["loaded tokens"] > 0


TRIES: dict[str, Callable[[str], bool]] = {
    "fork": fork, "beams": beams, "drafts": drafts, "draft group": draft_group, "chunks": chunks, "suspend": suspend,
    "tiers": tiers, "transfer": transfer, "retention": retention, "partial hits": partial_hits, "events": events,
    "recovery in place": recovery_in_place, "shared": shared, "disk": disk, "vLLM": vllm,
}  # fmt: skip


def test_the_table_is_whole() -> None:
    assert set(table()) == {(feature, kind) for feature in TRIES for kind in OPTIONS}
    assert set(table().values()) == {"yes", "no", "refused"}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("feature", TRIES)
def test_a_cell_says_what_is_so(feature: str, kind: str) -> None:
    try:
        found = "yes" if TRIES[feature](kind) else "no"
    except InputError:
        found = "refused"
    assert table()[feature, kind] == found


def test_notes_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    used = set(re.findall(r"\((\d+)\)", "".join(line for line in text.splitlines() if "|" in line)))
    assert used == set(re.findall(r"^(\d+)\. ", text, flags=re.MULTILINE))
