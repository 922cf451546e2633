"""How the parrot is asked to write down speech: to repeat a clip, and how to hear it.

A parrot takes no instructions, so how to hear goes in a message that no user writes by accident.
"""

from __future__ import annotations

from typing import Final

import msgspec

from omni_core.errors import RequestError
from omni_core.specs import TranscriptionTask
from omni_core.types import MediaPart, Message, TextPart

NAME: Final = "parrot-task"
"""Of the message that holds a `TranscriptionTask` as JSON."""


def messages(clip: MediaPart, task: TranscriptionTask) -> tuple[Message, ...]:
    """The task, then the clip."""
    how = TextPart(text=msgspec.json.encode(task).decode())
    return (
        Message(role="developer", name=NAME, content=(how,)),
        Message(role="user", content=(clip,)),
    )


def task_of(conversation: tuple[Message, ...]) -> TranscriptionTask:
    """The task that came with a conversation; that of hearing whatever is said if none did."""
    for message in conversation:
        if message.role == "developer" and message.name == NAME:
            text = "".join(part.text for part in message.content if isinstance(part, TextPart))
            try:
                return msgspec.json.decode(text, type=TranscriptionTask)
            except msgspec.DecodeError as exc:
                raise RequestError(f"the message named {NAME!r} is no task: {exc}") from exc
    return TranscriptionTask()
