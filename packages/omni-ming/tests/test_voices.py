"""Voices of a checkpoint: which there are, and what they are made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from omni_core.errors import ConfigError, RequestError
from omni_ming.defaults import SPEAKERS, describe
from omni_ming.speaker import speaker_features
from omni_ming.voices import Voices

WITHOUT_ONNX = f"the tiny checkpoint was written without {SPEAKERS}"


def test_presets(tiny_checkpoint: str) -> None:
    info, voices = describe(tiny_checkpoint), Voices(tiny_checkpoint)
    assert (info.voices, info.default_voice) == (("DB30", "lingguang"), "DB30")
    default = voices.get(None)
    assert default is voices.get("db30")
    assert default is not None
    assert default.prompt_text == "感谢你的认可。"
    assert default.latents.shape == (12, 64)
    other = voices.get("Lingguang")
    assert other is not None
    assert other.latents.shape == (16, 64)  # 1.1 s at 16 kHz, in whole patches at 44.1 kHz
    with pytest.raises(RequestError, match="DB30, lingguang"):
        voices.get("ethan")


def test_a_voice_is_the_same_in_every_process(tiny_checkpoint: str) -> None:
    one, other = (Voices(tiny_checkpoint).get("DB30") for _ in range(2))
    assert one is not None
    assert other is not None
    assert torch.equal(one.latents, other.latents)


def test_speakers_are_told_apart(tiny_checkpoint: str) -> None:
    if not (Path(tiny_checkpoint) / SPEAKERS).is_file():
        pytest.skip(WITHOUT_ONNX)
    voices = Voices(tiny_checkpoint)
    one, other = voices.get("DB30"), voices.get("lingguang")
    assert one is not None
    assert other is not None
    assert one.speaker is not None
    assert other.speaker is not None
    assert one.speaker.shape == (192,)
    assert not torch.equal(one.speaker, other.speaker)


def test_banks_have_no_mean_and_no_dither() -> None:
    sound = np.sin(np.arange(16_000) / 5).astype(np.float32)
    features = speaker_features(sound)
    assert features.shape == (98, 80)
    assert np.abs(features.mean(axis=0)).max() < 1e-4
    assert np.array_equal(features, speaker_features(sound))


@pytest.fixture
def copied(tiny_checkpoint: str, tmp_path: Path) -> Path:
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    return tmp_path / "model"


def test_a_reference_that_is_missing_is_no_voice(copied: Path) -> None:
    (copied / "talker/data/spks/prompt.wav").unlink()
    assert describe(str(copied)).voices == ("lingguang",)
    voice = Voices(str(copied)).get(None)
    assert voice is not None
    assert voice.prompt_text.startswith("诶")


def test_references_stay_within_the_checkpoint(copied: Path) -> None:
    entry = {"x": {"prompt_text": "x", "prompt_wav_path": "../../../etc/hostname"}}
    (copied / "talker/data/voice_name.json").write_text(json.dumps(entry))
    with pytest.raises(ConfigError, match="outside"):
        describe(str(copied))
