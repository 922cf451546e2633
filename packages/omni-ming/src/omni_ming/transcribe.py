"""How Ming-flash-omni is asked to write down speech.

The sentence for recognition is that of the authors' examples (Ming-lite-omni's README); the others
are made like it, and have not been tried with published weights. Knows no audio.
"""

from __future__ import annotations

from omni_core.languages import LANGUAGES
from omni_core.specs import TranscriptionTask
from omni_core.types import MediaPart, Message, TextPart


def messages(clip: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """One user turn: the clip, then the instruction."""
    return (Message(role="user", content=(clip, TextPart(text=instruction(task)))),)


def instruction(task: TranscriptionTask) -> str:
    """What to do with the clip; a prompt follows as a hint."""
    language = None if task.language is None else LANGUAGES[task.language]
    if task.translate:
        spoken = "this speech" if language is None else f"this {language} speech"
        asked = f"Please translate {spoken} into English. Format: oral."
    elif language is None:
        asked = "Please recognize the language of this speech and transcribe it. Format: oral."
    else:
        asked = f"Please transcribe this {language} speech. Format: oral."
    if not task.prompt:
        return asked
    return f"{asked} For names, spelling and style, go by this text: {task.prompt}"
