"""The body of POST /v1/chat/completions as clients may write it.

Knows field names, types and ranges of the OpenAI API reference plus Omni's extensions. null equals
absent; unknown fields are ignored; a number in quotes is an error. What a field means is not
decided here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

INT64_MAX = 2**63 - 1
NULL: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
"""Of fields that are only compared, so that nothing is built from whatever they hold; not a plain
default, which msgspec could not write into a JSON schema."""

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
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e9)]
"""Up to 31 years: a form can say "inf", which is more than clocks count."""
ParticipantName: TypeAlias = Annotated[str, Meta(max_length=64)]
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
    """`{"url": ...}`; other keys are ignored."""

    url: str


class ImageUrl(UrlObject):
    """A picture's URL; `detail` is a hint that `max_pixels` makes exact, and nobody here needs."""

    detail: Literal["auto", "low", "high"] | None = None


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

    image_url: str | ImageUrl


class VideoUrlContent(msgspec.Struct, tag_field="type", tag="video_url"):
    """A video part by URL."""

    video_url: str | UrlObject


MediaContent: TypeAlias = InputAudioContent | AudioUrlContent | ImageUrlContent | VideoUrlContent
ContentPart: TypeAlias = TextContent | RefusalContent | MediaContent
PART_TYPES = ("text", "input_audio", "audio_url", "image_url", "video_url", "refusal")


class AudioReference(msgspec.Struct):
    """An earlier spoken reply, named by the id it was sent under."""

    id: str


class FunctionReference(msgspec.Struct):
    """A function by its name."""

    name: str


class CalledFunction(msgspec.Struct):
    """What an earlier assistant turn called; `arguments` is JSON text."""

    name: str
    arguments: str


class MessageToolCall(msgspec.Struct, kw_only=True):
    """A call in an earlier assistant turn."""

    id: str
    type: str = "function"
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | list[ContentPart] | None = None
    name: ParticipantName | None = None
    audio: AudioReference | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw = NULL


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """One of `tools`."""

    type: str
    function: FunctionDefinition | None = None


class ToolReference(msgspec.Struct, kw_only=True):
    """One of `tools`, by its name."""

    type: Literal["function"] = "function"
    function: FunctionReference


class AllowedTools(msgspec.Struct, kw_only=True):
    """Some of `tools`, and whether one of them must be called."""

    mode: str
    tools: list[ToolReference]


class ToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` where a word is not enough."""

    type: str
    function: FunctionReference | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A JSON schema for the answer. `strict` changes nothing: every schema is kept to."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """What the answer must be."""

    type: str
    json_schema: JsonSchemaFormat | None = None


class Prediction(msgspec.Struct, kw_only=True):
    """A guess at the reply, which servers may use to be faster and this one does not."""

    type: Literal["content"]
    content: msgspec.Raw


class VoiceReference(msgspec.Struct):
    """A voice by its id."""

    id: str


class AudioOptions(msgspec.Struct):
    """How the reply is to be spoken."""

    voice: str | VoiceReference | None = None
    format: str | None = None


class StreamOptions(msgspec.Struct):
    """Options of a streamed reply."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CacheOptions(msgspec.Struct, kw_only=True):
    """How OpenAI is to cache a prompt; here prompts are cached without being told."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class ChatBody(SamplingFields, kw_only=True):
    """A conversation to continue. What may be anything is other servers' and served only where it
    asks for nothing."""

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

    safety_identifier: str | None = None

    n: PositiveInt | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    metadata: dict[str, str] | None = None
    prediction: Prediction | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in-memory", "in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None

    functions: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    reasoning_effort: msgspec.Raw = NULL
    service_tier: msgspec.Raw = NULL
    store: bool | None = None
    verbosity: msgspec.Raw = NULL
    web_search_options: msgspec.Raw = NULL
    moderation: msgspec.Raw = NULL
    mm_processor_kwargs: msgspec.Raw = NULL
