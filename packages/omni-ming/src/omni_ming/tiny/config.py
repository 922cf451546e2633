"""Sizes of the tiny model, as the JSON files that describe a Ming-flash-omni checkpoint.

What the authors' code fixes, or derives from a default, is as published: a head of the Thinker, its
rotation, mel bands, patches, latents, steps, the vocoder's hop. Orders of keys matter: the files
are compared byte for byte.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

VOCAB_SIZE: Final = 512
"""Of Thinker and Talker alike."""
DTYPE: Final = "float32"
MEL_BANDS: Final = 128
LATENT_DIM: Final = 64
HOP: Final = 882
VAE_ENCODER_LAYERS: Final = 6
"""More than the 4 that the authors' encoder computes, for a loader to leave out."""


def model_config(ids: dict[str, int]) -> Json:
    """Contents of config.json, given the ids of the tokenizer."""
    return {
        "architectures": ["BailingMM2NativeForConditionalGeneration"],
        "model_type": "bailingmm_moe_v2_lite",
        "mlp_depth": 2,
        "llm_config": _thinker(ids),
        "vision_config": _vision(),
        "audio_config": _audio(),
        "torch_dtype": DTYPE,
        "transformers_version": "4.57.1",
        "auto_map": {"AutoConfig": "configuration_bailingmm2.BailingMM2Config"},
    }


def _thinker(ids: dict[str, int]) -> Json:
    return {
        "architectures": ["BailingMoeV2ForCausalLM"],
        "attention_dropout": 0.0,
        "eos_token_id": ids["<|role_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 256,
        "head_dim": 128,
        **_media_tokens(ids),
        "initializer_range": 0.006,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "model_type": "bailing_moe_v2",
        "moe_intermediate_size": 32,
        "num_experts": 16,
        "router_type": "MultiRouter",
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 2,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {"factor": None, "type": "video_rope"},
        "rope_theta": 2400000,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_bias": False,
        "use_qkv_bias": False,
        "vocab_size": VOCAB_SIZE,
        **_details(),
    }


def _details() -> Json:
    return {
        "use_qk_norm": True,
        "use_expert_bias": True,
        "embedding_dropout": 0.0,
        "norm_head": False,
        "output_dropout": 0.0,
        "partial_rotary_factor": 0.5,
        "topk_group": 2,
        "n_group": 4,
        "moe_router_topk_scaling_factor": 2.5,
        "output_router_logits": False,
        "use_interleaved_frame_timestamp": True,
        "torch_dtype": DTYPE,
    }


def _media_tokens(ids: dict[str, int]) -> Json:
    patches = {"image": "<imagePatch>", "video": "<framePatch>", "audio": "<audioPatch>"}
    config = {f"{kind}_patch_token": ids[token] for kind, token in patches.items()}
    for kind in patches:
        config[f"{kind}_start_token"] = ids[f"<{kind}>"]
        config[f"{kind}_end_token"] = ids[f"</{kind}>"]
    return config


def _vision() -> Json:
    return {
        "architectures": ["Qwen3MoeVisionTransformer"],
        "deepstack_visual_indexes": [1, 2, 3],
        "depth": 4,
        "dtype": DTYPE,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "model_type": "qwen3_moe_vit",
        "num_heads": 4,
        "num_position_embeddings": 64,
        "out_hidden_size": 256,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _audio() -> Json:
    return {
        "ds_kernel_size": 3,
        "ds_stride": 2,
        "norm_query_embeds": True,
        "whisper_encoder_config": {
            "n_ctx": 1500,
            "n_head": 4,
            "n_layer": 2,
            "n_mels": MEL_BANDS,
            "n_state": 64,
        },
    }


def preprocessor_config() -> Json:
    """Contents of preprocessor_config.json."""
    return {
        "min_pixels": 4096,
        "max_pixels": 16777216,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_token": "<image>",
        "video_token": "<video>",
        "audio_token": "<audio>",
        "use_interleaved_frame_timestamp": True,
        "sampling_rate": 16000,
        "image_processor_type": "BailingMM2ImageProcessor",
        "feature_extractor_type": "BailingMM2AudioProcessor",
        "processor_class": "BailingMM2Processor",
        "whisper_frontend_args": {"n_mels": MEL_BANDS},
        "wav_frontend_args": {
            "cmvn_file": "am.mvn",
            "fs": 16000,
            "window": "hamming",
            "n_mels": 80,
            "frame_length": 25,
            "frame_shift": 10,
            "lfr_m": 7,
            "lfr_n": 6,
        },
    }


def talker_llm_config(ids: dict[str, int]) -> Json:
    """Contents of talker/llm/config.json, given the ids of the Talker's tokenizer."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "max_window_layers": 2,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "torch_dtype": DTYPE,
    }


def talker_config() -> Json:
    """Contents of talker/config.json."""
    return {
        "architectures": ["BailingTalker2"],
        "model_type": "bailing_talker",
        "flowmodel": _transformer(hidden_size=64, heads=2),
        "aggregator": _transformer(hidden_size=96, heads=3),
        "steps": 10,
        "patch_size": 4,
        "history_patch_size": 32,
        "latent_dim": LATENT_DIM,
        "spk_dim": 192,
        "torch_dtype": DTYPE,
    }


def _transformer(hidden_size: int, heads: int) -> Json:
    return {
        "in_channels": LATENT_DIM,
        "hidden_size": hidden_size,
        "depth": 2,
        "num_heads": heads,
        "mlp_ratio": 4.0,
        "dropout": 0.0,
        "attn_backend": "torch",
    }


def vae_config() -> Json:
    """Contents of talker/vae/config.json."""
    backbone = {
        "architectures": ["Qwen2Model"],
        "model_type": "qwen2",
        "vocab_size": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_dropout": 0.0,
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 0,
        "tie_word_embeddings": False,
    }
    return {
        "architectures": ["AudioVAE"],
        "sample_rate": 44100,
        "patch_size": 4,
        "init_method": "kaiming",
        "enc_kwargs": {
            "backbone": {**backbone, "num_hidden_layers": VAE_ENCODER_LAYERS},
            "input_dim": HOP,
            "hop_size": HOP,
            "latent_dim": LATENT_DIM,
        },
        "dec_kwargs": {"backbone": backbone, "output_dim": HOP, "latent_dim": LATENT_DIM},
        "torch_dtype": DTYPE,
    }
