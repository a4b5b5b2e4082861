"""What an operator writes for memory, and what is told at start: bytes, parts of a machine, and what fits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from quire import InputError
from quire.integrations.vllm.common.cache_groups import HOST, cache_config
from quire.integrations.vllm.common.connector_options import ConnectorOptions, check_nodes, read_options
from quire.integrations.vllm.common.memory_sizes import disk_bytes, host_bytes
from quire.integrations.vllm.reports.what_fits import fits_line, num_tokens
from quire.tiers.host_limit import memory_limit
from tests.integrations.test_vllm_options import PLACE, full, group, model
from tests.integrations.toy_parts import SlidingWindowSpec
from tests.museum.test_memory import group_files

SMALL = 1 << 30  # bytes that a container may have


def box(root: Path) -> Path:
    """A machine of 16 GiB with a container of one."""
    return group_files(root, "0::/\n", {"sys/fs/cgroup/memory.max": f"{SMALL}\n"})


def test_a_percentage_is_of_what_the_container_may_have(tmp_path: Path) -> None:
    root = box(tmp_path)
    assert host_bytes("20%", root) == SMALL // 5 and host_bytes(" 12.5 % ", root) == SMALL // 8
    assert host_bytes("64GiB", root) == 64 << 30 and host_bytes(4096, root) == 4096  # bytes are bytes, anywhere
    for wrong in ("0%", "101%"):
        with pytest.raises(InputError, match=f"memory of '{wrong}': it is not a part of a whole; write 1% to 100%"):
            host_bytes(wrong, root)
    for wrong in ("%", "-5%", "20 percent"):
        with pytest.raises(InputError, match="it is not an amount of memory"):
            host_bytes(wrong, root)
    with pytest.raises(InputError, match="cannot be read here; write 40GB"):
        host_bytes("20%", tmp_path / "nothing")


def test_a_percentage_of_a_disk_is_of_its_file_system(tmp_path: Path) -> None:
    total = shutil.disk_usage(tmp_path).total
    assert disk_bytes("50%", str(tmp_path / "not" / "yet" / "there")) == total // 2
    assert disk_bytes("2GB", None) == 2 * 10**9
    with pytest.raises(InputError, match="a disk of '50%': it has no folder"):
        disk_bytes("50%", None)


def test_options_take_percentages(tmp_path: Path) -> None:
    limit = memory_limit()
    if limit is None:  # not Linux: how much there is cannot be read
        with pytest.raises(InputError, match="write 40GB"):
            read_options({"host": "20%"})
        return
    options = read_options({"host": "20%", "disk": str(tmp_path), "disk_bytes": "10%"})
    assert options.host == int(limit * 0.2)
    assert options.disk_bytes == int(shutil.disk_usage(tmp_path).total * 0.1)


def test_a_percentage_is_of_one_machine() -> None:
    check_nodes({"host": "20%"}, 1)
    check_nodes({"host": "20GB"}, 2)
    with pytest.raises(InputError, match="host memory of '20%': the ranks are on 2 machines"):
        check_nodes({"host": "20%"}, 2)


def made(options: ConnectorOptions, *groups: Any, page_bytes: int = 0) -> Any:
    told: dict[str, Any] = {"world_size": 1, "max_length": 1024, "events": False, "page_bytes": page_bytes}
    return cache_config(model(*groups), options, **told)


def test_what_fits_is_counted_in_tokens() -> None:
    options = ConnectorOptions(100 * PLACE)
    assert num_tokens(made(options, group(full(), "a")), HOST, 320) == 1600
    window = SlidingWindowSpec(block_size=16, page_size_bytes=50, sliding_window=65, extra_retained_tokens=0)
    both = made(options, group(full(), "a"), group(window, "b"))
    assert num_tokens(both, HOST, 320) == 100 * 320 // (20 + 4)  # 20 blocks, and the last 4 of the window
    assert num_tokens(both, HOST, 32) == 100 * 32 // (2 + 2)


def test_one_line_tells_what_fits(tmp_path: Path) -> None:
    options = ConnectorOptions(100 * PLACE, disk=str(tmp_path), disk_bytes=200 * PLACE, shared="redis://u:secret@h")
    config = made(options, group(full(), "a"), page_bytes=PLACE)
    line = fits_line(config, options, length=320, limit=10**9, restored=7)
    slots = config.tiers[2].slots
    assert isinstance(slots, int) and 100 < slots <= 200
    assert line.startswith("Quire keeps pages of 16 tokens, texts counted at 320; host ")
    assert "of 1.0 GB: 100 pages, 1,600 tokens; disk " in line and "\n" not in line
    assert f": {slots} pages, {slots * 16:,} tokens, 7 found there; a shared store" in line and "secret" not in line
    plain = fits_line(made(ConnectorOptions(10**6), group(full())), ConnectorOptions(10**6), length=320, limit=None)
    assert "disk" not in plain and "host 1.0 MB: " in plain
    two = fits_line(
        made(options, group(full(), "a"), group(full(), "b"), page_bytes=PLACE), options, length=320, limit=1
    )
    assert "pages of 16 tokens of one of 2 groups" in two
