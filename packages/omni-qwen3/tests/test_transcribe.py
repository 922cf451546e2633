"""The words in which a clip is to be written down."""

from __future__ import annotations

import pytest

from omni_core.specs import TranscriptionTask
from omni_core.types import MediaPart, TextPart
from omni_qwen3.transcribe import messages


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TranscriptionTask(language="en"), "Transcribe the English audio into text."),
        (TranscriptionTask(language="zh"), "Transcribe the Chinese audio into text."),
        (TranscriptionTask(), "Transcribe the audio into text."),
        (
            TranscriptionTask(language="fr", translate=True),
            "Listen to the provided French speech and produce a translation in English text.",
        ),
        (
            TranscriptionTask(translate=True),
            "Listen to the provided speech and produce a translation in English text.",
        ),
        (
            TranscriptionTask(language="en", prompt="Omni"),
            "Transcribe the English audio into text. "
            "For names, spelling and style, go by this text: Omni",
        ),
    ],
)
def test_clip_then_instruction(task: TranscriptionTask, words: str) -> None:
    clip = MediaPart(kind="audio", data=b"sound")
    [turn] = messages(clip, task)
    assert turn.role == "user"
    assert turn.content == (clip, TextPart(text=words))
