"""Sizes of the tiny model, as the JSON files that describe a Qwen3-Omni checkpoint.

Every size keeps what the published model's code needs: 13 audio tokens per 100 mel frames
(`n_window` 50), 1024 Talker ids above the codebook that sampling suppresses, `accept_hidden_layer`
above the deepstack layers, 1920 samples a frame.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 512
CODEBOOK_SIZE = 64
CODE_GROUPS = 16
THINKER_HIDDEN = 64
TALKER_HIDDEN = 48

_MROPE = {
    "rope_type": "default",
    "rope_theta": 1000000.0,
    "mrope_section": [6, 5, 5],
    "interleaved": True,
    "mrope_interleaved": True,
}


def text_config(ids: dict[str, int]) -> dict[str, Any]:
    """Contents of config.json of a checkpoint without speech, as Thinking's and Captioner's are."""
    whole = model_config(ids)
    speech = ("talker_config", "code2wav_config")
    return {key: value for key, value in whole.items() if key not in speech} | {
        "enable_audio_output": False
    }


def model_config(ids: dict[str, int]) -> dict[str, Any]:
    """Contents of config.json, given the ids of the tokenizer."""
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "float32",
        "enable_audio_output": True,
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "thinker_config": _thinker(ids),
        "talker_config": _talker(ids),
        "code2wav_config": _code2wav(),
    }


def _media_tokens(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "user_token_id": ids["user"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


def _decoder(hidden_size: int, layers: int, vocab_size: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
    }


def _moe_decoder(hidden_size: int, layers: int, vocab_size: int) -> dict[str, Any]:
    return {
        **_decoder(hidden_size, layers, vocab_size),
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "rope_parameters": _MROPE,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    }


def _thinker(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_thinker",
        **_media_tokens(ids),
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder",
            "num_mel_bins": 128,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "activation_function": "gelu",
            "max_source_positions": 1500,
            "n_window": 50,
            "n_window_infer": 200,
            "conv_chunksize": 8,
            "downsample_hidden_size": 8,
            "output_dim": THINKER_HIDDEN,
        },
        "vision_config": {
            "model_type": "qwen3_omni_moe_vision_encoder",
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1, 2],
            "out_hidden_size": THINKER_HIDDEN,
        },
        "text_config": {
            "model_type": "qwen3_omni_moe_text",
            **_moe_decoder(THINKER_HIDDEN, 5, VOCAB_SIZE),
        },
    }


def _talker(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_talker",
        **_media_tokens(ids),
        "accept_hidden_layer": 4,
        "thinker_hidden_size": THINKER_HIDDEN,
        "spatial_merge_size": 2,
        "num_code_groups": CODE_GROUPS,
        "codec_pad_id": CODEBOOK_SIZE + 100,
        "codec_bos_id": CODEBOOK_SIZE + 101,
        "codec_eos_token_id": CODEBOOK_SIZE + 102,
        "codec_nothink_id": CODEBOOK_SIZE + 107,
        "codec_think_bos_id": CODEBOOK_SIZE + 108,
        "codec_think_eos_id": CODEBOOK_SIZE + 109,
        "speaker_id": {
            "chelsie": CODEBOOK_SIZE + 253,
            "ethan": CODEBOOK_SIZE + 254,
            "aiden": CODEBOOK_SIZE + 255,
        },
        "text_config": {
            "model_type": "qwen3_omni_moe_talker_text",
            **_moe_decoder(TALKER_HIDDEN, 3, CODEBOOK_SIZE + 1024),
            "shared_expert_intermediate_size": 48,
        },
        "code_predictor_config": {
            "model_type": "qwen3_omni_moe_talker_code_predictor",
            **_decoder(TALKER_HIDDEN, 2, CODEBOOK_SIZE),
            "head_dim": 16,
            "max_position_embeddings": 64,
            "num_code_groups": CODE_GROUPS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": CODEBOOK_SIZE,
        "num_quantizers": CODE_GROUPS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "sliding_window": 72,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "upsampling_ratios": [2, 2],
        "upsample_rates": [8, 5, 4, 3],
        "decoder_dim": 64,
    }


def generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """Contents of generation_config.json: greedy text, and transformers' defaults of the Talker."""
    return {
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "talker_max_new_tokens": 4096,
        "talker_temperature": 0.9,
        "talker_top_k": 50,
        "talker_top_p": 1.0,
        "talker_repetition_penalty": 1.05,
    }


_PIXELS_PER_VISUAL_TOKEN = 32 * 32

_VISION = {
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
}

_WHISPER = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 30,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "dither": 0.0,
}


def processor_config() -> dict[str, Any]:
    """Contents of processor_config.json: images of 1 to 64 visual tokens, frames of 1 to 16."""
    return {
        "processor_class": "Qwen3OmniMoeProcessor",
        "feature_extractor": _WHISPER,
        "image_processor": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": _size(max_tokens=64),
            **_VISION,
        },
        "video_processor": {
            "video_processor_type": "Qwen2VLVideoProcessor",
            "size": _size(max_tokens=16),
            "do_sample_frames": False,
            "min_frames": 4,
            "max_frames": 768,
            "max_video_tokens": 128000,
            "return_metadata": False,
            **_VISION,
        },
    }


def _size(max_tokens: int) -> dict[str, int]:
    """Bounds of an area in pixels, under the names that transformers gives them."""
    return {
        "shortest_edge": _PIXELS_PER_VISUAL_TOKEN,
        "longest_edge": max_tokens * _PIXELS_PER_VISUAL_TOKEN,
    }
