"""Placeholder expansion against the string replacement of transformers' processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor

from omni_qwen3.preprocess.audio import audio_tokens
from omni_qwen3.preprocess.settings import load_settings
from omni_qwen3.preprocess.tokens import MediaSizes, expand, expanded_length, rows_of

BLOCKS = {
    "image": "<|vision_start|><|image_pad|><|vision_end|>",
    "audio": "<|audio_start|><|audio_pad|><|audio_end|>",
    "video": "<|vision_start|><|video_pad|><|vision_end|>",
}


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


def reference_text(tokenizer: Any, text: str, sizes: MediaSizes) -> str:
    """transformers' replacement, with only the attributes of a processor it reads."""
    names = ("image", "audio", "video", "vision_bos", "vision_eos", "audio_bos", "audio_eos")
    processor = SimpleNamespace(
        **{f"{name}_token": getattr(tokenizer, f"{name}_token") for name in names},
        image_processor=SimpleNamespace(merge_size=2),
        video_processor=SimpleNamespace(merge_size=2),
    )
    replaced = Qwen3OmniMoeProcessor.replace_multimodal_special_tokens(
        processor,
        [text],
        iter([audio_tokens(frames) for frames in sizes.audio_lengths]),
        iter([np.array(grid) for grid in sizes.image_grids]),
        iter([np.array(grid) for grid in sizes.video_grids]),
        video_second_per_grid=iter(sizes.second_per_grid),
        use_audio_in_video=sizes.use_audio_in_video,
        position_id_per_seconds=13.0,
        seconds_per_chunk=2.0,
    )
    text = replaced[0]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("with_sound", [False, True], ids=["silent", "sound"])
@pytest.mark.parametrize("seconds", [1.0, 2 / 1.998, 2 / 3, 2 / 25])
@pytest.mark.parametrize("frames", [3, 90, 300])
def test_expansion_equals_transformers(
    tokenizer: Any, tiny_checkpoint: str, with_sound: bool, seconds: float, frames: int
) -> None:
    kinds = ["audio", "image", "video", "image", "video", "audio"]
    text = "a" + "b".join(BLOCKS[kind] for kind in kinds) + "c"
    sizes = MediaSizes(
        image_grids=[[1, 6, 10], [1, 2, 4]],
        video_grids=[[4, 4, 6], [3, 2, 2]],
        second_per_grid=[seconds, 1.0],
        audio_lengths=[200, frames, 77, 101] if with_sound else [200, frames],
        use_audio_in_video=with_sound,
    )
    config = load_settings(tiny_checkpoint).prompt
    placeholders = tokenizer(text)["input_ids"]
    audio_end = tokenizer.convert_tokens_to_ids("<|audio_end|>")
    ids = expand(placeholders, sizes, audio_end_token_id=audio_end, config=config)
    assert len(ids) == expanded_length(len(placeholders), sizes, config)
    assert ids.dtype == np.int64
    assert ids.tolist() == tokenizer(reference_text(tokenizer, text, sizes))["input_ids"]
    image_token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert len(rows_of(ids, image_token)) == 15 + 2
