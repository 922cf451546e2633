"""Random weights for which parity tests mean something, and their safetensors files.

A freshly initialised Qwen3-Omni hides errors: its vocoder barely reacts to codes, its text follows
the last token alone and it never stops. The scales here let every part move the output, keep the
waveform inside the clamp and the argmax margins wide. Each tensor has a generator of its own,
seeded by (seed, name), so that changing one leaves the others alone.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from omni_core.types import FloatArray
from omni_qwen3.tiny.shapes import Shape, walk
from omni_qwen3.tiny.tokenizer import Vocabulary

MAX_SHARD_BYTES = 1_000_000
"""Small, so that readers meet a sharded checkpoint."""

LOGIT_GAIN = 3.0
RESIDUAL_GAIN = 2.0
"""On what attention and experts add, so that context outweighs the last token."""

_HEAD = re.compile(r"\.(lm_head|codec_head)\b")
_NORM = re.compile(r"norm|\.ln_")
_EMBEDDING = re.compile(r"(embed_tokens|codec_embedding(\.\d+)?|code_embedding|pos_embed)\.weight$")
_TRANSPOSED = re.compile(r"\.(upsample\.\d+\.0|block\.1)\.conv\.weight$")
_RESIDUAL = re.compile(r"^(thinker|talker)\..*\.(o_proj|down_proj)\.weight$")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRow:
    """The head row of an end token: `scale` times the `draw`-th standard normal vector."""

    draw: int
    scale: float

    def values(self, size: int) -> FloatArray:
        """The row, (size,)."""
        row = np.random.default_rng(self.draw).standard_normal(size)
        return (self.scale * row).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants found once for seed 0 by running the model; see `tests/parity/calibrate.py`."""

    text_end: EndRow
    """lm_head row of <|im_end|>: replies of some 5 to 40 tokens."""
    codec_end: EndRow
    """codec_head row of the codec's end token: some 20 to 60 frames."""
    thought_end: EndRow
    """lm_head row of </think>, in a checkpoint without speech: thoughts of a few tokens."""
    wav_gain: float
    wav_bias: float
    """Last convolution: peak near 0.6 and no constant part on random codes."""


CALIBRATION = Calibration(
    text_end=EndRow(draw=25282, scale=0.6),
    codec_end=EndRow(draw=26408, scale=0.7),
    thought_end=EndRow(draw=4948, scale=0.7),
    wav_gain=0.0017416513318705591,
    wav_bias=-0.0008533706555274317,
)


def draw(
    config: dict[str, Any], vocabulary: Vocabulary, seed: int, calibration: Calibration
) -> dict[str, FloatArray]:
    """All tensors by their names on disk. The Thinker says only printable text and its end token,
    and without speech, the end of a thought."""
    tensors = {name: _tensor(name, shape, seed) for name, shape in walk(config)}
    text_head = tensors["thinker.lm_head.weight"]
    silent = np.setdiff1d(np.arange(len(text_head)), vocabulary.printable_ids)
    text_head[silent] = 0
    text_head[config["im_end_token_id"]] = calibration.text_end.values(text_head.shape[1])
    if "talker_config" in config:
        _calibrate_speech(tensors, config, calibration)
    else:
        text_head[vocabulary.ids["</think>"]] = calibration.thought_end.values(text_head.shape[1])
    return tensors


def _calibrate_speech(
    tensors: dict[str, FloatArray], config: dict[str, Any], calibration: Calibration
) -> None:
    codec_head = tensors["talker.codec_head.weight"]
    codec_end_id = config["talker_config"]["codec_eos_token_id"]
    codec_head[codec_end_id] = calibration.codec_end.values(codec_head.shape[1])
    last = f"code2wav.decoder.{len(config['code2wav_config']['upsample_rates']) + 2}.conv"
    tensors[f"{last}.weight"] *= np.float32(calibration.wav_gain)
    tensors[f"{last}.bias"][:] = calibration.wav_bias


def _tensor(name: str, shape: Shape, seed: int) -> FloatArray:
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    if name.endswith((".gamma", "layer_scale.scale")):
        values = rng.uniform(0.3, 0.7, shape)
    else:
        mean, std = _moments(name, shape)
        values = mean + std * rng.standard_normal(shape)
    return values.astype(np.float32)


def _moments(name: str, shape: Shape) -> tuple[float, float]:
    """Mean and standard deviation a tensor is drawn with."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("alpha", "beta"):
        return 0.0, 0.2
    if _NORM.search(name) and len(shape) == 1:
        return (1.0 if leaf == "weight" else 0.0), 0.1
    if leaf == "bias":
        return 0.0, 0.05
    if _EMBEDDING.search(name):
        return 0.0, 0.5
    gain = LOGIT_GAIN if _HEAD.search(name) else 1.0
    gain *= RESIDUAL_GAIN if _RESIDUAL.match(name) else 1.0
    return 0.0, gain / math.sqrt(_fan_in(name, shape))


def _fan_in(name: str, shape: Shape) -> int:
    """Inputs that one output sums over."""
    if not _TRANSPOSED.search(name):
        return math.prod(shape[1:])
    taps_per_output = 2 if ".block.1." in name else 1
    return shape[0] * taps_per_output


def save(tensors: dict[str, FloatArray], directory: Path) -> None:
    """Write shards of at most `MAX_SHARD_BYTES` and their index."""
    shards = _shards(tensors)
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map.update(dict.fromkeys(names, file_name))
        chosen = {name: tensors[name] for name in names}
        save_file(chosen, directory / file_name, metadata={"format": "pt"})
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _shards(tensors: dict[str, FloatArray]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    free_bytes = MAX_SHARD_BYTES
    for name, tensor in tensors.items():
        if tensor.nbytes > free_bytes and shards[-1]:
            shards.append([])
            free_bytes = MAX_SHARD_BYTES
        shards[-1].append(name)
        free_bytes -= tensor.nbytes
    return shards
