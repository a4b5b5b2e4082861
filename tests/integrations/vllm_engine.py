"""One run of a real vLLM on the CPU, with or without the connector: the same random requests, step by step. A process.

Writes what every request was answered, and how much of its prompt was cached, as JSON. `vllm_exact` compares two.
Small models with random weights, made from a config; SmolLM2 when its converted folder is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", VLLM_HOST_IP="127.0.0.1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind",
)  # fmt: skip
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 512, "max_position_embeddings": 2048, "torch_dtype": "float32", "initializer_range": 0.5,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6,
        "sliding_window": 96, "sliding_window_pattern": 3, "query_pre_attn_scalar": 32, "rope_theta": 1e6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "rope_local_base_freq": 1e4,
    },
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 4, "hidden_size": 128,
        "layer_types": ["conv", "full_attention"] * 2, "block_dim": 128, "conv_dim": 128, "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
    },
    "nemotron": {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "num_hidden_layers": 7,
        "hybrid_override_pattern": "M*MM*M-", "attention_head_dim": 32, "ssm_state_size": 16, "mamba_num_heads": 4,
        "mamba_head_dim": 32, "n_groups": 1, "conv_kernel": 4, "chunk_size": 32, "mlp_hidden_act": "relu2",
    },
    "deepseek": {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 2,
        "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "n_shared_experts": 1,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
    },
}  # fmt: skip
BLOCK = 32  # vLLM on the CPU: a multiple of 32
PAGE = {
    "llama": 2,
    "gemma3": 6,
    "lfm2": 4,
    "nemotron": 6,
    "deepseek": 3,
    "smollm2": 30,
}  # layers, for the size of the host memory
PAGE_BYTES = dict.fromkeys(SHAPES, BLOCK * 2 * 2 * 32 * 4) | {
    "smollm2": BLOCK * 2 * 3 * 64 * 4, "deepseek": BLOCK * (512 + 64) * 4,
}  # fmt: skip


def options() -> argparse.ArgumentParser:
    """Those of one run; `vllm_exact` passes them on."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", choices=[*SHAPES, "smollm2"], default="llama")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device-blocks", type=int, default=34)
    parser.add_argument("--host-blocks", type=int, default=96)
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument(
        "--draft", choices=["ngram", "model", "eagle", "mtp"], default="", help="how tokens are drafted"
    )
    parser.add_argument("--abort", action="store_true")
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--multi", action="store_true", help="as the second connector of a MultiConnector")
    parser.add_argument("--v2", action="store_true", help="vLLM's V2 model runner, its kernels interpreted: slow")
    parser.add_argument("--fault", default="")
    parser.add_argument("--below", choices=["disk", "shared", "both", "redis"], default="", help="host memory")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds: what is there counts, on a busy machine too")
    parser.add_argument("--max-len", type=int, default=640)
    parser.add_argument(
        "--gpu", action="store_true", help="several engines beside each other, and copies that take time"
    )
    parser.add_argument("--any-version", action="store_true", help="of vLLM")
    return parser


def interpret_kernels() -> None:
    """vLLM's V2 model runner needs Triton with a backend for the CPU, which nobody packs: its interpreter stands in.

    Before vLLM is imported, and in this process only, so with one rank.
    """
    os.environ.update(VLLM_USE_V2_MODEL_RUNNER="1", TRITON_INTERPRET="1")
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))


def leave_checkpoints_out() -> None:
    """Mamba2 writes a state from inside a step, which the CPU's kernel of vLLM 0.32 does not return: it raises.

    Without it vLLM ends a step where it keeps a state, as it does for other recurrent layers.
    """
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    if "get_kv_cache_spec" in vars(MambaMixer2):
        del MambaMixer2.get_kv_cache_spec


def model_folder(name: str, at: Path) -> tuple[str, dict[str, Any]]:
    if name == "smollm2":
        from quire.engine.model.smollm2 import folder

        return str(folder()), {}
    made = at / name
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.json").write_text(json.dumps(SMALL | SHAPES[name]))
    return str(made), {"load_format": "dummy"}


def drafter(kind: str, model: str, at: Path) -> dict[str, Any]:
    """vLLM's speculative_config. A small model drafts what the model itself would say: it has the same weights."""
    if kind == "ngram":
        return {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    if kind == "mtp":
        return {"method": "mtp", "num_speculative_tokens": 2}
    made = at / "eagle"
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.json").write_text(json.dumps(SMALL | SHAPES["llama"] | {"num_hidden_layers": 1}))
    named = {"model": ("draft_model", model), "eagle": ("eagle", str(made))}[kind]
    return {"method": named[0], "model": named[1], "num_speculative_tokens": 3}


def below(args: argparse.Namespace) -> dict[str, Any]:
    """Options of what is below host memory; folders beside the result, empty unless another run has filled them."""
    at = Path(args.out).parent / "below"
    told: dict[str, Any] = {"wait": args.wait}
    if args.below in ("disk", "both"):
        told |= {"disk": str(at / "disk"), "disk_bytes": "200MB"}
    if args.below in ("shared", "both"):
        told |= {"shared": str(at / "store")}
    if args.below == "both":
        told |= {"record": str(at / "trace.jsonl")}
    return told | {"shared": Redis.start(at).url} if args.below == "redis" else told


class Redis:
    """A server of its own, which is killed when half of the requests are served."""

    running: Redis | None = None

    def __init__(self, at: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        at.mkdir(parents=True, exist_ok=True)
        words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(at), "--save", ""]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        self.url = f"redis://127.0.0.1:{port}/0"

    @classmethod
    def start(cls, at: Path) -> Redis:
        cls.running = cls(at)
        return cls.running

    @classmethod
    def kill(cls) -> None:
        if cls.running is not None:
            cls.running.process.kill()
            cls.running.process.wait()
            cls.running = None


def engine(args: argparse.Namespace, connector: bool) -> Any:
    from vllm import LLM
    from vllm.config import KVTransferConfig

    folder, more = model_folder(args.model, Path(args.out).parent)
    if args.model == "nemotron":
        leave_checkpoints_out()
    if connector:
        host = args.host_blocks * PAGE[args.model] * PAGE_BYTES[args.model]
        ours = {
            "kv_connector": "FaultyConnector" if args.fault else "QuireConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "tests.integrations.vllm_faults" if args.fault else "quire.integrations.vllm",
            "kv_connector_extra_config": {"host": host, "receipts": True, "any_version": args.any_version}
            | (below(args) if args.below else {}),
        }  # fmt: skip
        more["kv_transfer_config"] = KVTransferConfig(**(among_others(ours) if args.multi else ours))
    if args.gpu:  # none may take a share of what is free
        more["kv_cache_memory_bytes"] = 1 << 30
    if args.draft:
        more["speculative_config"] = drafter(args.draft, folder, Path(args.out).parent)
    if args.events:
        more["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "null"}
    return LLM(
        folder, dtype="float32", enforce_eager=True, block_size=BLOCK, enable_prefix_caching=True, max_num_seqs=6,
        num_gpu_blocks_override=args.device_blocks, max_num_batched_tokens=192, enable_chunked_prefill=True,
        gpu_memory_utilization=0.1, disable_log_stats=False, async_scheduling=args.async_scheduling,
        skip_tokenizer_init=True, max_model_len=args.max_len, tensor_parallel_size=args.tp,
        distributed_executor_backend="mp" if args.tp > 1 else None, **more,
    )  # fmt: skip


def runner_of(llm: Any) -> str:
    """The module of the model runner that vLLM has taken, and those of its bases."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return " ".join(kind.__module__ for kind in type(worker.model_runner).__mro__)


def among_others(ours: dict[str, Any]) -> dict[str, Any]:
    """Behind another connector of a MultiConnector, whose own failure policy counts: ours cannot set it."""
    other = {
        "kv_connector": "QuietConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "tests.integrations.vllm_faults",
    }  # fmt: skip
    return {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [other, ours]},
    }  # fmt: skip


def workload(args: argparse.Namespace) -> list[tuple[str, list[int], int, bool]]:
    """Prompts that share beginnings, or come again cut to whole blocks: name, tokens, answer, whether it is aborted."""
    rng = random.Random(args.seed)
    roots = [[rng.randrange(3, 500) for _ in range(rng.choice([96, 200, 320]))] for _ in range(6)]
    lengths = [4, 12, 40] if args.model == "smollm2" else [5, 40, 120]
    made: list[tuple[str, list[int], int, bool]] = []
    for nth in range(args.requests):
        prompt = rng.choice(roots)[: rng.randrange(40, 330)]
        prompt = prompt + [rng.randrange(3, 500) for _ in range(rng.randrange(1, 60))]
        if made and rng.random() < 0.25:  # one that was here, of whole blocks
            prompt = rng.choice(made)[1]
            prompt = prompt[: max(BLOCK, len(prompt) // BLOCK * BLOCK)]
        made.append((f"r{nth}", prompt, rng.choice(lengths), args.abort and rng.random() < 0.15))
    return made


def serve(llm: Any, args: argparse.Namespace) -> dict[str, Any]:
    """All requests, up to eight at a time; aborts fall where the dice say."""
    from vllm import SamplingParams

    core, rng, todo = llm.llm_engine, random.Random(args.seed + 1), workload(args)
    answers: dict[str, Any] = {}
    cached: dict[str, int] = {}
    drafts: dict[str, list[int]] = {}
    doomed: set[str] = set()
    steps = 0
    while todo or core.has_unfinished_requests():
        while todo and core.get_num_unfinished_requests() < 8 and rng.random() < 0.7:
            name, prompt, count, aborted = todo.pop(0)
            asked = SamplingParams(max_tokens=count, temperature=0, detokenize=False, ignore_eos=True, logprobs=0)
            core.add_request(name, {"prompt_token_ids": prompt}, asked)
            if aborted:
                doomed.add(name)
        if len(answers) > args.requests // 2:
            Redis.kill()
        for name in sorted(doomed):
            if rng.random() < 0.1:
                core.abort_request([name])
                doomed.discard(name)
        for out in core.step():
            if out.finished:
                doomed.discard(out.request_id)
                one = out.outputs[0]
                if one.finish_reason == "length":
                    logprobs = [next(iter(step.values())).logprob for step in one.logprobs]
                    answers[out.request_id] = [list(one.token_ids), logprobs]
                    cached[out.request_id] = out.num_cached_tokens
                elif one.finish_reason != "abort":
                    raise SystemExit(f"{out.request_id} ended with {one.finish_reason}")
        if args.draft:
            drafts |= drafted(llm)
        steps += 1
        if steps > 400 * args.requests:
            raise SystemExit(f"{steps} steps, and requests are still open: a livelock")
    return {"answers": answers, "cached": cached, "drafts": drafts, "steps": steps}


def drafted(llm: Any) -> dict[str, list[int]]:
    """What a drafter proposes just now, by request and the tokens that it had to go on from."""
    running = llm.llm_engine.engine_core.engine_core.scheduler.running
    return {f"{one.request_id.rsplit('-', 1)[0]} {one.num_tokens}": list(one.spec_token_ids) for one in running}


def metrics(llm: Any) -> dict[str, float]:
    """What vLLM's /metrics would show of preemptions and of us."""
    names = ("vllm:num_preemptions", "vllm:spec_decode_num_accepted", "vllm:quire_")
    shown = [one for one in llm.get_metrics() if one.name.startswith(names) and hasattr(one, "value")]
    return {one.name: one.value for one in shown}


class EventLog:
    """Blocks in host memory, as vLLM's event stream tells them; every batch is encoded as its publisher does."""

    def __init__(self, llm: Any) -> None:
        from msgspec import msgpack

        self.encode = msgpack.Encoder().encode
        self.blocks: set[tuple[int, Any]] = set()
        self.stored = 0
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.kv_event_publisher.publish = self.publish

    def publish(self, batch: Any) -> None:
        self.encode(batch)
        for event in batch.events:
            if getattr(event, "medium", None) == "CPU":
                names = {(event.group_idx, name) for name in event.block_hashes}
                if type(event).__name__ == "BlockStored":
                    if len(event.token_ids) != BLOCK * len(event.block_hashes):
                        raise SystemExit("an event with other tokens than its blocks have")
                    self.stored += len(names)
                    self.blocks |= names
                else:
                    self.blocks -= names


def settle(llm: Any, events: EventLog | None, num_steps: int = 3) -> dict[str, Any]:
    """What the connector says of itself when all requests are over: nothing may be held."""
    from quire import check

    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    for _ in range(num_steps):
        llm.llm_engine.step()
        time.sleep(0.005 if num_steps > 3 else 0)  # copies go on behind us
    connectors = getattr(scheduler.connector, "sub_connectors", [scheduler.connector])
    side = connectors[-1].scheduler_side
    if side.outer is not None:
        rest(side.outer)
    recorded = {}
    if side.recording is not None:
        side.recording.close()
        recorded = {"recorded": side.recording.recorder.num_recorded}
    check(side.cache)
    side.counts.take()
    held = side.cache.usage(1).held  # all groups have one pool
    if side.num_open or held or side.cache.open_finds() or side.cache.open_writers():
        raise SystemExit(f"{side.num_open} stays and jobs are open, {held} pages held")
    pages = side.cache.usage(1).idle
    nameless = 0 if side.events is None else side.events.num_nameless  # of a disk, for requests that were over
    if events is not None and len(events.blocks) + nameless != pages:
        raise SystemExit(f"events tell of {len(events.blocks)} pages, there are {pages}, {nameless} without names")
    told = {} if events is None else {"event_blocks": events.stored, "event_nameless": nameless}
    return {"counts": side.counts.total | told | recorded, "groups": len(side.cache.config.groups)}


def rest(outer: Any) -> None:
    """What is on its way to a disk or a store has got there, or has failed."""
    if outer.keeper is not None:
        outer.keeper.flush(30.0)
    if outer.shared is not None and not outer.shared.wait_until_idle(120):
        raise SystemExit("pages are still on their way to the store")


def main() -> None:
    parser = argparse.ArgumentParser(parents=[options()])
    parser.add_argument("--connector", action="store_true")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.fault and args.connector:
        os.environ["QUIRE_FAULT"] = args.fault
    if args.v2:
        interpret_kernels()
    llm = engine(args, args.connector)
    if args.v2 and "v1.worker.gpu.model_runner" not in runner_of(llm):
        raise SystemExit(f"vLLM has taken another model runner: {runner_of(llm)}")
    events = EventLog(llm) if args.events else None
    begin = time.perf_counter()
    result = serve(llm, args)
    result["seconds"] = time.perf_counter() - begin
    if args.connector:
        result |= settle(llm, events, 60 if args.gpu else 3)
    shown = metrics(llm)
    result |= {"preemptions": int(shown.pop("vllm:num_preemptions", -1)), "metrics": shown}
    if args.connector and shown.get("vllm:quire_hit_tokens") != result["counts"].get("hit_tokens"):
        raise SystemExit(f"the metrics tell other numbers than the connector: {shown}")
    Path(args.out).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads do not end by themselves


if __name__ == "__main__":
    main()
