"""docs/vllm.md: its commands start what they say, and it stays short enough to be read."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from quire.integrations.vllm.common.cache_groups import check_engine
from quire.integrations.vllm.common.connector_options import TESTED, ConnectorOptions, read_options

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "vllm.md").read_text()
MOST_WORDS = 2500


def commands() -> list[dict[str, Any]]:
    """The --kv-transfer-config of each `vllm serve`, as a shell passes it on."""
    lines = re.findall(r"^\$ (vllm serve .*)$", PAGE, re.MULTILINE)
    words = [shlex.split(line) for line in lines]
    assert all(one[:4] == ["vllm", "serve", "MODEL", "--kv-transfer-config"] and len(one) == 5 for one in words)
    return [json.loads(one[4]) for one in words]


def test_each_command_is_read_into_options() -> None:
    told = commands()
    for one in told:
        assert (one["kv_connector"], one["kv_connector_module_path"]) == ("QuireConnector", "quire.integrations.vllm")
        check_engine(None, None, one["kv_role"])
    host, disk, shared = (read_options(one["kv_connector_extra_config"]) for one in told)
    assert host == ConnectorOptions(40 * 10**9)
    assert disk == ConnectorOptions(64 << 30, disk="/mnt/nvme/quire", disk_bytes=500 * 10**9)
    assert shared.outer and shared.disk is None and str(shared.shared).startswith("redis://")


def test_the_page_has_every_option_and_version_and_is_short() -> None:
    table = PAGE[PAGE.index("| option |") : PAGE.index("## Models")]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} == {
        one.name for one in fields(ConnectorOptions)
    }
    assert all(version in PAGE for version in TESTED)
    assert len(re.findall(r"\S*\w\S*", PAGE)) <= MOST_WORDS  # strokes of tables are none
