"""QuirePolicy: Quire's learned order as the eviction policy of vLLM's own host cache. Needs vLLM; decides nothing.

    "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": ...,
        "eviction_policy": "QuirePolicy", "cache_policy_module_path": "quire.integrations.vllm.policy"}

docs/plugs.md says what it gives and what was run.
"""

from __future__ import annotations

import time
from typing import Literal

from quire.core.outside.key_ranking import Clock
from quire.core.records.errors import MissingExtra, say
from quire.core.store import StoreName
from quire.integrations.vllm.plugs.key_policy import KeyPolicy
from quire.integrations.vllm.plugs.versions import check_plug_version

try:
    import vllm
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
except ImportError as missing:
    cure = "run it inside the environment of vLLM 0.32 or 0.33: pip install quire-kv there"
    raise MissingExtra(
        say("quire.integrations.vllm.policy", f"it needs vLLM with cache policies ({missing})", cure)
    ) from missing


class QuirePolicy(KeyPolicy, CachePolicy):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Evicts what is worth least for its place, by what was asked again; as good as LRU where that is best."""

    def __init__(self, cache_capacity: int, clock: Clock = time.monotonic, store: StoreName = "auto") -> None:
        check_plug_version(type(self).__name__, vllm.__version__)
        CachePolicy.__init__(self, cache_capacity)
        KeyPolicy.__init__(self, cache_capacity, clock, store)


class QuireLruPolicy(QuirePolicy):
    """The same by age alone, to compare with; priorities and "never" count."""

    eviction: Literal["adaptive", "lru"] = "lru"
