"""Quantised checkpoints are refused by name before any weights are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from omni_core.checkpoint.quantization import refuse_quantised
from omni_core.errors import ConfigError
from omni_core.pipeline import Pipeline
from omni_core.specs import Ref, StageContext
from omni_qwen3.pipeline import QWEN3_OMNI

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SECTIONS: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "fp8": ((), "quantization_config", FP8),
    "gptq": ((), "quantization_config", {"quant_method": "gptq", "bits": 4}),
    "awq": (("thinker_config",), "quantization_config", {"quant_method": "awq", "bits": 4}),
    "compressed-tensors": (
        ("thinker_config", "text_config"),
        "quantization_config",
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    ),
    "compressed-tensors, older": (
        (),
        "compression_config",
        {"quant_method": "compressed-tensors"},
    ),
    "bitsandbytes": (("talker_config",), "quantization_config", {"load_in_4bit": True}),
    "modelopt": (("code2wav_config",), "quantization_config", {"quant_method": "modelopt"}),
    "mxfp4": (
        ("talker_config", "code_predictor_config"),
        "quantization_config",
        {"quant_method": "mxfp4"},
    ),
    "an unnamed method": (("thinker_config", "audio_config"), "quantization_config", {"bits": 8}),
}


@pytest.fixture
def checkpoint(tiny_checkpoint: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def edit(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_at_any_depth_is_refused_by_name(checkpoint: Path, name: str) -> None:
    parents, key, section = SECTIONS[name]

    def quantise(config: dict[str, Any]) -> None:
        for parent in parents:
            config = config[parent]
        config[key] = section

    edit(checkpoint, quantise)
    with pytest.raises(ConfigError) as raised:
        Pipeline.load(str(checkpoint), device="cpu")
    message = raised.value.message
    assert f"says {name.partition(',')[0]}." in message
    assert ".".join((*parents, key)) in message
    assert "bfloat16" in message


@pytest.mark.parametrize(
    ("file", "method"),
    [
        ("quantize_config.json", "gptq"),
        ("quant_config.json", "awq"),
        ("hf_quant_config.json", "modelopt"),
    ],
)
def test_a_file_beside_config_json_is_refused_by_name(
    checkpoint: Path, file: str, method: str
) -> None:
    (checkpoint / file).write_text("{}")
    with pytest.raises(ConfigError, match=rf"{file} says {method}\."):
        Pipeline.load(str(checkpoint), device="cpu")


def test_gguf_files_are_refused_in_place_of_safetensors_only(checkpoint: Path) -> None:
    (checkpoint / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    refuse_quantised(str(checkpoint))
    for file in checkpoint.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"model-Q4_K_M\.gguf says gguf\."):
        Pipeline.load(str(checkpoint), device="cpu")


@pytest.mark.parametrize("value", [None, {}])
def test_an_empty_section_says_nothing(checkpoint: Path, value: Any) -> None:
    edit(checkpoint, lambda config: config.update(quantization_config=value))
    assert Pipeline.load(str(checkpoint), device="cpu").info.context_length > 0


PREFIXES = {
    "image_encoder": "thinker.visual.",
    "audio_encoder": "thinker.audio_tower.",
    "thinker": "thinker.model.",
    "talker_ar": "talker.",
    "code2wav": "code2wav.",
}


def load(checkpoint: Path, name: str) -> None:
    """Build the stage as its process would."""
    (stage,) = (s for s in QWEN3_OMNI.variants["speech_colocated"] if s.name == name)
    assert isinstance(stage.factory, Ref)
    stage.factory.resolve()(
        StageContext(
            stage=replace(stage, options={}),
            model_path=str(checkpoint),
            device="cpu",
            dtype="float32",
            ar_engine="torch",
            report=lambda text: None,
        )
    )


@pytest.mark.parametrize("stage", PREFIXES)
def test_no_stage_loads_a_quantised_checkpoint(checkpoint: Path, stage: str) -> None:
    """Also when its factory is called without a pipeline around it."""
    load(checkpoint, stage)
    edit(checkpoint, lambda config: config.update(quantization_config=FP8))
    with pytest.raises(ConfigError, match=r"quantization_config of config\.json says fp8\."):
        load(checkpoint, stage)


@pytest.mark.parametrize("stage", PREFIXES)
def test_scales_that_no_config_mentions_are_refused(checkpoint: Path, stage: str) -> None:
    index = checkpoint / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    scale = PREFIXES[stage] + "layers.0.self_attn.q_proj.weight_scale_inv"
    save_file({scale: torch.ones(1)}, checkpoint / "scales.safetensors")
    content["weight_map"][scale] = "scales.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"no place for {scale}"):
        load(checkpoint, stage)
