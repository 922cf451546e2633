"""What a checkpoint's own files say about sampling, voices and context."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeForConditionalGeneration,
)

from omni_core.errors import ConfigError
from omni_core.media import MediaLimits
from omni_core.types import SamplingParams
from omni_qwen3.defaults import describe, eos_token_ids, talker_defaults, thinker_defaults
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.settings import load_settings
from omni_qwen3.preprocess.stage import Preprocessor


@pytest.fixture
def checkpoint(tiny_checkpoint: str, tmp_path: Path) -> Path:
    """The JSON files of the tiny checkpoint, to change at will."""
    for source in Path(tiny_checkpoint).glob("*.json"):
        shutil.copy(source, tmp_path)
    return tmp_path


def say(checkpoint: Path, **content: Any) -> str:
    (checkpoint / "generation_config.json").write_text(json.dumps(content))
    return str(checkpoint)


def test_a_silent_generation_config_means_what_transformers_does(checkpoint: Path) -> None:
    path = say(checkpoint)
    signature = inspect.signature(Qwen3OmniMoeForConditionalGeneration.generate).parameters
    assert thinker_defaults(path).temperature == 0
    assert thinker_defaults(path).max_tokens == signature["thinker_max_new_tokens"].default
    assert signature["talker_do_sample"].default is True
    assert talker_defaults(path) == SamplingParams(
        temperature=signature["talker_temperature"].default,
        top_k=signature["talker_top_k"].default,
        top_p=signature["talker_top_p"].default,
        repetition_penalty=signature["talker_repetition_penalty"].default,
        max_tokens=signature["talker_max_new_tokens"].default,
    )


def test_talker_keys_are_the_talkers_alone(checkpoint: Path) -> None:
    path = say(
        checkpoint,
        do_sample=False,
        max_new_tokens=77,
        repetition_penalty=1.2,
        talker_do_sample=False,
        talker_max_new_tokens=60,
        talker_repetition_penalty=1.1,
        talker_top_k=20,
        talker_top_p=0.5,
        talker_temperature=0.3,
    )
    assert thinker_defaults(path) == SamplingParams(
        temperature=0, top_k=50, top_p=1.0, repetition_penalty=1.2, max_tokens=77
    )
    assert talker_defaults(path) == SamplingParams(
        temperature=0, top_k=20, top_p=0.5, repetition_penalty=1.1, max_tokens=60
    )


def test_a_sampling_thinker(checkpoint: Path) -> None:
    path = say(checkpoint, do_sample=True, temperature=0.6, top_p=0.95)
    assert thinker_defaults(path).temperature == 0.6
    assert thinker_defaults(path).top_p == 0.95
    assert thinker_defaults(say(checkpoint, do_sample=True)).temperature == 1.0


def test_end_tokens(checkpoint: Path) -> None:
    assert eos_token_ids(say(checkpoint, eos_token_id=[3, 5])) == {3, 5}
    assert eos_token_ids(say(checkpoint, eos_token_id=3)) == {3}
    config = json.loads((checkpoint / "config.json").read_text())
    assert eos_token_ids(say(checkpoint)) == {config["im_end_token_id"]}


def test_describe(checkpoint: Path) -> None:
    info = describe(str(checkpoint))
    assert info.context_length == 8192
    assert sorted(info.voices) == ["aiden", "chelsie", "ethan"]
    assert info.default_voice == "ethan"
    assert info.sample_rate == 24000
    assert info.refused_modalities == {}
    assert set(info.input_modalities) == {"text", "image", "audio", "video"}


def test_describe_a_checkpoint_without_speech(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"enable_audio_output": False}))
    info = describe(str(checkpoint))
    assert (info.voices, info.default_voice, info.sample_rate) == ((), None, None)
    assert "no Talker" in info.refused_modalities["audio"]


def test_a_folder_that_is_no_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        describe(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        describe(str(tmp_path))


def test_settings_of_the_older_flat_file_equal_those_of_the_newer(checkpoint: Path) -> None:
    new = load_settings(str(checkpoint))
    saved = json.loads((checkpoint / "processor_config.json").read_text())
    (checkpoint / "processor_config.json").unlink()
    size = saved["image_processor"].pop("size")
    flat = saved["image_processor"] | saved["feature_extractor"]
    flat |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(flat))
    old = load_settings(str(checkpoint))
    assert (old.image, old.video, old.prompt) == (new.image, new.video, new.prompt)
    sound = np.sin(np.arange(8000, dtype=np.float32))
    [expected] = AudioFeatures(new.audio)([sound], sound.size)
    [same] = AudioFeatures(old.audio)([sound], sound.size)
    np.testing.assert_array_equal(same, expected)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("config.json", "no config.json"),
        ("chat_template.jinja", "no chat template"),
        ("processor_config.json", "no preprocessor_config.json"),
        ("tokenizer.json", "no vocab.json"),
        ("tokenizer_config.json", "no tokenizer_config.json"),
        ("generation_config.json", None),
    ],
)
def test_a_file_that_is_not_there_is_named_unless_there_is_a_default(
    tiny_checkpoint: str, tmp_path: Path, file: str, words: str | None
) -> None:
    for path in Path(tiny_checkpoint).glob("*.j*"):
        if path.name != file:
            shutil.copy(path, tmp_path)
    if words is None:
        Preprocessor(str(tmp_path), MediaLimits())
        assert describe(str(tmp_path)).voices == describe(tiny_checkpoint).voices
        return
    with pytest.raises(ConfigError, match=words):
        Preprocessor(str(tmp_path), MediaLimits())
