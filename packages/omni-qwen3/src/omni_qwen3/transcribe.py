"""How Qwen3-Omni is asked to write down speech.

Knows the order of parts and the sentence of Qwen's cookbook for translation
(cookbooks/speech_translation.ipynb), and the sentence for recognition that recipes with this model
share. Without a language each loses one word. Knows no audio.
"""

from __future__ import annotations

from omni_core.languages import LANGUAGES
from omni_core.specs import TranscriptionTask
from omni_core.types import MediaPart, Message, TextPart


def messages(clip: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """One user turn: the clip, then the instruction, as the model was trained on."""
    return (Message(role="user", content=(clip, TextPart(text=instruction(task)))),)


def instruction(task: TranscriptionTask) -> str:
    """One sentence; a prompt, for which Qwen publishes no wording, follows it as a hint."""
    spoken = "" if task.language is None else f"{LANGUAGES[task.language]} "
    if task.translate:
        asked = f"Listen to the provided {spoken}speech and produce a translation in English text."
    else:
        asked = f"Transcribe the {spoken}audio into text."
    if not task.prompt:
        return asked
    return f"{asked} For names, spelling and style, go by this text: {task.prompt}"
