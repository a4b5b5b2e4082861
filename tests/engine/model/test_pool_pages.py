"""Pages of Gemma-3 shapes: groups of equally many layers in one pool, one memory per tier, and the same answers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from quire import InputError, LayerGroup  # noqa: E402
from quire.engine import LLM, Engine, EngineConfig, Model, from_module, load  # noqa: E402
from quire.engine.model.layers import KvShape  # noqa: E402
from quire.engine.setup.fitting import Load, fitting, pages_in  # noqa: E402

from .. import families  # noqa: E402
from ..reference import Reference, assert_same  # noqa: E402
from ..steps import SMALL, assert_exact, finish, model_of, open_engine, plain, words  # noqa: E402

MIB = 1 << 20
POOLED = "gemma3_pool"


def gemma(kinds: str) -> Any:
    """A model with such layers: w reads a window, f everything."""
    names = {"w": "sliding_attention", "f": "full_attention"}
    types = [names[kind] for kind in kinds]
    shape: dict[str, Any] = families.SHAPE
    config = transformers.Gemma3TextConfig(
        num_hidden_layers=len(kinds), sliding_window=families.WINDOW, layer_types=types, **shape
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(families.SPREAD)
    return model.eval().requires_grad_(False)


def test_layers_are_split_into_groups_of_one_size() -> None:
    model = from_module(gemma("wwwwfwwwf"))
    assert [(shape.name, shape.layers, shape.padding) for shape in model.shapes if isinstance(shape, KvShape)] == [
        ("full", (4, 8), 0),
        ("window 1", (0, 1), 0),
        ("window 2", (2, 3), 0),
        ("window 3", (5, 6), 0),
        ("window 4", (7,), 1),
    ]
    groups = model.groups(8, 256)
    assert {group.page_bytes for group in groups} == {2 * 2 * 8 * 2 * 16 * 4} and {
        group.planes for group in groups
    } == {4}
    assert {group.pool for group in groups} == {"kv"}
    assert model.places[8] == (0, 1) and model.places[6] == (3, 1) and model.places[7] == (4, 0)


def test_a_switch_keeps_them_apart() -> None:
    model = from_module(gemma("wwwwfwwwf"), share_pool=False)
    assert [(group.name, group.pool, group.planes) for group in model.groups(8, 256)] == [
        ("full", None, 4),
        ("window", None, 14),
    ]
    for name in ("llama", "qwen3_next"):
        assert from_module(families.build(name)).shapes == from_module(families.build(name), share_pool=False).shapes
    with pytest.raises(InputError, match="share_pool 1: it is on or off; pass True or False"):
        from_module(families.build("llama"), share_pool=1)  # type: ignore[arg-type]


def test_an_llm_takes_the_switch(tmp_path: Any) -> None:
    gemma("wf").save_pretrained(tmp_path)
    assert [len(load(tmp_path, share_pool=share).shapes) for share in (True, False)] == [2, 2]
    for share in (True, False):
        with LLM(tmp_path, share_pool=share, device_bytes="1MiB") as llm:
            assert {shape.pool for shape in llm.model.shapes if isinstance(shape, KvShape)} == (
                {"kv"} if share else {None}
            )
    with pytest.raises(InputError, match="an LLM with share_pool=False: the model is loaded already; leave it out"):
        LLM(model_of(POOLED), share_pool=False)


def test_groups_of_a_pool_are_views_of_one_memory() -> None:
    with open_engine(POOLED, 30, 20) as engine:
        pages = engine.pages
        assert len({arena.data_ptr() for arena in pages.arenas}) == 1 and len(pages.arenas) == 3
        assert [info.num_bytes for info in (tier.info() for tier in pages.tiers)] == [
            slots * engine.cache.config.groups[0].page_bytes for slots in (30, 20)
        ]
        pages.kv[1][7, 0, 1, 2] = 5.0
        assert (pages.kv[0][7, 0, 1, 2] == 5.0).all() and (pages.kv[2][7, 0, 1, 2] == 5.0).all()
        for tiers in (pages.tiers, pages.once_more()):
            assert [tier.info().pool_of for tier in tiers] == [(0, 0, 0)] * 2
        host, again = pages.tiers[1], pages.once_more()[1]
        host.view(0)[3] = 9  # type: ignore[attr-defined]
        assert (again.view(2)[3] == 9).all()  # type: ignore[attr-defined]


def test_padded_pages_give_the_same_answers() -> None:
    """Two full layers, seven windows: five groups, one of them padded; pages go to the host and come back."""
    model, reference = from_module(gemma("wwwwfwwwf")), Reference(gemma("wwwwfwwwf"))
    engine = Engine(model, EngineConfig(90, 300, **SMALL))
    for _ in range(2):
        asks = [(words(40 * nth, 60 + 7 * nth), plain(9)) for nth in range(5)]
        runs = [engine.submit(*ask) for ask in asks]
        finish(engine)
        for (prompt, sampling), run in zip(asks, runs, strict=True):
            assert_same(reference, prompt, sampling, [run.answers[0].tokens])
    stats = [engine.cache.stats(group) for group in range(5)]
    assert sum(one.onboarded for one in stats) and sum(one.offloaded for one in stats)
    engine.close()


def test_pages_of_a_pool_are_those_of_its_groups() -> None:
    """Blocks of 16, four rows, chunks of 64: a window of 64 has room for 4 rows twice, and two chunks."""
    full = LayerGroup("full", page_bytes=1000, pool="kv")
    near = [LayerGroup(f"near {nth}", page_bytes=1000, window=64, pool="kv") for nth in range(2)]
    other = LayerGroup("other", page_bytes=500)
    apart = pages_in(
        400_000,
        (LayerGroup("full", page_bytes=1000), LayerGroup("near", page_bytes=2000, window=64), other),
        Load(16, 4, 64),
    )
    pages = pages_in(400_000, (full, *near, other), Load(16, 4, 64))
    assert pages == (apart[0] + 2 * apart[1], apart[2])
    assert pages[0] * 1000 + pages[1] * 500 <= 400_000


@pytest.mark.parametrize("host", [0, 3 * MIB])
def test_an_engine_that_fits(host: int) -> None:
    """The memory it really takes is within the bytes, on both tiers; the longest request it may get is served."""
    model = model_of(POOLED)
    config = fitting(model, 4 * MIB, host, max_sequences=4, max_num_tokens=64, block_size=8)
    assert isinstance(config.device_pages, tuple) and len(config.device_pages) == 1
    with Engine(model, config) as engine:
        assert 3 * MIB < engine.pages.tiers[0].info().num_bytes <= 4 * MIB
        assert engine.pages.arenas[0].numel() == engine.pages.tiers[0].info().num_bytes
        for tier in engine.pages.tiers[1:]:
            assert 2 * MIB < tier.info().num_bytes <= host
        runs = [engine.submit(words(0, config.max_length - 4), plain(4)), engine.submit(words(9, 20), plain(4))]
        finish(engine)
        assert_exact(POOLED, runs)


def test_more_memory_than_pages_can_be_counted() -> None:
    model: Model = model_of(POOLED)
    with pytest.raises(InputError, match=r"^device memory of 1000TB: this model's pages can fill at most") as no:
        fitting(model, "1000TB")
    most = int(str(no.value).split("at most ")[1].split()[0])
    config = fitting(model, most)
    assert config.cache_config(model.groups(16, 256)).tiers[0].slots == config.device_pages
