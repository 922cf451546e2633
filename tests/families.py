"""The models that every test of the HTTP API is run with: what a client must know of each.

`server_family` of conftest.py gives one after the other; suites whose servers live for a whole
session take `FAMILY`, which OMNI_FAMILY names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One tiny checkpoint."""

    name: str
    """As `omni tiny` knows it."""
    rate: int
    """Of speech, in Hz, as of the published ones."""
    frame_s: float
    """Sound that is made at a time, which is one audio token."""
    voices: tuple[str, str]
    """Two of them, the default one first."""
    speaker: str
    """The stage that speaks; a caller's parameters may be for it alone."""
    speech_stages: tuple[str, ...]
    """Those that only spoken replies reach."""
    brief: int
    """Steps of the speaker for about two seconds."""
    ends: dict[str, Any] = field(default_factory=dict)
    """Sampling that ends a reply by itself within a dozen tokens; fields of the body."""
    transcribe: str
    """What it is asked with a clip to be written down, in English."""
    prompt: str
    """A question as the model's format writes it, with `{}` for the words."""
    media_token: str
    """Which no raw prompt may have."""
    unspoken: tuple[str, ...] = ()
    """Texts without anything to say, which are refused."""
    sound_tokens: int
    """Of a second of sound that it hears."""
    repeats_frames: bool
    """A video may be sampled faster than it has frames."""
    tools: bool
    audio_in_video: bool
    clones_voices: bool

    def build(self, directory: str) -> None:
        """Write the checkpoint."""
        import_module(f"omni_{self.name}.tiny").build(directory)


FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="qwen3",
            rate=24_000,
            frame_s=0.08,
            voices=("ethan", "chelsie"),
            speaker="talker_ar",
            speech_stages=("talker_ar", "code2wav"),
            brief=24,
            transcribe="Transcribe the English audio into text.",
            prompt="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
            media_token="<|audio_pad|>",
            sound_tokens=13,
            repeats_frames=True,
            tools=True,
            audio_in_video=True,
            clones_voices=False,
        ),
        Family(
            name="ming",
            rate=44_100,
            frame_s=0.32,
            voices=("DB30", "lingguang"),
            speaker="talker_stream",
            speech_stages=("segmenter", "talker_stream"),
            brief=6,
            ends={"min_tokens": 10, "logit_bias": {384: 100}},  # <|role_end|>
            transcribe="Please transcribe this English speech. Format: oral.",
            prompt="<role>SYSTEM</role>你是一个友好的AI助手。\n\ndetailed thinking off<|role_end|>"
            "<role>HUMAN</role>{}<|role_end|><role>ASSISTANT</role>",
            media_token="<audioPatch>",
            unspoken=("\U0001f600", "..."),
            sound_tokens=25,
            repeats_frames=False,
            tools=False,
            audio_in_video=False,
            clones_voices=True,
        ),
    )
}
FAMILY = FAMILIES[os.environ.get("OMNI_FAMILY", "qwen3")]
