"""What groups read: the library's arithmetic and the oracle's definitions, token by token, agree."""

from __future__ import annotations

from random import Random

import pytest

from fuzzing.oracle import reach
from fuzzing.world import build, worlds
from quire.core.records.groups import blocks_kept


@pytest.mark.parametrize("seed", range(40))
def test_needs_are_the_blocks_that_are_read_or_written(seed: int) -> None:
    world = worlds.random_world(Random(seed), "mixed")
    size = world.block_size
    for number, kind in enumerate(world.kinds):
        layer = build.layer_group(world, number).clamped(world.max_length)
        assert layer.kind == kind.kind
        assert (layer.sink(size), layer.bounded) == (reach.sink(kind, size), reach.bounded(kind))
        assert blocks_kept(layer, size) == reach.keeps(kind, size)
        for length in range(world.max_length + 1):
            needs = tuple((span.start, span.end) for span in layer.needs_at(length, size))
            assert needs == reach.runs(reach.needed(kind, length, size)), (kind, length)
            if kind.kind != "state":
                assert layer.live_blocks(length, size) == layer.needs_at(length, size)


@pytest.mark.parametrize("seed", range(20))
def test_a_window_reads_itself_and_the_tokens_right_before_it(seed: int) -> None:
    world = worlds.random_world(Random(seed), "mixed")
    for kind in world.kinds:
        for length in range(1, world.max_length) if kind.kind == "window" else ():
            needed = set(reach.needed(kind, length, world.block_size))
            read = [token for token in range(length) if token > length - kind.window or token < kind.sinks]
            assert {token // world.block_size for token in read} <= needed
