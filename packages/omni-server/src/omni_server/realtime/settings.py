"""A session's settings: their shape, and updates that change what they name or nothing at all.

Knows names, types and ranges of the protocol. What of it this server can do is `abilities`'s.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from omni_core.errors import RequestError
from omni_server.realtime.events import MOST_ID_CHARACTERS
from omni_server.realtime.formats import G711_RATE, PCM_RATE, AudioFormat, FormatName
from omni_server.realtime.items import Json
from omni_server.schema.chat import VoiceReference
from omni_server.schema.decode import convert_field

MOST_CHARACTERS: Final = 1024 * 1024
"""Of a text: several times what a context holds."""
MOST_PROMPT_CHARACTERS: Final = 16 * 1024
SessionType: TypeAlias = Literal["realtime", "transcription"]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Ratio: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Speed: TypeAlias = Annotated[float, Meta(ge=0.25, le=1.5)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
MostTokens: TypeAlias = Tokens | Literal["inf"]
Pause: TypeAlias = Annotated[int, Meta(ge=0, le=60_000)]
IdleTime: TypeAlias = Annotated[int, Meta(ge=100, le=600_000)]
Instructions: TypeAlias = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Prompt: TypeAlias = Annotated[str, Meta(max_length=MOST_PROMPT_CHARACTERS)]
Name: TypeAlias = Annotated[str, Meta(max_length=MOST_ID_CHARACTERS)]
Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]

_NULL_IS_A_VALUE: Final = frozenset(
    {"turn_detection", "transcription", "noise_reduction", "tracing", "prompt", "idle_timeout_ms"}
)
"""Elsewhere null is how some clients write a field that they do not set."""
_READ_ONLY: Final = frozenset({"id", "object", "expires_at", "client_secret"})
"""What clients send back as they got it."""

_BETA_NAMES: Final = {
    "modalities": "output_modalities",
    "voice": "audio.output.voice",
    "speed": "audio.output.speed",
    "input_audio_format": "audio.input.format",
    "output_audio_format": "audio.output.format",
    "input_audio_transcription": "audio.input.transcription",
    "input_audio_noise_reduction": "audio.input.noise_reduction",
    "turn_detection": "audio.input.turn_detection",
    "max_response_output_tokens": "max_output_tokens",
}


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown settings are errors: a session that ignored one would not be what was asked for."""


class FormatSettings(_Settings, frozen=True, kw_only=True):
    """A format of sound."""

    type: FormatName = "audio/pcm"
    rate: int | None = None

    @property
    def format(self) -> AudioFormat:
        """With its usual rate if none is given."""
        usual = PCM_RATE if self.type == "audio/pcm" else G711_RATE
        return AudioFormat(self.type, self.rate or usual)


class NoiseReduction(_Settings, frozen=True, kw_only=True):
    """A filter before the model."""

    type: Name


class InputTranscription(_Settings, frozen=True, kw_only=True):
    """That turns are written down, too."""

    model: Name | None = None
    language: Name | None = None
    prompt: Prompt = ""


class TurnDetection(_Settings, frozen=True, kw_only=True):
    """How the server finds turns."""

    type: Name = "server_vad"
    threshold: Share = 0.5
    prefix_padding_ms: Pause = 300
    silence_duration_ms: Pause = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: IdleTime | None = None
    eagerness: Name | None = None


class AudioInput(_Settings, frozen=True, kw_only=True):
    """What comes in."""

    format: FormatSettings = FormatSettings()
    noise_reduction: NoiseReduction | None = None
    transcription: InputTranscription | None = None
    turn_detection: TurnDetection | None = None


class AudioOutput(_Settings, frozen=True, kw_only=True):
    """What goes out."""

    format: FormatSettings = FormatSettings()
    voice: Name | VoiceReference | None = None
    speed: Speed = 1.0

    @property
    def voice_id(self) -> str | None:
        """The voice by its name alone."""
        return self.voice.id if isinstance(self.voice, VoiceReference) else self.voice


class Audio(_Settings, frozen=True, kw_only=True):
    """Both ways."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class TokenLimits(_Settings, frozen=True, kw_only=True):
    """Of what is kept of a conversation."""

    post_instructions: Tokens | None = None


class Retention(_Settings, frozen=True, kw_only=True):
    """How much stays when old turns go."""

    type: Literal["retention_ratio"] = "retention_ratio"
    retention_ratio: Ratio = 0.8
    token_limits: TokenLimits = TokenLimits()


class Answering(_Settings, frozen=True, kw_only=True):
    """Settings that a single response may have otherwise."""

    instructions: Instructions = ""
    output_modalities: tuple[Literal["text", "audio"], ...] = ("audio",)
    audio: Audio = Audio()
    tools: tuple[Json, ...] = ()
    tool_choice: Name | Json = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: MostTokens = "inf"
    temperature: Temperature | None = None
    prompt: Json | None = None
    reasoning: Json | None = None
    include_timeline: bool = False
    """Omni's own: `timeline` in `response.done`, as in chat."""

    @property
    def speaks(self) -> bool:
        """Whether answers are spoken."""
        return "audio" in self.output_modalities


class SessionSettings(Answering, frozen=True, kw_only=True):
    """All settings of a session."""

    model: Name
    type: SessionType = "realtime"
    include: tuple[Name, ...] = ()
    tracing: str | Json | None = None
    truncation: Literal["auto", "disabled"] | Retention = "auto"

    @property
    def retention(self) -> Retention:
        """What stays of a conversation that grows too long."""
        return self.truncation if isinstance(self.truncation, Retention) else Retention()


class ResponseSettings(Answering, frozen=True, kw_only=True):
    """All settings of one response."""

    conversation: Literal["auto", "none"] = "auto"
    input: tuple[Json, ...] | None = None
    """Items to answer instead of the conversation."""
    metadata: dict[str, str] | None = None

    @property
    def is_apart(self) -> bool:
        """Whether the answer becomes no part of the conversation."""
        return self.conversation == "none"


def updated(settings: SessionSettings, changes: Json) -> SessionSettings:
    """The settings with those that `changes` names; RequestError if one is wrong or unknown."""
    kept = {name: value for name, value in changes.items() if name not in _READ_ONLY}
    _refuse_unknown(kept, SessionSettings, "session")
    merged = _merged(msgspec.to_builtins(settings), kept, "session")
    return convert_field(merged, SessionSettings, "session")


def for_response(settings: SessionSettings, asked: Json | None) -> ResponseSettings:
    """The settings of one response: the session's, with what is `asked` of this one."""
    _refuse_unknown(asked or {}, ResponseSettings, "response")
    answering = msgspec.to_builtins(settings)
    base = {name: answering[name] for name in Answering.__struct_fields__}
    return convert_field(_merged(base, asked or {}, "response"), ResponseSettings, "response")


def _refuse_unknown(changes: Json, kind: type[Answering], path: str) -> None:
    for name in changes:
        if name in kind.__struct_fields__:
            continue
        meant = _BETA_NAMES.get(name)
        hint = f"it is '{path}.{meant}' now, unless you send OpenAI-Beta: realtime=v1"
        raise RequestError(
            f"Unknown parameter: '{path}.{name[:64]}'; {hint if meant else 'leave it out'}.",
            param=f"{path}.{name[:64]}",
            code="unknown_parameter",
        )


def _merged(base: Json, changes: Json, path: str) -> Json:
    """`base` with the values of `changes`, objects within objects; lists are replaced."""
    merged = dict(base)
    for name, value in changes.items():
        before = base.get(name)
        if value is None and name not in _NULL_IS_A_VALUE:
            continue
        if isinstance(value, dict) and isinstance(before, dict) and not _is_other(before, value):
            merged[name] = _merged(before, value, f"{path}.{name}")
        else:
            merged[name] = value
    return merged


def _is_other(before: Json, after: Json) -> bool:
    """Whether one kind of a thing takes the place of another, whose settings mean nothing to it."""
    return "type" in after and after["type"] != before.get("type")


def refuse(param: str, why: str, code: str = "unsupported_value") -> RequestError:
    """That a setting cannot be had."""
    return RequestError(f"'{param}' {why}.", param=param, code=code)
