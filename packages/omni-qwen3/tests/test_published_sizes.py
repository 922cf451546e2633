"""Qwen3-Omni-30B-A3B at its published sizes, without its weights: the stages' own loaders ask for
exactly what transformers would save.

The loaders run for real, on torch's meta device: names, shapes and types come from the headers of
files of the published size (70 GB, of holes). A loader raises if the checkpoint lacks a tensor, has
it in another shape, or has one under the stage's prefixes that nobody asked for.

Sizes that are not below are the defaults of transformers' config classes (release 5.19), which are
the published model's: audio tower 32 layers of 1280, vision tower 27 layers of 1152 with deepstack
after layers 8, 16 and 24, Talker 20 layers of 1024 with 128 experts of 384, code predictor 5 layers
of 1024, Code2Wav 8 layers of 1024 and decoder width 1536. Those below differ from the defaults;
they are of the config.json of Qwen3-Omni-30B-A3B-Instruct, as public copies show it. That nothing
is missing or too much shows in the number of parameters.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
from transformers.core_model_loading import revert_weight_conversion

from omni_core.checkpoint.weights import Checkpoint
from omni_core.errors import ConfigError
from omni_core.specs import Ref, StageConfig, StageContext
from omni_qwen3 import encoders, talker, thinker
from omni_qwen3.code2wav import model as code2wav
from omni_qwen3.pipeline import QWEN3_OMNI
from omni_qwen3.talker_rows import THINKER_EMBEDDINGS

Load = Callable[[StageContext], Any]

PARAMETERS = 35_259_818_545
"""Of Qwen3-Omni-30B-A3B-Instruct, as its page on the hub counts them (revision 26291f79)."""

_ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20]}
SIZES: dict[str, Any] = {
    "thinker_config": {
        "text_config": {
            "vocab_size": 152064,
            "hidden_size": 2048,
            "intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "max_position_embeddings": 65536,
            "rope_parameters": _ROPE,
        },
        "audio_config": {"output_dim": 2048},
        "vision_config": {"out_hidden_size": 2048},
    },
    "talker_config": {
        "num_code_groups": 16,
        "accept_hidden_layer": 24,
        "thinker_hidden_size": 2048,
        "spatial_merge_size": 2,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "text_config": {
            "head_dim": 128,
            "num_experts_per_tok": 6,
            "shared_expert_intermediate_size": 768,
            "rope_parameters": _ROPE,
        },
        "code_predictor_config": {"num_code_groups": 16},
    },
}
TENSORS_PER_FILE = 2000
BYTES_PER_PARAMETER = 2
"""bfloat16."""


@functools.cache
def published_config() -> Qwen3OmniMoeConfig:
    return Qwen3OmniMoeConfig(**SIZES)


@pytest.fixture(scope="module")
def shapes() -> dict[str, tuple[int, ...]]:
    """{name on disk: shape} of transformers' own model, as its `save_pretrained` would write it."""
    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration(published_config())
    saved = revert_weight_conversion(model, model.state_dict())
    return {name: tuple(tensor.shape) for name, tensor in saved.items()}


def write(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A checkpoint whose files are of full size and hold nothing: headers in front of holes, which
    take no room on disk and read as zeros."""
    names = sorted(shapes)
    weight_map: dict[str, str] = {}
    for start in range(0, len(names), TENSORS_PER_FILE):
        file = f"model-{start:06}.safetensors"
        part = names[start : start + TENSORS_PER_FILE]
        weight_map.update(dict.fromkeys(part, file))
        _write_holes(directory / file, {name: shapes[name] for name in part})
    index = {"weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    content = {
        **published_config().to_dict(),
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    }
    (directory / "config.json").write_text(json.dumps(content, default=str))
    vocabulary = {"added_tokens": [], "model": {"vocab": {}}}
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))


def _write_holes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + BYTES_PER_PARAMETER * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def load_code2wav(ctx: StageContext) -> Any:
    return code2wav.load_model(
        ctx.model_path, device=ctx.device, dtype=ctx.dtype, report=ctx.report
    )


LOADERS: dict[str, tuple[Load, tuple[str, ...]]] = {
    "image_encoder": (encoders.load_image, (encoders.VISION_WEIGHTS,)),
    "audio_encoder": (encoders.load_audio, (encoders.AUDIO_WEIGHTS,)),
    "thinker": (thinker.load_runner, thinker.WEIGHTS),
    "talker_ar": (talker.load_runner, (talker.WEIGHTS,)),
    "code2wav": (load_code2wav, (code2wav.PREFIX,)),
}


@pytest.fixture(scope="module")
def checkpoint(
    shapes: dict[str, tuple[int, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("published")
    write(directory, shapes)
    return directory


def context(stage: str, directory: Path, said: list[str]) -> StageContext:
    return StageContext(
        stage=StageConfig(name=stage, factory=Ref("nowhere:build")),
        model_path=str(directory),
        device="meta",
        dtype="bfloat16",
        ar_engine="torch",
        report=said.append,
    )


def test_the_sizes_are_those_of_the_hub(shapes: dict[str, tuple[int, ...]]) -> None:
    assert sum(math.prod(shape) for shape in shapes.values()) == PARAMETERS


def test_every_tensor_belongs_to_exactly_one_stage(checkpoint: Path) -> None:
    prefixes = [prefix for _, part in LOADERS.values() for prefix in part]
    with Checkpoint(str(checkpoint)) as tensors:
        for name in tensors.names():
            owners = [prefix for prefix in prefixes if name.startswith(prefix)]
            assert len(owners) == 1, name


def test_every_stage_with_weights_is_here() -> None:
    stages = {stage.name for stage in QWEN3_OMNI.variants["speech"]}
    assert stages - set(LOADERS) == {"preprocessing", "mm_aggregate", "decode"}


@pytest.mark.parametrize("stage", LOADERS)
def test_a_stage_asks_for_all_of_its_tensors_once(stage: str, checkpoint: Path) -> None:
    load, prefixes = LOADERS[stage]
    said: list[str] = []
    load(context(stage, checkpoint, said))
    with Checkpoint(str(checkpoint)) as tensors:
        names = [name for prefix in prefixes for name in tensors.names(prefix)]
        size_bytes = sum(tensors.file(name).size_bytes(name) for name in names)
    assert said[-1] == f"loading weights {size_bytes}/{size_bytes} bytes"


@pytest.mark.parametrize("stage", LOADERS)
@pytest.mark.parametrize("fault", ["one missing", "one more", "one wider"])
def test_a_checkpoint_that_differs_in_one_tensor_is_refused(
    stage: str,
    fault: str,
    shapes: dict[str, tuple[int, ...]],
    tmp_path: Path,
) -> None:
    load, prefixes = LOADERS[stage]
    changed = {name: shape for name, shape in shapes.items() if name.startswith(prefixes)}
    if stage == "talker_ar":
        changed[THINKER_EMBEDDINGS] = shapes[THINKER_EMBEDDINGS]
    name = max(name for name in changed if name.startswith(prefixes))
    if fault == "one missing":
        del changed[name]
    elif fault == "one more":
        name = f"{name}_scale"
        changed[name] = (1,)
    else:
        changed[name] = (changed[name][0] + 1, *changed[name][1:])
    write(tmp_path, changed)
    with pytest.raises(ConfigError) as raised:
        load(context(stage, tmp_path, []))
    assert name in raised.value.message
