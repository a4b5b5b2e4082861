"""How many pages fit into a number of bytes: never more than that, nearly as many as possible, and enough to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire import CacheConfig, InputError, LayerGroup, TierConfig  # noqa: E402
from quire.engine import EngineConfig, fitting  # noqa: E402
from quire.engine.model.load import load, outline  # noqa: E402
from quire.engine.model.pages import Pages  # noqa: E402
from quire.engine.runner.engine import Engine  # noqa: E402
from quire.engine.setup.fitting import Load, check_room, check_total, pages_in  # noqa: E402

from .. import families  # noqa: E402
from ..steps import assert_exact, finish, model_of, plain, words  # noqa: E402

NAMES = families.NAMES
KIB, MIB = 1 << 10, 1 << 20
FULL = LayerGroup("full", page_bytes=100)
NEAR = LayerGroup("near", page_bytes=10, window=33)
STATE = LayerGroup("state", page_bytes=1000, snapshot_every=32)


def used(pages: tuple[int, ...], groups: tuple[LayerGroup, ...]) -> int:
    return sum(count * group.page_bytes for count, group in zip(pages, groups, strict=True))


@pytest.mark.parametrize(
    ("num_bytes", "groups", "expected"),
    [
        (1000, (FULL,), (10,)),
        (1099, (FULL,), (10,)),
        (200, (FULL,), (2,)),
        (1100, (FULL, NEAR), (10, 10)),  # as long as all fits everybody has all of it
        (100_000, (FULL, NEAR), (995, 2 * 4 * 4 + 2 + 2 * 4)),  # four rows with a window each, twice, and two chunks
        (100_000, (NEAR,), (42,)),
        (70_000, (FULL, STATE), (100, 2 * 4 + 2 + 100 * 16 // 32)),  # states of four rows, and the regular snapshots
    ],
)
def test_pages_of_a_few_groups(num_bytes: int, groups: tuple[LayerGroup, ...], expected: tuple[int, ...]) -> None:
    """Blocks of 16, four rows, chunks of 64."""
    pages = pages_in(num_bytes, groups, Load(16, 4, 64))
    assert pages == expected and used(pages, groups) <= num_bytes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [4, 16, 64])
def test_as_many_as_fit(name: str, block: int) -> None:
    """More memory never means fewer pages; one more block for everybody would not fit."""
    groups = model_of(name).groups(block, 64)
    before = (0,) * len(groups)
    for num_bytes in (3 * MIB, 4 * MIB, 5 * MIB + 12_345, 32 * MIB):
        pages = pages_in(num_bytes, groups, Load(block, 8, 128))
        assert all(count >= 2 for count in pages) and used(pages, groups) <= num_bytes
        assert all(now >= was for now, was in zip(pages, before, strict=True))
        room = num_bytes - used(pages, groups)
        assert room < sum(group.page_bytes for group in groups) + groups[0].page_bytes * max(1, 64 // block)
        before = pages


def test_windows_and_states_leave_memory_to_the_others() -> None:
    """What a window or a state cannot use goes to full attention: with much memory nearly all of it."""
    for name in ("gemma3", "qwen3_next"):
        groups = model_of(name).groups(16, 512)
        pages = pages_in(256 * MIB, groups, Load(16, 8, 128))
        assert pages[0] * groups[0].page_bytes > 0.5 * 256 * MIB and pages[1] < pages[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("host", [0, 3 * MIB])
def test_an_engine_that_fits(name: str, host: int) -> None:
    """The memory it really takes is within the bytes, on both tiers; the longest request it may get is served."""
    config = fitting(model_of(name), 4 * MIB, host, max_sequences=4, max_num_tokens=64, block_size=8)
    with Engine(model_of(name), config) as engine:
        device = sum(arena.numel() for arena in engine.pages.arenas)
        assert 3 * MIB < device <= 4 * MIB
        assert len(engine.pages.tiers) == 1 + (host > 0)
        for tier in engine.pages.tiers[1:]:
            info = tier.info()
            total = sum(slots * size for slots, size in zip(info.num_slots, info.page_bytes, strict=True))
            assert 2 * MIB < total <= host
        assert config.max_length == families.MAX_LENGTH
        runs = [engine.submit(words(0, config.max_length - 4), plain(4)), engine.submit(words(9, 20), plain(4))]
        finish(engine)
        assert_exact(name, runs)


@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_that_runs(name: str) -> None:
    """The error names the least; with that many bytes there is an engine, and it answers."""
    settings: dict[str, Any] = {"max_sequences": 1, "max_num_tokens": 16, "block_size": 8, "max_length": 16}
    with pytest.raises(
        InputError, match=r"device memory of 1000 bytes: two blocks take \d+ bytes; give more memory"
    ) as refused:
        fitting(model_of(name), 1000, **settings)
    least = int(str(refused.value).split("take ")[1].split()[0])
    with pytest.raises(InputError, match="two blocks take"):
        fitting(model_of(name), least - 1, **settings)
    with Engine(model_of(name), fitting(model_of(name), least, **settings)) as engine:
        assert sum(arena.numel() for arena in engine.pages.arenas) == least
        run = engine.submit(words(0, 9), plain(4))
        finish(engine)
        assert_exact(name, [run])


@pytest.mark.parametrize("num_bytes", [0, -1, -(1 << 40), 1])
def test_no_memory_at_all(num_bytes: int) -> None:
    with pytest.raises(InputError, match=f"a cache of {num_bytes} bytes"):
        pages_in(num_bytes, (FULL, NEAR), Load(16, 4, 64))
    with pytest.raises(
        InputError, match="not an amount of memory" if num_bytes < 0 else f"device memory of {num_bytes} bytes"
    ):
        fitting(model_of("llama"), num_bytes)


def test_too_little_memory_on_the_host() -> None:
    for amount, said in ((1, "1 bytes"), ("7 kB", "7 kB")):
        with pytest.raises(InputError, match=f"^host memory of {said}: two blocks take .* bytes; give more memory$"):
            fitting(model_of("llama"), 64 * MIB, amount)


@pytest.mark.parametrize("name", NAMES)
def test_more_memory_than_pages_can_be_counted(name: str) -> None:
    """The error speaks of bytes and of the one of the two that is too large; the most that it names is enough."""
    fact = r"this model's pages can fill at most \d+ bytes \(.*B\); give less"
    for amount, said in ((1 << 62, f"{1 << 62} bytes"), ("1000TB", "1000TB"), (" 9000000TB", "9000000TB")):
        with pytest.raises(InputError, match=f"^device memory of {said}: {fact}$"):
            fitting(model_of(name), amount)
        with pytest.raises(InputError, match=f"^host memory of {said}: {fact}$") as no:
            fitting(model_of(name), 64 * MIB, amount)
    most = int(str(no.value).split("at most ")[1].split()[0])
    config = fitting(model_of(name), 64 * MIB, most)
    assert config.cache_config(model_of(name).groups(16, 256)).tiers[1].slots == config.host_pages
    with pytest.raises(InputError, match=f"^host memory .* at most {most} bytes"):
        fitting(model_of(name), 64 * MIB, 2 * most)


@pytest.mark.parametrize(("device", "host", "which"), [(1 << 20, 0, "device"), (1, 1 << 20, "host")])
def test_memory_that_cannot_be_had(device: int, host: int, which: str) -> None:
    """More than any process can address, in a few large pages."""
    model, block = model_of("llama"), 1 << 20
    tiers = [TierConfig("device", device), TierConfig("host", host)][: 1 + (host > 0)]
    config = CacheConfig(tiers, block_size=block, groups=model.groups(block, block))
    with pytest.raises(InputError, match=f"^{which} memory of 562.9 TB: it cannot be had here .*; give less$") as told:
        Pages(model, config)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("wrong", [1.5, "4 apples", None, True, [1]])
def test_what_is_no_amount_of_memory(wrong: Any) -> None:
    with pytest.raises(InputError, match="it is not an amount of memory; write 40GB, 512MiB or a number of bytes"):
        fitting(model_of("llama"), wrong)


def test_memory_is_written_as_everywhere() -> None:
    wanted = fitting(model_of("llama"), 64 * MIB, 10**7)
    assert wanted == fitting(model_of("llama"), "64MiB", "10MB") == fitting(model_of("llama"), "67108864", "10 mb")


def test_settings_pass_through_and_are_checked() -> None:
    config = fitting(model_of("llama"), 64 * MIB, block_size=32, max_chunk=64, reuse=False, max_sequences=7)
    assert (config.block_size, config.max_chunk, config.reuse, config.max_sequences) == (32, 64, False, 7)
    orders = (config, fitting(model_of("llama"), 64 * MIB, eviction="lru"))
    assert [one.cache_config((LayerGroup(),)).order for one in orders] == ["adaptive", "lru"]
    apart = (LayerGroup(), LayerGroup("window", window=64))
    assert EngineConfig(64).cache_config(apart).order == "lru"  # where "auto" does not learn
    for order in ("oldest", "empty_first", 1):
        with pytest.raises(InputError, match=f"eviction {order!r}: it is not a known order"):
            fitting(model_of("llama"), 64 * MIB, eviction=order)
    with pytest.raises(InputError, match="block_size 0"):
        fitting(model_of("llama"), 64 * MIB, block_size=0)
    with pytest.raises(InputError, match="max_num_tokens 16"):
        fitting(model_of("llama"), 64 * MIB, max_num_tokens=16)
    with pytest.raises(InputError, match="max_chunk 0"):
        fitting(model_of("llama"), 64 * MIB, max_chunk=0)
    for wrong in (-1, 1.5, True):
        with pytest.raises(InputError, match=f"snapshot_decoding {wrong}: it is not a whole number"):
            fitting(model_of("llama"), 64 * MIB, snapshot_decoding=wrong)


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_has_the_pages_of_the_model(name: str, tmp_path: Path) -> None:
    """So that memory which cannot suffice is refused before the weights are read."""
    families.build(name).save_pretrained(tmp_path)
    plan, whole = outline(tmp_path), load(tmp_path)
    assert plan is not None and plan.groups(16, 64) == whole.groups(16, 64)
    assert plan.max_length == whole.max_length and plan.dtype == whole.dtype
    assert all(one.device.type == "meta" for one in plan.module.parameters())
    assert fitting(plan, "64MiB") == fitting(whole, "64MiB")
    check_room(plan, "cpu", "64MiB")


def test_what_is_no_model_has_no_outline(tmp_path: Path) -> None:
    assert outline(tmp_path) is None and outline(tmp_path, dtype="wide") is None


def test_pages_have_to_fit_beside_the_weights() -> None:
    check_total(10 * MIB, "6MiB", 16 * MIB)
    with pytest.raises(InputError, match=r"give at most 6\.3 MB"):
        check_total(10 * MIB, "6MiB", 16 * MIB - 1)
    with pytest.raises(InputError, match="give at most 0 B"):
        check_total(10 * MIB, "6MiB", 1 * MIB)
