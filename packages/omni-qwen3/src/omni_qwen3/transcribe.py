"""How Qwen3-Omni is asked to write down speech.

Knows the wording and the order of parts that Qwen's own cookbooks use for recognition
(speech_recognition.ipynb) and translation (speech_translation.ipynb). Knows no audio.
"""

from __future__ import annotations

from omni_core.languages import LANGUAGES
from omni_core.specs import TranscriptionTask
from omni_core.types import MediaPart, Message, TextPart


def messages(clip: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """One user turn: the clip, then the instruction, as the model was trained on."""
    return (Message(role="user", content=(clip, TextPart(text=instruction(task)))),)


def instruction(task: TranscriptionTask) -> str:
    """The cookbooks' sentence; a prompt, which they do not have, follows it as a hint."""
    spoken = "" if task.language is None else f"{LANGUAGES[task.language]} "
    if task.translate:
        asked = f"Listen to the provided {spoken}speech and produce a translation in English text."
    else:
        asked = f"Transcribe the {spoken}audio into text."
    if not task.prompt:
        return asked
    return f"{asked} For names, spelling and style, go by this text: {task.prompt}"
