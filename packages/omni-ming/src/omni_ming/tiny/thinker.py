"""Weights of the Thinker and of its two towers, by their names on disk."""

from __future__ import annotations

import math
from typing import Any

import torch

from omni_ming.tiny.draw import Draw, Tensors

LOGIT_GAIN = 3.0
"""Wide margins between the likeliest tokens."""


def weights(config: dict[str, Any], generator: torch.Generator) -> Tensors:
    """All tensors of the root directory; `config` is config.json."""
    draw = Draw(generator)
    _language_model(draw, config["llm_config"])
    _vision(draw, config["vision_config"])
    _audio(draw, config["audio_config"], config["llm_config"]["hidden_size"])
    return draw.tensors


def _language_model(draw: Draw, config: dict[str, Any]) -> None:
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    draw.matrix("model.model.word_embeddings.weight", vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        _layer(draw, f"model.model.layers.{layer}", layer, config)
    draw.norm("model.model.norm.weight", hidden)
    draw.matrix("model.lm_head.weight", vocab, hidden, LOGIT_GAIN)


def _layer(draw: Draw, at: str, layer: int, config: dict[str, Any]) -> None:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    draw.norm(f"{at}.input_layernorm.weight", hidden)
    draw.norm(f"{at}.post_attention_layernorm.weight", hidden)
    rows = (heads + 2 * kv_heads) * head_dim
    draw.matrix(f"{at}.attention.query_key_value.weight", rows, hidden, 1.5)
    draw.matrix(f"{at}.attention.dense.weight", hidden, heads * head_dim)
    draw.norm(f"{at}.attention.q_norm.weight", head_dim)
    draw.norm(f"{at}.attention.k_norm.weight", head_dim)
    if layer < config["first_k_dense_replace"]:
        draw.gated_mlp(f"{at}.mlp", hidden, config["intermediate_size"])
        return
    experts, inner = config["num_experts"], config["moe_intermediate_size"]
    for router in ("gate", "image_gate", "audio_gate"):
        draw.matrix(f"{at}.mlp.{router}.weight", experts, hidden)
        draw.bias(f"{at}.mlp.{router}.expert_bias", experts, 0.1)
    for expert in range(experts):
        draw.gated_mlp(f"{at}.mlp.experts.{expert}", hidden, inner)
    draw.gated_mlp(f"{at}.mlp.shared_experts", hidden, inner)


def _vision(draw: Draw, config: dict[str, Any]) -> None:
    width, inner = config["hidden_size"], config["intermediate_size"]
    out = config["out_hidden_size"]
    patch = (config["temporal_patch_size"], config["patch_size"], config["patch_size"])
    draw.convolution("vision.patch_embed.proj", width, config["in_channels"], *patch)
    draw.normal("vision.pos_embed.weight", (config["num_position_embeddings"], width), 0.3)
    for block in range(config["depth"]):
        at = f"vision.blocks.{block}"
        draw.layer_norm(f"{at}.norm1", width)
        draw.layer_norm(f"{at}.norm2", width)
        draw.linear(f"{at}.attn.qkv", 3 * width, width)
        draw.linear(f"{at}.attn.proj", width, width)
        draw.linear(f"{at}.mlp.linear_fc1", inner, width)
        draw.linear(f"{at}.mlp.linear_fc2", width, inner)
    merged = width * config["spatial_merge_size"] ** 2
    _merger(draw, "vision.merger", width, merged, out)
    for level in range(len(config["deepstack_visual_indexes"])):
        _merger(draw, f"vision.deepstack_merger_list.{level}", merged, merged, out)
    for layer in (0, 2):
        draw.linear(f"linear_proj.{layer}", out, out)


def _merger(draw: Draw, at: str, normed: int, merged: int, out: int) -> None:
    draw.layer_norm(f"{at}.norm", normed)
    draw.linear(f"{at}.linear_fc1", merged, merged)
    draw.linear(f"{at}.linear_fc2", out, merged)


def _audio(draw: Draw, config: dict[str, Any], hidden: int) -> None:
    whisper, kernel = config["whisper_encoder_config"], config["ds_kernel_size"]
    width = whisper["n_state"]
    draw.convolution("audio.conv1", width, whisper["n_mels"], 3)
    draw.convolution("audio.conv2", width, width, 3)
    draw.tensors["audio.positional_embedding"] = _sinusoid(whisper["n_ctx"], width)
    for block in range(whisper["n_layer"]):
        at = f"audio.blocks.{block}"
        for name in ("query", "key", "value", "out"):
            if name == "key":
                draw.matrix(f"{at}.attn.{name}.weight", width, width)
            else:
                draw.linear(f"{at}.attn.{name}", width, width)
        draw.layer_norm(f"{at}.attn_ln", width)
        draw.layer_norm(f"{at}.mlp_ln", width)
        draw.linear(f"{at}.mlp.0", 4 * width, width)
        draw.linear(f"{at}.mlp.2", width, 4 * width)
    draw.layer_norm("audio.ln_post", width)
    draw.convolution("linear_proj_audio.0", hidden, width, kernel)
    draw.linear("linear_proj_audio.3", hidden, hidden)


def _sinusoid(length: int, width: int) -> torch.Tensor:
    """(length, width): Whisper's table of positions, which checkpoints store."""
    step = math.log(10000) / (width // 2 - 1)
    rates = torch.exp(-step * torch.arange(width // 2))
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], 1)
