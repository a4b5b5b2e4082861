"""vLLM's base classes of policies and tiers, as tables: what their methods are given, by version. Needs no vLLM."""

from __future__ import annotations

from tests.integrations.operating.vllm_base import signatures

READ = ("0.32", "0.33")  # versions that the tables were read from
POLICY_FILE = "vllm/v1/kv_offload/cpu/policies/base.py"
TIER_FILE = "vllm/v1/kv_offload/tiering/base.py"
POLICY = {
    "__init__": "cache_capacity",
    "get": "key",
    "insert": "key chunk",
    "remove": "key",
    "touch": "keys req_context",
    "on_store_miss": "keys req_context",
    "on_request_finished": "key_groups insertion_only_keys reused_keys req_context",
    "evict": "n protected",
    "clear": "",
    "mark_evictable": "key",
    "mark_non_evictable": "key",
}
POLICY_LATER = {"insert": "key chunk req_context", "on_request_access": "keys req_context"}  # from 0.33 on
TIER = {
    "__init__": "offloading_spec primary_kv_view tier_type backpressure_detector=",
    "__init_subclass__": "**kwargs",
    "block_size_bytes": "",
    "bp_detector": "",
    "build_metric_definitions": "extra_config",
    "drain_jobs": "",
    "get_finished_jobs": "",
    "get_stats": "",
    "has_pending_work": "",
    "lookup": "key req_context",
    "on_new_request": "req_context",
    "on_request_finished": "req_context",
    "on_schedule_end": "context",
    "serve_external_requests": "parent",
    "shutdown": "",
    "submit_load": "job_metadata",
    "submit_store": "job_metadata",
    "take_events": "",
    "touch": "keys req_context",
}
TIER_LATER = {"config_info": "", "config_info_keys": "tier_config"}  # from 0.33 on


def known_policy(version: str) -> dict[str, str]:
    return POLICY | (POLICY_LATER if _minor(version) >= [0, 33] else {})


def _minor(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def policy_of(source: str) -> dict[str, str]:
    return signatures(source, ("CachePolicy",))


def tier_of(source: str) -> dict[str, str]:
    return signatures(source, ("SecondaryTierManager",))


def known_tier(version: str) -> dict[str, str]:
    return TIER | (TIER_LATER if _minor(version) >= [0, 33] else {})
