"""What is asked while things break: greedy requests of every kind, whose answers are known.

A greedy reply is a function of the checkpoint. What an undisturbed server says is what any other
must say: text to the character, sound to a rounding of the last bits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from caller import Heard, call
from cases import CASES, audio, image

SAMPLE_TOLERANCE: Final = 16
"""Of 32,768: pieces of other sizes add the same numbers in another order."""
_TEXT_STAGES: Final = frozenset(("frontend", "encoders", "thinker"))
_SPEECH_STAGES: Final = _TEXT_STAGES | {"talker", "code2wav"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request."""

    name: str
    body: dict[str, Any]
    visits: frozenset[str]
    """Processes without which it cannot be answered."""

    def written(self, *, stream: bool) -> dict[str, Any]:
        """The body to send."""
        return {**self.body, "stream": stream}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the reply to a question must be."""

    text: str
    sound: bytes
    finish_reason: str | None

    def differs(self, heard: Heard) -> str:
        """How a reply is another one; empty if it is not."""
        if heard.text != self.text:
            return f"it says {heard.text!r}, not {self.text!r}"
        if heard.finish_reason != self.finish_reason:
            return f"it ended with {heard.finish_reason!r}, not {self.finish_reason!r}"
        if len(heard.sound) != len(self.sound):
            return f"it has {len(heard.sound)} bytes of sound, not {len(self.sound)}"
        ours, theirs = (np.frombuffer(sound, "<i2").astype(int) for sound in _pair(heard, self))
        apart = int(np.abs(ours - theirs).max(initial=0))
        return "" if apart <= SAMPLE_TOLERANCE else f"its sound is {apart} of 32768 off"


def _pair(heard: Heard, answer: Answer) -> tuple[bytes, bytes]:
    return heard.sound, answer.sound


def _text(name: str, *content: Any, max_tokens: int = 24) -> Question:
    body = {
        "messages": [{"role": "user", "content": list(content)}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    return Question(name=name, body=body, visits=_TEXT_STAGES)


def _said(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


SPOKEN: Final = tuple(
    Question(name=f"speech {case.name}", body=case.body(), visits=_SPEECH_STAGES) for case in CASES
)
WRITTEN: Final = (
    _text("text", _said("Describe the voice of the fox."), max_tokens=48),
    _text("text short", _said("Hello"), max_tokens=4),
    _text("picture", image(), _said("What do you see?")),
    _text("sound", audio(), _said("What do you hear?")),
    _text("picture and sound", audio(1, seed=7), image(seed=8), _said("What is this?")),
)
QUESTIONS: Final = (*WRITTEN, *SPOKEN)


def endless(*, spoken: bool) -> Question:
    """A question whose answer takes longer than anybody waits for it."""
    long = {"temperature": 0, "max_tokens": 4000, "min_tokens": 4000}
    question = _text("endless", _said("Tell me everything."))
    body = {**question.body, **long}
    if not spoken:
        return Question(name="endless text", body=body, visits=_TEXT_STAGES)
    body |= {
        "modalities": ["text", "audio"],
        "audio": {"format": "pcm16"},
        "stage_params": {"talker_ar": long},
    }
    return Question(name="endless speech", body=body, visits=_SPEECH_STAGES)


async def answers(url: str, questions: Sequence[Question]) -> dict[str, Answer]:
    """Ask a server that nobody disturbs; AssertionError for any that it does not answer."""
    heard = await asyncio.gather(*(call(url, q.written(stream=False)) for q in questions))
    for question, reply in zip(questions, heard, strict=True):
        assert reply.status == 200, f"{question.name}: {reply.error or reply.broken}"
    return {
        question.name: Answer(text=reply.text, sound=reply.sound, finish_reason=reply.finish_reason)
        for question, reply in zip(questions, heard, strict=True)
    }
