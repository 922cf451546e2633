"""What a session may ask of this server, and what it has to begin with.

Knows what the pipeline says of itself. Pure: settings in, the same or a `RequestError` out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from omni_core.languages import LANGUAGES
from omni_core.pipeline import Pipeline
from omni_server.openai.call import check_model
from omni_server.realtime.formats import G711_RATE, PCM_RATES
from omni_server.realtime.settings import (
    Answering,
    Audio,
    AudioInput,
    FormatSettings,
    InputTranscription,
    MostTokens,
    ResponseSettings,
    SessionSettings,
    SessionType,
    TurnDetection,
    refuse,
)
from omni_server.realtime.tools import to_tool_use
from omni_server.voices.known import Voices

LOGPROBS: Final = "item.input_audio_transcription.logprobs"
MOST_METADATA: Final = 16
MOST_TOOLS_BYTES: Final = 256 * 1024
"""Of all functions together, as JSON: each response is told of them."""
_KEY_CHARACTERS: Final = 64
_VALUE_CHARACTERS: Final = 512
_TRANSCRIPTION: Final = "audio.input.transcription"
VOICE: Final = "audio.output.voice"
_INPUT: Final = "session.audio.input"
A = TypeVar("A", bound=Answering)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What one server can do in a session."""

    pipeline: Pipeline
    voices: Voices
    served_model_name: str
    no_vad: str | None
    """Why turns cannot be detected here, None if they can."""

    @property
    def hears(self) -> bool:
        """Whether the model takes sound."""
        return "audio" in self.pipeline.info.input_modalities

    def first_settings(self, kind: SessionType) -> SessionSettings:
        """What a session has before its client says anything."""
        speaks = "audio" in self.pipeline.modalities
        detects = self.hears and self.no_vad is None
        transcription = InputTranscription() if kind == "transcription" else None
        heard = AudioInput(
            turn_detection=TurnDetection() if detects else None, transcription=transcription
        )
        settings = SessionSettings(
            type=kind,
            model=self.served_model_name,
            output_modalities=("audio",) if speaks else ("text",),
            audio=Audio(input=heard),
        )
        return self._with_voice(settings, "session")

    def checked_session(self, settings: SessionSettings) -> SessionSettings:
        """The settings as they will be shown; RequestError names the first that cannot be had."""
        check_model(settings.model, self.served_model_name)
        self._check_include(settings.include)
        if settings.tracing is not None:
            raise refuse("session.tracing", "is not supported: nothing is stored here")
        self._check_input(settings.audio.input)
        if settings.type == "transcription" and settings.audio.input.transcription is None:
            raise refuse(
                f"session.{_TRANSCRIPTION}", "is what a transcription session is for; set it"
            )
        return self._checked(settings, "session")

    def _check_include(self, asked: tuple[str, ...]) -> None:
        for name in asked:
            if name != LOGPROBS:
                raise refuse("session.include", f"has {name[:64]!r}, which is not {LOGPROBS}")
        if asked and not self.pipeline.info.logprobs:
            raise refuse("session.include", "cannot be had: the served model gives no logprobs")

    def checked_response(self, settings: ResponseSettings) -> ResponseSettings:
        """The same of one response."""
        metadata = settings.metadata or {}
        if len(metadata) > MOST_METADATA or any(
            len(key) > _KEY_CHARACTERS or len(value) > _VALUE_CHARACTERS
            for key, value in metadata.items()
        ):
            raise refuse(
                "response.metadata",
                f"has at most {MOST_METADATA} keys of {_KEY_CHARACTERS} characters, with values of "
                f"{_VALUE_CHARACTERS}",
                "invalid_value",
            )
        return self._checked(settings, "response")

    def _checked(self, settings: A, path: str) -> A:
        self._check_length(settings.max_output_tokens, f"{path}.max_output_tokens")
        if settings.prompt is not None:
            raise refuse(f"{path}.prompt", "is not supported: no prompts are stored here")
        if settings.reasoning is not None:
            raise refuse(f"{path}.reasoning", "is not supported here; leave it out")
        check_format(settings.audio.output.format, f"{path}.audio.output.format")
        if not settings.output_modalities:
            raise refuse(f"{path}.output_modalities", "is empty; ask for text or audio")
        if settings.speaks and "audio" not in self.pipeline.modalities:
            emits = f"this pipeline emits {', '.join(self.pipeline.modalities)} only"
            why = self.pipeline.info.refused_modalities.get("audio", emits)
            raise refuse(f"{path}.output_modalities", f"cannot have audio here: {why}")
        if len(msgspec.json.encode((settings.tools, settings.tool_choice))) > MOST_TOOLS_BYTES:
            raise refuse(
                f"{path}.tools",
                f"has over {MOST_TOOLS_BYTES} bytes; declare fewer, or shorter ones",
            )
        to_tool_use(settings, self.pipeline.info, path)
        shown = ("audio",) if settings.speaks else ("text",)
        settings = msgspec.structs.replace(settings, output_modalities=shown)
        return self._with_voice(settings, path)

    def _check_length(self, asked: MostTokens, path: str) -> None:
        context = self.pipeline.info.context_length
        if asked != "inf" and asked > context:
            raise refuse(
                path,
                f"is {asked} and the model's context is {context}, which must also hold the prompt",
                "context_length_exceeded",
            )

    def _with_voice(self, settings: A, path: str) -> A:
        info, output = self.pipeline.info, settings.audio.output
        voice = output.voice or info.default_voice
        if voice is not None and "audio" in self.pipeline.modalities:
            voice = self.voices.named(voice, f"{path}.{VOICE}")
        output = msgspec.structs.replace(output, voice=voice)
        audio = msgspec.structs.replace(settings.audio, output=output)
        return msgspec.structs.replace(settings, audio=audio)

    def _check_input(self, heard: AudioInput) -> None:
        check_format(heard.format, f"{_INPUT}.format")
        if heard.noise_reduction is not None:
            raise refuse(f"{_INPUT}.noise_reduction", "is not supported: set it to null")
        if heard.transcription is not None:
            self._check_transcription(heard.transcription)
        if heard.turn_detection is not None:
            self._check_turn_detection(heard.turn_detection)

    def _check_transcription(self, asked: InputTranscription) -> None:
        path = f"{_INPUT}.transcription"
        if self.pipeline.info.transcription is None or not self.hears:
            raise refuse(path, "cannot be had: the served model writes no speech down")
        if asked.language is not None and asked.language.lower() not in LANGUAGES:
            raise refuse(
                f"{path}.language",
                f"{asked.language[:32]!r} is no two-letter code of ISO 639-1; 'en' is English",
                "invalid_value",
            )

    def _check_turn_detection(self, asked: TurnDetection) -> None:
        path = f"{_INPUT}.turn_detection"
        if not self.hears:
            raise refuse(path, "cannot be had: the served model takes no sound; set it to null")
        if asked.type == "semantic_vad":
            raise refuse(
                f"{path}.type",
                "semantic_vad is not supported; use server_vad, whose silence_duration_ms says how "
                "long to wait, or null and commit turns",
            )
        if asked.type != "server_vad":
            raise refuse(f"{path}.type", f"{asked.type[:32]!r} is not server_vad", "invalid_value")
        if asked.eagerness is not None:
            raise refuse(f"{path}.eagerness", "is semantic_vad's, which is not supported here")
        if self.no_vad is not None:
            raise refuse(path, f"cannot be had: {self.no_vad}; set it to null and commit turns")


def check_format(asked: FormatSettings, path: str) -> None:
    """RequestError for a rate that the format does not have."""
    rates = PCM_RATES if asked.type == "audio/pcm" else (G711_RATE,)
    if asked.format.rate not in rates:
        known = " or ".join(map(str, rates))
        raise refuse(f"{path}.rate", f"of {asked.type} is {known}, not {asked.rate}")
