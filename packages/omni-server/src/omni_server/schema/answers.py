"""What the API answers, as types for the OpenAPI document; the routes build the same as plain JSON.

Knows shapes alone. A field of a type with `UnsetType` is not always there.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from omni_core.types import AudioFinishReason, FinishReason, StageSpan


class ErrorObject(Struct, kw_only=True):
    """What is wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct, kw_only=True):
    """OpenAI's error object: the answer of every route that fails."""

    error: ErrorObject


class PromptTokensDetails(Struct, kw_only=True):
    """Of the prompt's tokens, those of media, and those whose state was still known."""

    audio_tokens: int
    image_tokens: int
    cached_tokens: int


class CompletionTokensDetails(Struct, kw_only=True):
    """Text tokens and codec frames."""

    audio_tokens: int
    text_tokens: int
    reasoning_tokens: int


class CompletionUsage(Struct, kw_only=True):
    """Tokens of a whole reply."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class LikelyToken(Struct, kw_only=True):
    """A token, and how likely it was."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprobs(LikelyToken, kw_only=True):
    """A token of the reply, and the likeliest in its place."""

    top_logprobs: list[LikelyToken]


class ChoiceLogprobs(Struct, kw_only=True):
    """One entry a token."""

    content: list[TokenLogprobs]
    refusal: None


class SpokenReply(Struct, kw_only=True):
    """A reply as sound: one file in base64."""

    id: str
    data: str
    transcript: str
    expires_at: int
    sample_rate: int
    finish_reason: AudioFinishReason


class CallOfFunction(Struct, kw_only=True):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(Struct, kw_only=True):
    """A function that the model calls."""

    id: str
    type: Literal["function"]
    function: CallOfFunction


class ReplyMessage(Struct, kw_only=True):
    """What the model says; with audio the text is its transcript and `content` is null."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    audio: SpokenReply | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ReplyChoice(Struct, kw_only=True):
    """One of `n` replies."""

    index: int
    message: ReplyMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, kw_only=True):
    """A whole reply."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ReplyChoice]
    usage: CompletionUsage
    system_fingerprint: str
    timeline: list[StageSpan] | UnsetType = UNSET


class SpokenDelta(Struct, kw_only=True):
    """More of the sound (pcm16 in base64) or of its transcript."""

    id: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET
    sample_rate: int | UnsetType = UNSET
    finish_reason: AudioFinishReason | UnsetType = UNSET


class CallDeltaOfFunction(Struct, kw_only=True):
    """The name comes first, the arguments in pieces."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    """More of the call with this index."""

    index: int
    function: CallDeltaOfFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(Struct, kw_only=True):
    """More of a reply."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    audio: SpokenDelta | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(Struct, kw_only=True):
    """More of one of `n` replies."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Struct, kw_only=True):
    """The data of each event of a streamed reply, before `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    usage: CompletionUsage | UnsetType | None = UNSET
    timeline: list[StageSpan] | UnsetType = UNSET


class CompletionLogprobs(Struct, kw_only=True):
    """One entry a token; `text_offset` in characters of the completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """One of `n` completions of a prompt, or more of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionChunk(Struct, kw_only=True):
    """The data of each event of streamed completions, before `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: CompletionUsage | UnsetType | None = UNSET


class Completion(CompletionChunk, kw_only=True):
    """All completions of all prompts."""

    usage: CompletionUsage


class SpeechUsage(Struct, kw_only=True):
    """Tokens of the text, and codec frames."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(Struct, tag_field="type", tag="speech.audio.delta", kw_only=True):
    """More of the file, in base64."""

    audio: str


class SpeechDone(Struct, tag_field="type", tag="speech.audio.done", kw_only=True):
    """The end of the speech; "length" if it is not the whole text."""

    usage: SpeechUsage
    finish_reason: AudioFinishReason


SpeechEvent: TypeAlias = SpeechDelta | SpeechDone


class InputTokenDetails(Struct, kw_only=True):
    """Tokens of the recording, and of the question put to the model."""

    audio_tokens: int
    text_tokens: int


class TokensUsed(Struct, tag_field="type", tag="tokens", kw_only=True):
    """Of all segments together."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokenDetails


class Transcription(Struct, kw_only=True):
    """What was said; `logprobs` where `include` asks for them."""

    text: str
    usage: TokensUsed
    logprobs: list[LikelyToken] | UnsetType = UNSET


class TranscriptDelta(Struct, tag_field="type", tag="transcript.text.delta", kw_only=True):
    """More of the text."""

    delta: str
    logprobs: list[LikelyToken] | UnsetType = UNSET


class TranscriptDone(Transcription, tag_field="type", tag="transcript.text.done", kw_only=True):
    """The whole text."""


TranscriptEvent: TypeAlias = TranscriptDelta | TranscriptDone


class SecondsUsed(Struct, tag_field="type", tag="duration", kw_only=True):
    """How long the recording is."""

    seconds: float


class TranscriptSegment(Struct, kw_only=True):
    """A part of the recording, in seconds from its start."""

    id: int
    start: float
    end: float
    seek: int
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscription(Struct, kw_only=True):
    """What was said, and when."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscriptSegment]
    usage: SecondsUsed


class Voice(Struct, kw_only=True):
    """A voice by the id that requests name."""

    id: str
    name: str


class VoiceObject(Struct, kw_only=True):
    """A voice, and what its uploader said of it."""

    id: str
    object: Literal["audio.voice"]
    name: str
    created_at: int
    type: Literal["audio_sample", "preset"]
    ref_text: str | None
    consent: str | None


class VoiceDeleted(Struct, kw_only=True):
    """An uploaded voice is no more."""

    id: str
    object: Literal["audio.voice.deleted"]
    deleted: Literal[True]


class VoiceList(Struct, kw_only=True):
    """All voices, and apart those that were uploaded."""

    voices: list[Voice]
    uploaded_voices: list[VoiceObject]
    default_voice: str | None


class Model(Struct, kw_only=True):
    """The served model and what it can do; without speech it has no rate and no voices."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    input_modalities: list[str]
    output_modalities: list[str]
    voices: list[str]
    default_voice: str | None
    sample_rate: int | None
    audio_formats: dict[str, list[str]]
    capabilities: dict[str, bool]
    supported_endpoints: list[str]


class ModelList(Struct, kw_only=True):
    """There is one."""

    object: Literal["list"]
    data: list[Model]
