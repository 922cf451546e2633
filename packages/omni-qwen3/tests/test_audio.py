"""Log-mel features against transformers' WhisperFeatureExtractor, called as its processor does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from omni_core.errors import ConfigError, MediaError
from omni_core.types import FloatArray
from omni_qwen3.preprocess.audio import AudioFeatures
from omni_qwen3.preprocess.settings import load_settings


@pytest.fixture(scope="module")
def features(tiny_checkpoint: str) -> AudioFeatures:
    return AudioFeatures(load_settings(tiny_checkpoint).audio)


def sound(samples: int) -> FloatArray:
    draw = np.random.default_rng(samples)
    return (0.1 * draw.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize(
    "samples", [(32000,), (16000, 40001, 8077), (201,), (300, 1), (1, 90, 200, 201)], ids=str
)
def test_features_equal_transformers(
    features: AudioFeatures, tiny_checkpoint: str, samples: tuple[int, ...]
) -> None:
    clips = [sound(count) for count in samples]
    extractor = WhisperFeatureExtractor.from_pretrained(tiny_checkpoint)
    expected = extractor(
        clips, sampling_rate=16000, padding=True, truncation=False, return_attention_mask=True
    )
    mask = np.asarray(expected["attention_mask"])
    padded = features.padded_samples(list(samples))
    assert padded == max(samples)
    made = features(clips, padded)
    lengths = [features.frames(count, padded) for count in samples]
    assert lengths == mask.sum(axis=1).tolist()
    for mel, theirs, length in zip(made, expected["input_features"], lengths, strict=True):
        assert (mel.dtype, mel.shape) == (np.float32, (128, length))
        np.testing.assert_array_equal(mel, np.asarray(theirs)[:, :length])


def test_silence_and_loud_sound_equal_transformers(
    features: AudioFeatures, tiny_checkpoint: str
) -> None:
    clips = [np.zeros(4000, np.float32), 30 * sound(3200)]
    extractor = WhisperFeatureExtractor.from_pretrained(tiny_checkpoint)
    expected = extractor(clips, sampling_rate=16000, padding=True, truncation=False)
    silence, loud = features(clips, 4000)
    np.testing.assert_array_equal(silence, expected["input_features"][0])
    np.testing.assert_array_equal(loud, expected["input_features"][1][:, :20])


def test_a_checkpoint_that_dithers_is_refused(tiny_checkpoint: str, tmp_path: Path) -> None:
    saved = json.loads((Path(tiny_checkpoint) / "processor_config.json").read_text())
    saved["feature_extractor"]["dither"] = 1e-4
    (tmp_path / "processor_config.json").write_text(json.dumps(saved))
    shutil.copy(Path(tiny_checkpoint) / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="dither"):
        load_settings(str(tmp_path))


def test_a_clip_beyond_thirty_seconds_is_not_cut(features: AudioFeatures) -> None:
    [mel] = features([sound(16000 * 31)], 16000 * 31)
    assert mel.shape == (128, 3100)


@pytest.mark.parametrize("samples", [201, 4000, 8077, 16000])
def test_silence_beyond_the_padding_that_counts_changes_nothing(
    features: AudioFeatures, samples: int
) -> None:
    clip = sound(samples)
    clip[-40:] += 3.0  # the loudest point, which the last kept frame sees least of
    enough = samples + features.padding(samples, 1 << 40)
    [least], [more] = features([clip], enough), features([clip], 40_000)
    np.testing.assert_allclose(more, least, atol=1e-5)
    [tight] = features([clip], samples)
    assert tight.shape != least.shape or np.abs(tight - least).max() > 1e-3


@pytest.mark.parametrize("samples", [(1,), (160,), (161,), (200,), (200, 3)], ids=str)
def test_clips_too_short_for_a_spectrum_are_as_transformers_makes_them_beside_silence(
    features: AudioFeatures, tiny_checkpoint: str, samples: tuple[int, ...]
) -> None:
    """By themselves, transformers fails on them."""
    clips, silence = [sound(count) for count in samples], np.zeros(1600, np.float32)
    extractor = WhisperFeatureExtractor.from_pretrained(tiny_checkpoint)
    asked = {"sampling_rate": 16000, "padding": True, "truncation": False}
    with pytest.raises(RuntimeError, match="Padding"):
        extractor(clips, **asked)
    expected = extractor([*clips, silence], return_attention_mask=True, **asked)
    padded = features.padded_samples(list(samples))
    assert padded == 1600
    lengths = [features.frames(count, padded) for count in samples]
    assert lengths == np.asarray(expected["attention_mask"]).sum(axis=1)[:-1].tolist()
    theirs = np.asarray(expected["input_features"])
    for row, mel in enumerate(features(clips, padded)):
        np.testing.assert_array_equal(mel, theirs[row, :, : lengths[row]])


def test_no_sound_is_a_media_error(features: AudioFeatures) -> None:
    features.check(sound(1))
    with pytest.raises(MediaError, match="empty"):
        features.check(sound(0))
