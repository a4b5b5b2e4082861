"""The connector beside vLLM's base class, in every version that it runs under: its hooks, and what they are given."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from quire.integrations.vllm.common.connector_options import TESTED
from tests.integrations.operating.vllm_base import FILE, HOOKS, READ, SINCE, changes, of_version, signatures
from tests.integrations.operating.vllm_next import base_classes, is_newer, overlay
from tests.integrations.plugs.offload_base import POLICY_FILE, TIER_FILE, known_policy, known_tier

ROOT = Path(__file__).resolve().parents[3]
CONNECTOR = ROOT / "quire" / "integrations" / "vllm" / "connector.py"
OURS = {"_as_event", "_open", "_scheduler", "_worker", "announce", "open_mover"}  # called by us alone
BASE = """
class KVConnectorBase_V1(ABC):
    def __init__(self, vllm_config, role, kv_cache_config): ...
    @property
    def role(self): ...
    def start_load_kv(self, forward_context, **kwargs: Any) -> None: ...
    @classmethod
    def build_kv_connector_stats(cls, data: dict | None = None): ...
    def fresh(self, one, *more, two=3): ...
class Other:
    def hidden(self): ...
"""


def test_every_hook_takes_what_vllm_gives_it() -> None:
    ours = signatures(CONNECTOR.read_text(), ("QuireConnector",))
    assert {name: given for name, given in ours.items() if name not in OURS} == {
        name: HOOKS[name] for name in ours if name not in OURS
    }
    assert {"supports_sleep_mode", "unregister_kv_caches", "restore_kv_caches"} <= ours.keys() & SINCE.keys()


def test_the_table_has_the_versions_that_the_connector_accepts() -> None:
    assert READ == TESTED
    assert of_version("0.33.0").keys() - of_version("0.32.1+cpu").keys() == SINCE.keys()
    assert of_version("0.33.1") == of_version("1.0") == HOOKS


def test_what_changed_in_a_base_class_is_told() -> None:
    found = signatures(BASE)
    assert found == {
        "__init__": "vllm_config role kv_cache_config", "role": "", "start_load_kv": "forward_context **kwargs",
        "build_kv_connector_stats": "data=", "fresh": "one *more two=",
    }  # fmt: skip
    known = {name: found[name] for name in found if name != "fresh"} | {"role": "which", "old": "a b="}
    assert changes(found, known) == [
        "new: fresh(one *more two=)", "gone: old(a b=)", "changed: role(which) is now ()",
    ]  # fmt: skip
    assert changes(found, found) == []


def test_all_three_base_classes_are_compared(tmp_path: Path) -> None:
    """As `make vllm-next` prints it."""
    classes = {FILE: ("KVConnectorBase_V1", HOOKS), POLICY_FILE: ("CachePolicy", known_policy("0.33")),
               TIER_FILE: ("SecondaryTierManager", known_tier("0.33"))}  # fmt: skip
    for file, (name, table) in classes.items():
        methods = [f"    def {method}({', '.join(['self', *map(_argument, given.split())])}): ..."
                   for method, given in table.items()]  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("\n".join([f"class {name}:", *methods]))
    found = list(base_classes(tmp_path, "0.33.0"))
    assert len(found) == 3 and all("is as the table has it" in line for line in found)
    source = (tmp_path / TIER_FILE).read_text()
    (tmp_path / TIER_FILE).write_text(f"{source}\n    def fresh(self, one): ...")
    (tmp_path / POLICY_FILE).unlink()
    found = list(base_classes(tmp_path, "0.33.0"))
    assert found[1:3] == ["== vLLM 0.33.0: the base class of policies has changed", f"gone: {POLICY_FILE}"]
    assert found[3:] == ["== vLLM 0.33.0: the base class of tiers has changed", "new: fresh(one)"]


def _argument(given: str) -> str:
    return f"{given}None" if given.endswith("=") else given


def test_newer_files_go_over_the_kernels_that_are_there(tmp_path: Path) -> None:
    wheel, kernels = tmp_path / "vllm-0.34.0-cp38-abi3-linux.whl", tmp_path / "vllm"
    (kernels / "inner").mkdir(parents=True)
    (kernels / "inner" / "_C.abi3.so").write_text("of the CPU")
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(FILE, BASE)
        packed.writestr("vllm/_version.py", "version = '0.34.0'")
        packed.writestr("vllm/_C.abi3.so", "of a GPU")
        packed.writestr("vllm-0.34.0.dist-info/METADATA", "Version: 0.34.0\n")
    overlay(wheel, kernels, tmp_path / "made")
    assert (tmp_path / "made" / FILE).read_text() == BASE
    assert [file.relative_to(tmp_path / "made").as_posix() for file in (tmp_path / "made").rglob("*.so")] == [
        "vllm/inner/_C.abi3.so"
    ]
    assert (tmp_path / "made" / "vllm" / "_version.py").read_text() == "version = '0.34.0+cpu'"
    assert "0.34.0+cpu" in (tmp_path / "made" / "vllm-0.34.0+cpu.dist-info" / "METADATA").read_text()


def test_versions_are_compared_by_their_numbers() -> None:
    assert is_newer("0.33.0", "0.32.9") and is_newer("0.100.0", "0.33.0+cpu")
    assert not is_newer("0.32.0+cpu", "0.32.0") and not is_newer("0.9.2", "0.32.0")


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".vllm-env").exists(), reason="no vLLM: make vllm-env")
def test_the_table_is_what_the_installed_vllm_has() -> None:
    (base,) = (ROOT / ".vllm-env").glob(f"lib/python3*/site-packages/{FILE}")
    assert changes(signatures(base.read_text()), of_version("0.32")) == []
