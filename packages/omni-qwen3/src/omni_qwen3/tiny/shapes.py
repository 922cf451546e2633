"""Names and shapes of every tensor of a Qwen3-Omni checkpoint, walked from its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]


def walk(config: dict[str, Any]) -> Named:
    """(name on disk, shape) of each tensor; of speech only what `config` has."""
    thinker = config["thinker_config"]
    yield from _moe_decoder("thinker.model", thinker["text_config"], "embed_tokens")
    yield from _linear("thinker.lm_head", _head_shape(thinker["text_config"]), bias=False)
    yield from _audio_tower("thinker.audio_tower", thinker["audio_config"])
    yield from _visual("thinker.visual", thinker["vision_config"])
    if "talker_config" in config:
        yield from _speech(config)


def _speech(config: dict[str, Any]) -> Named:
    talker = config["talker_config"]
    yield from _moe_decoder("talker.model", talker["text_config"], "codec_embedding")
    yield from _linear("talker.codec_head", _head_shape(talker["text_config"]), bias=False)
    yield from _projections("talker", talker)
    yield from _code_predictor("talker.code_predictor", talker["code_predictor_config"])
    yield from _code2wav("code2wav", config["code2wav_config"])


def _linear(name: str, shape: Shape, *, bias: bool = True) -> Named:
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


def _conv_transpose(name: str, inputs: int, outputs: int, kernel: int) -> Named:
    yield f"{name}.weight", (inputs, outputs, kernel)
    yield f"{name}.bias", (outputs,)


def _vectors(prefix: str, size: int, *names: str) -> Named:
    for name in names:
        yield f"{prefix}.{name}", (size,)


def _head_shape(text: dict[str, Any]) -> Shape:
    return text["vocab_size"], text["hidden_size"]


def _attention(name: str, cfg: dict[str, Any], head_dim: int, *, qk_norm: bool) -> Named:
    hidden = cfg["hidden_size"]
    queries, keys = cfg["num_attention_heads"] * head_dim, cfg["num_key_value_heads"] * head_dim
    yield f"{name}.q_proj.weight", (queries, hidden)
    yield f"{name}.k_proj.weight", (keys, hidden)
    yield f"{name}.v_proj.weight", (keys, hidden)
    yield f"{name}.o_proj.weight", (hidden, queries)
    if qk_norm:
        yield from _vectors(name, head_dim, "q_norm.weight", "k_norm.weight")


def _gated_mlp(name: str, hidden: int, inner: int) -> Named:
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)


def _moe_decoder(prefix: str, cfg: dict[str, Any], embedding: str) -> Named:
    hidden = cfg["hidden_size"]
    yield f"{prefix}.{embedding}.weight", (cfg["vocab_size"], hidden)
    yield f"{prefix}.norm.weight", (hidden,)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"{prefix}.layers.{i}"
        yield from _vectors(layer, hidden, "input_layernorm.weight")
        yield from _vectors(layer, hidden, "post_attention_layernorm.weight")
        yield from _attention(f"{layer}.self_attn", cfg, cfg["head_dim"], qk_norm=True)
        yield f"{layer}.mlp.gate.weight", (cfg["num_experts"], hidden)
        for expert in range(cfg["num_experts"]):
            inner = cfg["moe_intermediate_size"]
            yield from _gated_mlp(f"{layer}.mlp.experts.{expert}", hidden, inner)
        if shared := cfg.get("shared_expert_intermediate_size"):
            yield from _gated_mlp(f"{layer}.mlp.shared_expert", hidden, shared)
            yield f"{layer}.mlp.shared_expert_gate.weight", (1, hidden)


def _audio_tower(prefix: str, cfg: dict[str, Any]) -> Named:
    width, channels = cfg["d_model"], cfg["downsample_hidden_size"]
    for i, inputs in enumerate((1, channels, channels), start=1):
        yield from _linear(f"{prefix}.conv2d{i}", (channels, inputs, 3, 3))
    mel_after_convs = cfg["num_mel_bins"] // 8
    yield f"{prefix}.conv_out.weight", (width, channels * mel_after_convs)
    for i in range(cfg["encoder_layers"]):
        layer = f"{prefix}.layers.{i}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}.self_attn.{projection}", (width, width))
        yield from _linear(f"{layer}.fc1", (cfg["encoder_ffn_dim"], width))
        yield from _linear(f"{layer}.fc2", (width, cfg["encoder_ffn_dim"]))
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            yield from _linear(f"{layer}.{norm}", (width,))
    yield from _linear(f"{prefix}.ln_post", (width,))
    yield from _linear(f"{prefix}.proj1", (width, width))
    yield from _linear(f"{prefix}.proj2", (cfg["output_dim"], width))


def _visual(prefix: str, cfg: dict[str, Any]) -> Named:
    hidden, inner, patch = cfg["hidden_size"], cfg["intermediate_size"], cfg["patch_size"]
    patch_shape = (hidden, cfg["in_channels"], cfg["temporal_patch_size"], patch, patch)
    yield from _linear(f"{prefix}.patch_embed.proj", patch_shape)
    yield f"{prefix}.pos_embed.weight", (cfg["num_position_embeddings"], hidden)
    for i in range(cfg["depth"]):
        block = f"{prefix}.blocks.{i}"
        yield from _linear(f"{block}.norm1", (hidden,))
        yield from _linear(f"{block}.norm2", (hidden,))
        yield from _linear(f"{block}.attn.qkv", (3 * hidden, hidden))
        yield from _linear(f"{block}.attn.proj", (hidden, hidden))
        yield from _linear(f"{block}.mlp.linear_fc1", (inner, hidden))
        yield from _linear(f"{block}.mlp.linear_fc2", (hidden, inner))
    merged = hidden * cfg["spatial_merge_size"] ** 2
    yield from _merger(f"{prefix}.merger", hidden, merged, cfg["out_hidden_size"])
    for i in range(len(cfg["deepstack_visual_indexes"])):
        yield from _merger(f"{prefix}.merger_list.{i}", merged, merged, cfg["out_hidden_size"])


def _merger(name: str, normed: int, merged: int, outputs: int) -> Named:
    yield from _linear(f"{name}.ln_q", (normed,))
    yield from _linear(f"{name}.mlp.0", (merged, merged))
    yield from _linear(f"{name}.mlp.2", (outputs, merged))


def _projections(prefix: str, cfg: dict[str, Any]) -> Named:
    source, inner = cfg["thinker_hidden_size"], cfg["text_config"]["intermediate_size"]
    for name in ("text_projection", "hidden_projection"):
        yield from _linear(f"{prefix}.{name}.linear_fc1", (inner, source))
        yield from _linear(
            f"{prefix}.{name}.linear_fc2", (cfg["text_config"]["hidden_size"], inner)
        )


def _code_predictor(prefix: str, cfg: dict[str, Any]) -> Named:
    hidden = cfg["hidden_size"]
    for group in range(cfg["num_code_groups"] - 1):
        yield f"{prefix}.model.codec_embedding.{group}.weight", _head_shape(cfg)
        yield f"{prefix}.lm_head.{group}.weight", _head_shape(cfg)
    yield f"{prefix}.model.norm.weight", (hidden,)
    for i in range(cfg["num_hidden_layers"]):
        layer = f"{prefix}.model.layers.{i}"
        yield from _vectors(layer, hidden, "input_layernorm.weight")
        yield from _vectors(layer, hidden, "post_attention_layernorm.weight")
        yield from _attention(f"{layer}.self_attn", cfg, cfg["head_dim"], qk_norm=True)
        yield from _gated_mlp(f"{layer}.mlp", hidden, cfg["intermediate_size"])


def _code2wav(prefix: str, cfg: dict[str, Any]) -> Named:
    hidden, width = cfg["hidden_size"], cfg["decoder_dim"]
    yield f"{prefix}.code_embedding.weight", (cfg["codebook_size"] * cfg["num_quantizers"], hidden)
    yield from _code2wav_transformer(f"{prefix}.pre_transformer", cfg)
    for i, ratio in enumerate(cfg["upsampling_ratios"]):
        yield from _conv_transpose(f"{prefix}.upsample.{i}.0.conv", hidden, hidden, ratio)
        yield from _conv_next(f"{prefix}.upsample.{i}.1", hidden)
    yield from _linear(f"{prefix}.decoder.0.conv", (width, hidden, 7))
    yield from _decoder_blocks(f"{prefix}.decoder", width, cfg["upsample_rates"])
    blocks = len(cfg["upsample_rates"])
    last = width // 2**blocks
    yield from _vectors(f"{prefix}.decoder.{blocks + 1}", last, "alpha", "beta")
    yield from _linear(f"{prefix}.decoder.{blocks + 2}.conv", (1, last, 7))


def _code2wav_transformer(prefix: str, cfg: dict[str, Any]) -> Named:
    hidden = cfg["hidden_size"]
    head_dim = hidden // cfg["num_attention_heads"]
    for i in range(cfg["num_hidden_layers"]):
        layer = f"{prefix}.layers.{i}"
        yield from _vectors(layer, hidden, "input_layernorm.weight")
        yield from _vectors(layer, hidden, "post_attention_layernorm.weight")
        yield from _attention(f"{layer}.self_attn", cfg, head_dim, qk_norm=False)
        yield from _gated_mlp(f"{layer}.mlp", hidden, cfg["intermediate_size"])
        yield from _vectors(layer, hidden, "self_attn_layer_scale.scale", "mlp_layer_scale.scale")
    yield f"{prefix}.norm.weight", (hidden,)


def _conv_next(prefix: str, hidden: int) -> Named:
    yield from _linear(f"{prefix}.dwconv.conv", (hidden, 1, 7))
    yield from _linear(f"{prefix}.norm", (hidden,))
    yield from _linear(f"{prefix}.pwconv1", (4 * hidden, hidden))
    yield from _linear(f"{prefix}.pwconv2", (hidden, 4 * hidden))
    yield f"{prefix}.gamma", (hidden,)


def _decoder_blocks(prefix: str, width: int, rates: Sequence[int]) -> Named:
    for i, rate in enumerate(rates):
        inputs, outputs = width // 2**i, width // 2 ** (i + 1)
        block = f"{prefix}.{i + 1}.block"
        yield from _vectors(f"{block}.0", inputs, "alpha", "beta")
        yield from _conv_transpose(f"{block}.1.conv", inputs, outputs, 2 * rate)
        for unit in ("2", "3", "4"):
            yield from _vectors(f"{block}.{unit}.act1", outputs, "alpha", "beta")
            yield from _linear(f"{block}.{unit}.conv1.conv", (outputs, outputs, 7))
            yield from _vectors(f"{block}.{unit}.act2", outputs, "alpha", "beta")
            yield from _linear(f"{block}.{unit}.conv2.conv", (outputs, outputs, 1))
