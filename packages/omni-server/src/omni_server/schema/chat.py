"""The body of POST /v1/chat/completions as clients may write it.

Knows field names, types and ranges of the OpenAI API reference plus Omni's extensions. null equals
absent; unknown fields are ignored; a number in quotes is an error. What a field means is not
decided here.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

INT64_MAX = 2**63 - 1

Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
NucleusMass: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty: TypeAlias = Annotated[float, Meta(gt=0)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
Seed: TypeAlias = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
PositiveInt: TypeAlias = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=20)]
FramesPerSecond: TypeAlias = Annotated[float, Meta(gt=0)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """Sampling of one stage: top level of a request, and each entry of `stage_params`."""

    temperature: Temperature | None = None
    top_p: NucleusMass | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[Count, Bias] | None = None
    seed: Seed | None = None
    max_tokens: PositiveInt | None = None
    min_tokens: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None


class UrlObject(msgspec.Struct):
    """`{"url": ...}`; other keys, such as `detail`, are hints nobody here needs."""

    url: str


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    """A text part."""

    text: str


class RefusalContent(msgspec.Struct, tag_field="type", tag="refusal"):
    """A refusal part of an earlier assistant turn."""

    refusal: str


class InputAudio(msgspec.Struct):
    """Audio as base64; `format` labels it and its content decides."""

    data: str
    format: str | None = None


class InputAudioContent(msgspec.Struct, tag_field="type", tag="input_audio"):
    """An inline audio part."""

    input_audio: InputAudio


class AudioUrlContent(msgspec.Struct, tag_field="type", tag="audio_url"):
    """An audio part by URL."""

    audio_url: str | UrlObject


class ImageUrlContent(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image part by URL."""

    image_url: str | UrlObject


class VideoUrlContent(msgspec.Struct, tag_field="type", tag="video_url"):
    """A video part by URL."""

    video_url: str | UrlObject


MediaContent: TypeAlias = InputAudioContent | AudioUrlContent | ImageUrlContent | VideoUrlContent
ContentPart: TypeAlias = TextContent | RefusalContent | MediaContent
PART_TYPES = ("text", "input_audio", "audio_url", "image_url", "video_url", "refusal")


class AudioReference(msgspec.Struct):
    """An earlier spoken reply, named by the id it was sent under."""

    id: str


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | list[ContentPart] | None = None
    audio: AudioReference | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class AudioOptions(msgspec.Struct):
    """How the reply is to be spoken."""

    voice: str | None = None
    format: str | None = None


class StreamOptions(msgspec.Struct):
    """Options of a streamed reply."""

    include_usage: bool | None = None


class ChatBody(SamplingFields, kw_only=True):
    """The whole body. Fields typed Any are other servers' and served only at their default."""

    messages: list[ChatMessage]
    model: str | None = None
    modalities: list[str] | None = None
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    images: list[str] | None = None
    audios: list[str] | None = None
    videos: list[str] | None = None
    use_audio_in_video: bool | None = None
    video_fps: FramesPerSecond | None = None
    video_max_frames: PositiveInt | None = None
    min_pixels: PositiveInt | None = None
    max_pixels: PositiveInt | None = None
    total_pixels: PositiveInt | None = None
    stage_params: dict[str, dict[str, Any] | None] | None = None
    include_timeline: bool | None = None
    timeout: Seconds | None = None
    user: str | None = None

    n: PositiveInt | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    mm_processor_kwargs: Any = None
