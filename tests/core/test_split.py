"""Layers of a model in groups of equal page size, and what they take as padding."""

from __future__ import annotations

import pytest

from quire import Cache, CacheConfig, InputError, LayerSplit, ModelLayer, TierConfig, split_layers

PAGE = 4096


def gemma(count: int, window: int = 512) -> list[ModelLayer]:
    """Every sixth layer reads all, the others a window."""
    return [ModelLayer(PAGE, None if nth % 6 == 5 else window) for nth in range(count)]


def shape(split: LayerSplit) -> tuple[list[int], list[int]]:
    """Layers of each group, and padding."""
    return [len(layers) for layers in split.layers], list(split.padded)


@pytest.mark.parametrize(
    ("count", "sizes", "padded"),
    [
        (18, [3] * 6, [0] * 6),  # 270m: 3 full
        (24, [4] * 6, [0] * 6),
        (26, [4] * 6 + [2], [0] * 6 + [2]),  # 1b: 4 full, 22 windows
        (34, [5] * 6 + [4], [0] * 6 + [1]),  # 4b: 5 full, 29 windows
        (48, [8] * 6, [0] * 6),  # 12b
        (62, [10] + [11] * 4 + [8], [1, 0, 0, 0, 0, 3]),  # 27b: 10 full, 52 windows
    ],
)
def test_shapes_of_gemma_3(count: int, sizes: list[int], padded: list[int]) -> None:
    layers = gemma(count)
    split = split_layers(layers)
    assert shape(split) == (sizes, padded)
    assert sorted(layer for group in split.layers for layer in group) == list(range(count))
    assert len({group.page_bytes for group in split.groups}) == 1
    for group, members, empty in zip(split.groups, split.layers, split.padded, strict=True):
        assert group.page_bytes == (len(members) + empty) * PAGE and group.planes == 2 * (len(members) + empty)
        assert {layers[layer].window for layer in members} == {group.window}
    assert split.padding == pytest.approx(sum(padded) / (sum(padded) + count))


def test_the_groups_make_a_cache_with_one_pool() -> None:
    split = split_layers(gemma(26))
    config = CacheConfig((TierConfig("device", 70), TierConfig("host", (140,))), groups=split.groups)
    assert config.num_pools == 1 and [group.name for group in split.groups] == [
        "full", "window 1", "window 2", "window 3", "window 4", "window 5", "window 6",
    ]  # fmt: skip
    assert {group.pool for group in split.groups} == {"kv"}
    Cache(config)


def test_a_layer_has_a_place() -> None:
    split = split_layers(gemma(26))
    assert split.place(5) == (0, 0) and split.place(23) == (0, 3)
    assert split.place(0) == (1, 0) and split.place(6) == (2, 1) and split.place(25) == (6, 1)
    with pytest.raises(InputError, match="layer 26: the model has 26"):
        split.place(26)


def test_as_many_layers_of_both_are_two_groups() -> None:
    layers = [ModelLayer(PAGE, 128 if nth % 2 else None) for nth in range(24)]
    assert shape(split_layers(layers)) == ([12, 12], [0, 0])
    assert shape(split_layers([*layers, ModelLayer(PAGE, 128)])) == ([12, 13], [1, 0])


def test_one_kind_is_one_group_and_shares_with_nobody() -> None:
    for window in (None, 128):
        split = split_layers([ModelLayer(PAGE, window)] * 7)
        assert shape(split) == ([7], [0]) and split.groups[0].pool is None and split.padding == 0
        assert split.groups[0].name == ("full" if window is None else "window")


def test_padding_is_as_much_as_is_allowed() -> None:
    assert shape(split_layers(gemma(26), max_padding=0)) == ([2] * 13, [0] * 13)
    assert shape(split_layers(gemma(26), max_padding=0.5)) == ([4, 8, 8, 6], [4, 0, 0, 2])
    assert len(split_layers(gemma(26), max_padding=0.9).groups) == 2
    few = [ModelLayer(PAGE), *[ModelLayer(PAGE, 128)] * 5]
    assert shape(split_layers(few)) == ([1] * 6, [0] * 6)  # the one full layer must not be padded


def test_layers_of_unlike_size_are_put_apart() -> None:
    layers = [*gemma(6), *[ModelLayer(2 * PAGE, 512)] * 3, ModelLayer(3 * PAGE), ModelLayer(3 * PAGE, 64)]
    split = split_layers(layers, pool="pages")
    assert [(group.name, group.pool, members) for group, members in zip(split.groups, split.layers, strict=True)] == [
        ("full of 4096", "pages of 4096", (5,)),
        *((f"window 512 of 4096 {nth + 1}", "pages of 4096", (nth,)) for nth in range(5)),
        ("window 512 of 8192", None, (6, 7, 8)),
        ("full of 12288", "pages of 12288", (9,)),
        ("window 64 of 12288", "pages of 12288", (10,)),
    ]
    config = CacheConfig((TierConfig("device", (12, 4, 8)),), groups=split.groups)
    assert config.pool_of == (0, 0, 0, 0, 0, 0, 1, 2, 2)


def test_rules_are_told_apart_by_window_and_sinks() -> None:
    layers = [ModelLayer(PAGE, 64), ModelLayer(PAGE, 64, sinks=4), ModelLayer(PAGE, 128), ModelLayer(PAGE)]
    split = split_layers(layers)
    assert [group.name for group in split.groups] == ["full", "window 64", "window 64 with 4 sinks", "window 128"]
    assert [(group.window, group.sinks) for group in split.groups] == [(None, 0), (64, 0), (64, 4), (128, 0)]


def test_it_says_what_it_made() -> None:
    assert str(split_layers(gemma(6))) == (
        "full: 1 layers; window 1: 1 layers; window 2: 1 layers; window 3: 1 layers; window 4: 1 layers; "
        "window 5: 1 layers; 0.0% padding"
    )
    assert str(split_layers(gemma(26))).endswith("window 6: 2 layers and room for 2; 7.1% padding")


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ([], [3], None):
        with pytest.raises(InputError, match="they are not a list of ModelLayer"):
            split_layers(wrong)  # type: ignore[arg-type]
    for share in (1, -0.1, "x", float("nan")):
        with pytest.raises(InputError, match=r"max_padding .*: it is not a share"):
            split_layers(gemma(6), max_padding=share)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="planes -1"):
        split_layers(gemma(6), planes=-1)
    with pytest.raises(InputError, match="a layer: page_bytes 0 is not a size"):
        ModelLayer(0)
    with pytest.raises(InputError, match="its window is 0"):
        split_layers([ModelLayer(PAGE), ModelLayer(PAGE, 0)])
