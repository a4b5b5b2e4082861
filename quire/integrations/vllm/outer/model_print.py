"""Model print: which pages on disk, or in a store, are this model's. Reads vLLM's config by the names of its fields.

Pages of another print are never found: a doubt costs a cache, never a wrong token.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from quire.core.records.config import CacheConfig
from quire.core.records.errors import InputError, say, shown
from quire.engine.model.smollm2 import cache_folder
from quire.integrations.vllm.common.cache_groups import DRAFT_LAYERS
from quire.integrations.vllm.outer.page_memory import MemoryShape
from quire.tiers.fingerprint import facts_digest, files_digest, files_identity, fingerprint

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
CONFIGS = ("config.json", "params.json", "*quant*.json", "*.py")  # what of a folder says how its weights are used
PASSING = ("transformers_version", "_name_or_path", "_commit_hash")  # of a config: no part of the model


def model_print(vllm_config: Any, cache: CacheConfig, shape: MemoryShape, version: str, namespace: str) -> bytes:
    """32 bytes for the model, its weights, vLLM's version and the form of a page with all ranks' parts."""
    model = vllm_config.model_config
    facts = {
        "vllm": version, "weights": weights_facts(model, vllm_config.load_config, namespace), "seed": model.seed,
        "config": config_facts(model.hf_config), "quantisation": str(model.quantization),
        "kv_dtype": str(vllm_config.cache_config.cache_dtype),
    }  # fmt: skip
    facts |= draft_facts(vllm_config, namespace)
    layout = f"{shape.ranks} ranks; {shape.form}" + ("; in one pool" if shape.groups > 1 else "")
    return fingerprint(cache, facts_digest(facts), dtype=str(model.dtype), layout=layout, namespace=namespace)


def draft_facts(vllm_config: Any, namespace: str) -> dict[str, str]:
    """The drafter's weights and config, where it has layers whose pages lie beside the model's."""
    drafts = vllm_config.speculative_config
    if drafts is None or drafts.method not in DRAFT_LAYERS:
        return {}
    model = drafts.draft_model_config
    weights = weights_facts(model, getattr(drafts, "draft_load_config", None) or vllm_config.load_config, namespace)
    return {"drafts": f"{drafts.method} {weights} {config_facts(model.hf_config)}"}


def config_facts(config: Any) -> str:
    """What a model's config says, without what is not part of the model."""
    told = {name: value for name, value in config.to_dict().items() if name not in PASSING}
    return json.dumps(told, sort_keys=True, default=str)


def weights_facts(model: Any, load: Any, namespace: str) -> str:
    """What identifies the weights: a commit of the hub, or a digest of their files."""
    if load.load_format == "dummy":
        return "dummy"
    if (found := local_weights(model.model)) is not None:
        return found
    if not Path(model.model).exists() and re.fullmatch(r"[0-9a-f]{40}", model.revision or ""):
        return f"{model.model} {model.revision}"
    if namespace:
        return f"{model.model} {model.revision}"
    fact = "neither files nor a commit say which weights they are"
    cure = "write namespace=..., and another one whenever the weights change"
    raise InputError(say(f"a disk or a store for {shown(model.model)}", fact, cure))


def local_weights(model: str) -> str | None:
    """A digest of the weights' files, if a model's name is a folder or file that has them."""
    if Path(model).is_dir():
        files = sorted({path for kind in WEIGHTS for path in Path(model).glob(kind)})
        return _kept_digest(files) if files else None
    return _kept_digest([Path(model)]) if Path(model).is_file() else None


def local_config(model: str) -> str | None:
    """A digest of the files beside the weights that say how they are used: rope, quantisation, code of its own."""
    if not Path(model).is_dir():
        return None
    files = sorted({path for kind in CONFIGS for path in Path(model).glob(kind) if path.is_file()})
    return files_digest(files).hex() if files else None


def _kept_digest(files: list[Path]) -> str:
    """Of the bytes of these files, in hex; kept for as long as the files do not change."""
    identity = files_identity(files)
    place = cache_folder() / "digests" / f"files-{identity}"
    if identity is not None:
        with contextlib.suppress(OSError, ValueError):
            known = place.read_text().strip()
            if len(bytes.fromhex(known)) == 32:
                return known
    digest = files_digest(files).hex()
    if identity is not None:
        with contextlib.suppress(OSError):  # it is made again next time
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = place.with_name(f"{place.name}.{os.getpid()}")
            own.write_text(digest)
            own.replace(place)
    return digest


class AdapterNames:
    """What a LoRA adapter is called where names outlive the process: by its files too, since a name may change hands.

    Adapters are digested once, when they are first used.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], str] = {}

    def name(self, lora: Any) -> str:
        """Of vLLM's LoRARequest."""
        key = (lora.lora_name, lora.lora_path, lora.lora_int_id)
        if lora.load_inplace or key not in self._known:
            self._known[key] = f"{lora.lora_name} {self._digest(Path(lora.lora_path))}"
        return self._known[key]

    def _digest(self, path: Path) -> str:
        files = [one for one in sorted(path.glob("*")) if one.is_file()] if path.is_dir() else []
        if not files:  # of the hub, or gone: known in this process only
            return os.urandom(16).hex()
        return files_digest(files).hex()
