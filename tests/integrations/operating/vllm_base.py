"""vLLM's base class of connectors, as a table: what its methods are given, by version. Reads sources; needs no vLLM."""

from __future__ import annotations

import ast
from collections.abc import Mapping

CLASSES = ("KVConnectorBase_V1", "SupportsHMA")
FILE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
READ = ("0.32", "0.33")  # versions that the table was read from
SINCE = {"supports_sleep_mode": "0.33", "unregister_kv_caches": "0.33", "restore_kv_caches": "0.33"}
# Without self or cls; "=" behind what has a default. All versions agree on what they have.
HOOKS = {
    "__init__": "vllm_config role kv_cache_config",
    "_get_connector_metadata": "",
    "bind_connector_metadata": "connector_metadata",
    "bind_gpu_block_pool": "gpu_block_pool",
    "bind_kv_cache_manager": "kv_cache_manager",
    "build_connector_meta": "scheduler_output",
    "build_connector_worker_meta": "",
    "build_kv_connector_stats": "data=",
    "build_prom_metrics": "vllm_config metric_types labelnames per_engine_labelvalues",
    "clear_connector_metadata": "",
    "finish_forward": "",
    "get_block_ids_with_load_errors": "",
    "get_external_cache_hit_sources": "request num_external_tokens",
    "get_finished": "finished_req_ids",
    "get_finished_count": "",
    "get_handshake_metadata": "",
    "get_kv_connector_kv_cache_events": "",
    "get_kv_connector_stats": "",
    "get_loaded_kv_cache_group_ids": "request",
    "get_mem_pool_context": "",
    "get_num_new_matched_tokens": "request num_computed_tokens",
    "get_required_kvcache_layout": "vllm_config",
    "get_transfer_results": "finished_req_ids",
    "handle_preemptions": "kv_connector_metadata",
    "has_connector_metadata": "",
    "has_pending_block_frees": "",
    "has_pending_push_work": "",
    "on_new_request": "request",
    "register_finished_partial_tail": "request block_ids partial_tail_offloads",
    "register_kv_caches": "kv_caches",
    "request_finished": "request block_ids",
    "request_finished_all_groups": "request block_ids",
    "requires_kv_delivery": "",
    "requires_piecewise_for_cudagraph": "extra_config",
    "reset_cache": "",
    "reset_capture_state": "",
    "restore_kv_caches": "",
    "role": "",
    "save_kv_layer": "layer_name kv_layer attn_metadata **kwargs",
    "set_host_xfer_buffer_ops": "copy_operation",
    "set_xfer_handshake_metadata": "metadata",
    "set_xfer_handshake_metadata_pp_aware": "metadata",
    "shutdown": "",
    "start_load_kv": "forward_context **kwargs",
    "supports_divergent_local_hybrid_hits": "",
    "supports_sleep_mode": "kv_transfer_config",
    "take_events": "",
    "unregister_kv_caches": "",
    "update_connector_output": "connector_output",
    "update_state_after_alloc": "request blocks num_external_tokens",
    "wait_for_layer_load": "layer_name",
    "wait_for_save": "",
}


def signatures(source: str, classes: tuple[str, ...] = CLASSES) -> dict[str, str]:
    """By method of these classes: what it is given, as in the table."""
    bodies = [one.body for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name in classes]
    return {
        method.name: _given(method.args)
        for body in bodies
        for method in body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _given(args: ast.arguments) -> str:
    names = [one.arg for one in [*args.posonlyargs, *args.args]]
    plain = len(names) - len(args.defaults)
    words = [name if nth < plain else f"{name}=" for nth, name in enumerate(names)][1:]
    words += [] if args.vararg is None else [f"*{args.vararg.arg}"]
    words += [f"{one.arg}=" for one in args.kwonlyargs]
    return " ".join(words + ([] if args.kwarg is None else [f"**{args.kwarg.arg}"]))


def of_version(version: str) -> dict[str, str]:
    """The table of one version, such as 0.32.1; of a version that was not read, the newest that was."""
    minor = [int(part) for part in version.split(".")[:2]]
    return {name: given for name, given in HOOKS.items()
            if name not in SINCE or [int(part) for part in SINCE[name].split(".")] <= minor}  # fmt: skip


def changes(found: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """What a base class has that the table has not, and the other way round; a line each."""
    lines = [f"new: {name}({found[name]})" for name in sorted(found.keys() - known.keys())]
    lines += [f"gone: {name}({known[name]})" for name in sorted(known.keys() - found.keys())]
    return lines + [
        f"changed: {name}({known[name]}) is now ({found[name]})"
        for name in sorted(found.keys() & known.keys())
        if found[name] != known[name]
    ]
