from __future__ import annotations
from typing import Any, Literal, TypeAlias
import msgspec
import numpy as np
import numpy.typing as npt
Modality: TypeAlias = Literal['text', 'audio']
MediaKind: TypeAlias = Literal['image', 'audio', 'video']
FinishReason: TypeAlias = Literal['stop', 'length', 'tool_calls']
AudioFinishReason: TypeAlias = Literal['stop', 'length']
Channel: TypeAlias = Literal['content', 'reasoning']
Role: TypeAlias = Literal['system', 'developer', 'user', 'assistant', 'tool']
FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal['json_schema', 'lark']
    text: str
    param: str | None = None

class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    grammar: Grammar | None = None

    def over(self, defaults: SamplingParams) -> SamplingParams:
        ...

class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag='text'):
    text: str

class Shared(msgspec.Struct, frozen=True, kw_only=True):
    by: str
    requests: int

class MediaPart(msgspec.Struct, frozen=True, kw_only=True, tag='media'):
    kind: MediaKind
    data: bytes | None = None
    url: str | None = None
    param: str | None = None
    shared: Shared | None = None
Part: TypeAlias = TextPart | MediaPart

class VoiceSample(msgspec.Struct, frozen=True, kw_only=True):
    audio: MediaPart
    text: str = ''

class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    call_id: str
    name: str
    arguments: dict[str, Any]

class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Role
    content: tuple[Part, ...]
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] = {}
    strict: bool = False

class ToolUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    tools: tuple[Tool, ...] = ()
    required: bool = False
    only: str | None = None
    parallel: bool = True
    params: tuple[str, ...] = ()

class MediaOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    use_audio_in_video: bool = False
    video_fps: float | None = None
    video_max_frames: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    total_pixels: int | None = None

class RequestParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    modalities: tuple[Modality, ...] = ('text',)
    voice: str | None = None
    sampling: SamplingParams = SamplingParams()
    stage_params: dict[str, SamplingParams] = {}
    media: MediaOptions = MediaOptions()
    return_codec: bool = False

    def sampling_for(self, stage: str) -> SamplingParams:
        ...

class Request(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[Message, ...] = ()
    read_aloud: str | None = None
    prompt: str | tuple[int, ...] | None = None
    tool_use: ToolUse | None = None
    voice_sample: VoiceSample | None = None
    params: RequestParams = RequestParams()
    request_id: str | None = None
    client: str = ''
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        ...

    def content(self) -> Payload:
        ...

class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    prompt_audio_tokens: int = 0
    prompt_image_tokens: int = 0
    cached_tokens: int = 0
    text_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        ...

class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token_id: int
    spelling: bytes
    logprob: float

class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    top: tuple[TopLogprob, ...] = ()

class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag='text'):
    text: str
    token_ids: tuple[int, ...] = ()
    channel: Channel = 'content'
    logprobs: tuple[TokenLogprob, ...] = ()

class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, tag='tool_call'):
    index: int
    call_id: str
    name: str | None = None
    arguments: str = ''

class CodecDelta(msgspec.Struct, frozen=True, kw_only=True, tag='codec'):
    codes: IntArray

class AudioDelta(msgspec.Struct, frozen=True, kw_only=True, tag='audio'):
    samples: FloatArray
    sample_rate: int

class StageSpan(msgspec.Struct, frozen=True, kw_only=True):
    stage: str
    start_s: float
    first_output_s: float | None
    end_s: float

class Finished(msgspec.Struct, frozen=True, kw_only=True, tag='finished'):
    finish_reason: FinishReason
    audio_finish_reason: AudioFinishReason | None = None
    usage: Usage
    timeline: tuple[StageSpan, ...] = ()
Event: TypeAlias = TextDelta | ToolCallDelta | CodecDelta | AudioDelta | Finished
Payload: TypeAlias = dict[str, Any]
