"""Tiny models with random weights, one per kind of attention mix. Owns their configs and seeds; knows no engine.

Two models of one name have equal weights: the engine switches the attention of the model it gets, so the reference
needs one of its own.

Measured on 16 x 100 random tokens: logits with a standard deviation of 2.4, gaps between the two best of 0.55 in the
median and 0.007 in the lowest hundredth; the same tokens computed in chunks and steps instead of at once differ by at
most 3e-5. Four other tokens in the middle change the best token at half to nine tenths of the next 16 places.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

NAMES = ("llama", "gemma3", "qwen3_next")
POOLED = ("gemma3_pool",)  # as gemma3, and an engine keeps all its pages in one pool, which is what it does by itself
OWN_FORWARDS = ("qwen3", "qwen2", "mistral")  # as llama, but for norms of q and k, biases, and one window for all
RECURRENT = ("qwen3_next",)
VOCAB = 256
EOS = tuple(range(2, 10))  # several, so that some answers end early
FIRST_WORD = 16  # ids below it stand in no prompt
WINDOW = 24
MAX_LENGTH = 512
MELS = 8
PLACES = 22  # of the encoder: never a whole number of blocks
SPREAD = 3.0  # of the output layer
SHARE = 4.0  # of the one layer with attention among recurrent ones: a wrong page of it shall show
SLOW, FAST = 0.01, 0.1  # how fast recurrent heads forget; as initialized they would forget at once
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.1,  # attention weighs as much as the last token does, and answers repeat themselves at times
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": list(EOS),
}


def config_of(name: str) -> PretrainedConfig:
    """The config of one family."""
    shape: dict[str, Any] = SHAPE
    if name == "llama":
        return LlamaConfig(num_hidden_layers=2, **shape)
    if name == "qwen3":
        return Qwen3Config(num_hidden_layers=2, **shape)
    if name == "qwen2":
        return Qwen2Config(num_hidden_layers=2, **shape)
    if name == "mistral":
        return MistralConfig(num_hidden_layers=2, sliding_window=WINDOW, **shape)
    if name in ("gemma3", *POOLED):
        kinds = ["sliding_attention"] * 2 + ["full_attention"]
        return Gemma3TextConfig(num_hidden_layers=3, sliding_window=WINDOW, layer_types=kinds, **shape)
    assert name == "qwen3_next", name
    return Qwen3NextConfig(
        num_hidden_layers=3,
        layer_types=["linear_attention"] * 2 + ["full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        mlp_only_layers=[0, 1, 2],  # no experts: two that are nearly tied would be picked by rounding
        **shape,
    )


def build(name: str, seed: int = 1) -> PreTrainedModel:
    """A new model; the same name and seed give the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config_of(name), dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(SPREAD)
        for parameter, weight in model.named_parameters():
            if parameter.endswith("A_log"):
                weight.copy_(torch.linspace(SLOW, FAST, len(weight)).log())
            if name in RECURRENT and parameter.endswith("self_attn.o_proj.weight"):
                weight.mul_(SHARE)
    return model.eval().requires_grad_(False)


def build_whisper(seed: int = 1) -> WhisperForConditionalGeneration:
    """An encoder-decoder whose every step reads what it has heard."""
    config = WhisperConfig(
        vocab_size=VOCAB,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=MELS,
        max_source_positions=PLACES,
        max_target_positions=128,
        init_std=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WhisperForConditionalGeneration(config)
    return model.eval().requires_grad_(False)
