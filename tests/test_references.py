"""What the parity tests stand on: media that decodes exactly, and answers that make sense."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import media
from cases import CASES, READINGS, Case
from expected import DATA, WAV_TOLERANCE, load_reference
from omni_qwen3.code2wav.model import load_model

MAX_STORED_BYTES = 5_000_000


def test_pictures_and_sound_come_back_exactly() -> None:
    picture, samples = media.picture(), media.sweep()
    np.testing.assert_array_equal(media.read_png(media.png(picture)), picture)
    np.testing.assert_array_equal(media.read_wav(media.wav(samples)), samples / 32768)


def test_video_and_its_sound_track_come_back_exactly() -> None:
    frames, samples = media.frames(), media.sweep(3)
    file = media.matroska(frames, samples)
    np.testing.assert_array_equal(media.read_frames(file), frames)
    np.testing.assert_array_equal(media.read_sound(file), samples / 32768)


def test_every_case_has_a_small_stored_answer() -> None:
    assert {path.stem for path in DATA.iterdir()} == {case.name for case in (*CASES, *READINGS)}
    assert sum(path.stat().st_size for path in DATA.iterdir()) < MAX_STORED_BYTES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_stored_codes_sound_like_the_stored_waveform(case: Case, tiny_checkpoint: str) -> None:
    reference = load_reference(case.name)
    frames = reference.codes.shape[1]
    assert len(reference.text_ids) <= case.text_max_tokens
    assert frames < case.talker_max_tokens
    if case.name == "only_end":
        assert (len(reference.text_ids), frames, reference.wav.size) == (1, 0, 0)
        return
    model = load_model(tiny_checkpoint, device="cpu", dtype="float32", report=lambda message: None)
    wav = model.decode(torch.from_numpy(reference.codes)).numpy()
    assert 0.05 < reference.wav.std() < 0.5
    np.testing.assert_allclose(wav, reference.wav, rtol=0, atol=WAV_TOLERANCE)
