"""Weights of the Talker and of its vocoder, by their names on disk."""

from __future__ import annotations

from typing import Any

import torch

from omni_ming.tiny.draw import Draw, Tensors, qwen2

TIME_FREQUENCIES = 256
STOP_BIAS = (-0.55, 0.55)
"""Replies of seed 0 want to stop too early, which is not allowed, and again some steps later."""
AGGREGATOR_LAYERS = 4
"""Of the vocoder's encoder, whatever its config says."""


def talker_weights(
    llm: dict[str, Any], config: dict[str, Any], generator: torch.Generator
) -> Tensors:
    """All tensors of talker/model.safetensors; `llm` is talker/llm/config.json and `config`
    talker/config.json."""
    draw, hidden = Draw(generator), llm["hidden_size"]
    qwen2(draw, "model.", llm)
    _flow(draw, config["flowmodel"], hidden)
    _aggregator(draw, config["aggregator"], hidden)
    draw.matrix("stop_head.weight", 2, hidden, 2.0)
    draw.tensors["stop_head.bias"] = torch.tensor(STOP_BIAS)
    draw.linear("spk_head", hidden, config["spk_dim"])
    return draw.tensors


def _flow(draw: Draw, config: dict[str, Any], condition: int) -> None:
    at, width = "cfm.model.", config["hidden_size"]
    draw.linear(f"{at}t_embedder.time_mlp.0", width, TIME_FREQUENCIES, 2.0)
    draw.linear(f"{at}t_embedder.time_mlp.2", width, width)
    draw.linear(f"{at}x_embedder", width, config["in_channels"])
    draw.linear(f"{at}c_embedder.cond_embedder", width, condition)
    _blocks(draw, at, config, config["in_channels"])


def _aggregator(draw: Draw, config: dict[str, Any], outputs: int) -> None:
    at, width = "aggregator.", config["hidden_size"]
    draw.normal(f"{at}word_embedder.weight", (1, width))
    draw.linear(f"{at}x_embedder", width, config["in_channels"])
    _blocks(draw, at, config, outputs)


def _blocks(draw: Draw, prefix: str, config: dict[str, Any], outputs: int) -> None:
    width, head_dim = config["hidden_size"], config["hidden_size"] // config["num_heads"]
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    draw.tensors[f"{prefix}rotary_embed.inv_freq"] = 1.0 / (10000**exponents)
    for block in range(config["depth"]):
        at = f"{prefix}blocks.{block}"
        draw.norm(f"{at}.norm1.weight", width)
        draw.norm(f"{at}.norm2.weight", width)
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            draw.linear(f"{at}.attn.{name}", width, width)
        draw.linear(f"{at}.mlp.ff.0.0", 4 * width, width)
        draw.linear(f"{at}.mlp.ff.2", width, 4 * width)
    draw.norm(f"{prefix}final_layer.norm_final.weight", width)
    draw.linear(f"{prefix}final_layer.linear", outputs, width)


def vae_weights(config: dict[str, Any], generator: torch.Generator) -> Tensors:
    """All tensors of talker/vae/model.safetensors; `config` is talker/vae/config.json."""
    draw, encoder, decoder = Draw(generator), config["enc_kwargs"], config["dec_kwargs"]
    hidden, latent = encoder["backbone"]["hidden_size"], encoder["latent_dim"]
    qwen2(draw, "encoder.encoder.", encoder["backbone"])
    qwen2(draw, "encoder.aggregator.", encoder["backbone"], AGGREGATOR_LAYERS)
    draw.normal("encoder.cls_embed", (1, 1, hidden), 0.02)
    draw.matrix("encoder.fc1.weight", hidden, encoder["input_dim"], 4.0)
    draw.linear("encoder.fc2", hidden, hidden)
    draw.linear("encoder.fc3", 2 * latent, hidden)
    draw.layer_norm("encoder.norm", hidden)
    qwen2(draw, "decoder.decoder.", decoder["backbone"])
    draw.linear("decoder.fc1", hidden, latent)
    window = 4 * decoder["output_dim"]
    draw.linear("decoder.head.out", window + 2, hidden)
    draw.tensors["decoder.head.istft.window"] = torch.hann_window(window)
    return draw.tensors
