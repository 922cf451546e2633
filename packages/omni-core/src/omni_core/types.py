"""The nouns everyone speaks: requests, sampling, media parts, events, usage.

Knows nothing of stages, transports or models. All of it crosses processes, so all of it is msgspec.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from omni_core.errors import RequestError

Modality: TypeAlias = Literal["text", "audio"]
MediaKind: TypeAlias = Literal["image", "audio", "video"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
AudioFinishReason: TypeAlias = Literal["stop", "length"]
Channel: TypeAlias = Literal["content", "reasoning"]
"""Where text of a reply belongs: the answer, or the thoughts that lead to it."""
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
ByteArray: TypeAlias = npt.NDArray[np.uint8]


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What text may be sampled; the reply ends only where this allows it."""

    kind: Literal["json_schema", "lark"]
    """What `text` is: a JSON schema, or a grammar of llguidance's Lark dialect."""
    text: str
    param: str | None = None
    """What the caller's API calls it, for errors."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one stage samples; `None` means "what the checkpoint's generation config says"."""

    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1 switches it off."""
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
    """Report each token's log-probability, and those of so many likeliest tokens beside it."""
    grammar: Grammar | None = None
    """None leaves the text free."""

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """These params, with `defaults` where this leaves a field unset."""
        values = {
            name: mine if (mine := getattr(self, name)) is not None else getattr(defaults, name)
            for name in self.__struct_fields__
        }
        return SamplingParams(**values)


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Text in a message."""

    text: str


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What several requests have in common."""

    by: str
    """A name of those requests that no others have."""
    requests: int
    """How many they are."""


class MediaPart(msgspec.Struct, frozen=True, kw_only=True, tag="media"):
    """One image, audio clip or video: its bytes, or a data:/http(s): URL to fetch them from."""

    kind: MediaKind
    data: bytes | None = None
    url: str | None = None
    param: str | None = None
    """What the caller's API calls this item, for errors; None is its place in the messages."""
    shared: Shared | None = None
    """Its URL is fetched once for all of these requests."""


Part: TypeAlias = TextPart | MediaPart


class VoiceSample(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of the voice to speak with, in place of one of the checkpoint's."""

    audio: MediaPart
    text: str = ""
    """What is said in it; "" if nobody knows. Voices come out less alike without."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a function by the model, whole."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chat turn."""

    role: Role
    content: tuple[Part, ...]
    name: str | None = None
    """Who speaks, of several in the same role."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant called, beside what it said."""
    tool_call_id: str | None = None
    """The call whose result a message of role "tool" is."""


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = {}
    """JSON schema of its arguments, an object."""
    strict: bool = False
    """The arguments must satisfy the schema, whatever the model would rather say."""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The functions of a request, and how they may be called."""

    tools: tuple[Tool, ...] = ()
    required: bool = False
    """The reply is calls and nothing else, one at least."""
    only: str | None = None
    """The one function that may be called."""
    parallel: bool = True
    """A reply may hold several calls."""
    params: tuple[str, ...] = ()
    """What the caller's API calls each tool's parameters, for errors."""


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How images and videos of a request are read; `None` means the checkpoint's own default."""

    use_audio_in_video: bool = False
    video_fps: float | None = None
    video_max_frames: int | None = None
    min_pixels: int | None = None
    """Lower bound of one image's or frame's area after resizing, in pixels."""
    max_pixels: int | None = None
    total_pixels: int | None = None
    """Upper bound of a whole video's area, summed over frames, in pixels."""


class RequestParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every stage may know of a request. Small: it rides on each payload."""

    modalities: tuple[Modality, ...] = ("text",)
    voice: str | None = None
    sampling: SamplingParams = SamplingParams()
    stage_params: dict[str, SamplingParams] = {}
    media: MediaOptions = MediaOptions()
    return_codec: bool = False
    """Emit `CodecDelta` events as well."""

    def sampling_for(self, stage: str) -> SamplingParams:
        """The parameters the caller gave for one stage, by name."""
        return self.stage_params.get(stage, SamplingParams())


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `Pipeline.generate`: messages to answer, a text to speak as it is, or a raw
    prompt to complete."""

    messages: tuple[Message, ...] = ()
    read_aloud: str | None = None
    """Spoken, not answered. Comes as audio alone, for the caller has the text; `ModelInfo` says
    whether a pipeline can."""
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt to complete: text, in which special tokens may be spelled out, or its token ids.
    No template is put around it, and the reply is text just as the model writes it; `ModelInfo`
    says whether a pipeline can."""
    tool_use: ToolUse | None = None
    voice_sample: VoiceSample | None = None
    """Whose voice the audio of the reply has; `ModelInfo` says whether a pipeline can."""
    params: RequestParams = RequestParams()
    request_id: str | None = None
    """Chosen by the caller for logs and for `Pipeline.cancel`; need not be unique. Drawn when
    absent."""
    client: str = ""
    """Whom the request is for; clients take turns where requests wait."""
    timeout_s: float | None = None
    """The request fails when it has not ended after so long, its wait in the queue included."""

    def __post_init__(self) -> None:
        if self.read_aloud is not None:
            self._require_alone("read_aloud", "a text to read aloud", "audio")
        if self.prompt is not None:
            self._require_alone("prompt", "a raw prompt", "text")
        if self.voice_sample is not None:
            self._check_voice(self.voice_sample)

    def _check_voice(self, sample: VoiceSample) -> None:
        if sample.audio.kind != "audio":
            raise RequestError(
                f"a voice is cloned from audio, not from {sample.audio.kind}", param="voice_sample"
            )
        if "audio" not in self.params.modalities:
            raise RequestError(
                "nothing is spoken, so there is no use for a voice; ask for audio",
                param="voice_sample",
            )
        if self.params.voice is not None:
            raise RequestError(
                f"the voice {self.params.voice!r} and a recording are two voices; send one of them",
                param="voice_sample",
            )

    def _require_alone(self, name: str, what: str, comes_as: Modality) -> None:
        if self.messages or self.tool_use or None not in (self.read_aloud, self.prompt):
            raise RequestError(f"{what} is a request by itself; send nothing else", param=name)
        if self.params.modalities != (comes_as,):
            raise RequestError(
                f"the reply to {what} is {comes_as} alone; set modalities=({comes_as!r},)",
                param="modalities",
            )

    def content(self) -> Payload:
        """What the entry stage gets of it, beside `params`: `read_aloud`; `prompt`, ids as an int64
        array; or else `messages` and `tool_use`, if there is one, as bytes of msgpack. With any of
        them `voice_sample`, as bytes of msgpack too."""
        payload: Payload = {}
        if self.voice_sample is not None:
            payload["voice_sample"] = msgspec.msgpack.encode(self.voice_sample)
        if self.read_aloud is not None:
            return {**payload, "read_aloud": self.read_aloud}
        if self.prompt is not None:
            is_text = isinstance(self.prompt, str)
            return {"prompt": self.prompt if is_text else np.array(self.prompt, dtype=np.int64)}
        payload["messages"] = msgspec.msgpack.encode(self.messages)
        if self.tool_use is not None:
            payload["tool_use"] = msgspec.msgpack.encode(self.tool_use)
        return payload


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request. Codec frames are audio tokens and never count as text."""

    prompt_tokens: int = 0
    prompt_audio_tokens: int = 0
    prompt_image_tokens: int = 0
    cached_tokens: int = 0
    text_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of `text_tokens` that are reasoning."""
    audio_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{n: getattr(self, n) + getattr(other, n) for n in self.__struct_fields__})


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """How likely one token was at some place of a reply."""

    token_id: int
    spelling: bytes
    """The bytes it stands for, or the name of a special token; empty if the tokenizer has none."""
    logprob: float
    """Natural logarithm of its probability, before penalties, bias, temperature and filters."""


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """The same of a token of the reply, and of the likeliest tokens in its place."""

    top: tuple[TopLogprob, ...] = ()
    """As many as `SamplingParams.logprobs` asks for, the likeliest first."""


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """More text; never splits a character. `text` may be "" while `token_ids` is not."""

    text: str
    token_ids: tuple[int, ...] = ()
    """As they are sampled, ahead of text that may yet begin a stop string."""
    channel: Channel = "content"
    logprobs: tuple[TokenLogprob, ...] = ()
    """If the request asks for them: of tokens whose text is certainly part of the reply, so they
    may come later than the same tokens in `token_ids`. Never of end tokens or stop strings."""


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call"):
    """More of a call of a function. Calls come one after the other."""

    index: int
    """Which call of the reply, from 0."""
    call_id: str
    name: str | None = None
    """In a call's first delta, and in no other."""
    arguments: str = ""
    """A piece of the JSON text; all of a call's, joined, are an object, unless the reply was cut or
    the model did not write one."""


class CodecDelta(msgspec.Struct, frozen=True, kw_only=True, tag="codec"):
    """More codec frames: `codes` is int64 (groups, frames)."""

    codes: IntArray


class AudioDelta(msgspec.Struct, frozen=True, kw_only=True, tag="audio"):
    """More audio: `samples` is float32 mono in [-1, 1], shape (n,)."""

    samples: FloatArray
    sample_rate: int


class StageSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage did for one request, in seconds since the request was submitted."""

    stage: str
    start_s: float
    first_output_s: float | None
    end_s: float


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The last event of every request that did not fail."""

    finish_reason: FinishReason
    """Of the text, or of the audio where there is no text."""
    audio_finish_reason: AudioFinishReason | None = None
    """None where no audio was asked for. "length" of audio that is not whole."""
    usage: Usage
    timeline: tuple[StageSpan, ...] = ()


Event: TypeAlias = TextDelta | ToolCallDelta | CodecDelta | AudioDelta | Finished

Payload: TypeAlias = dict[str, Any]
"""What stages hand each other: str keys; values are tensors (torch or numpy) at any depth of plain
dicts and lists, or str, bytes, int, float, bool, None."""
