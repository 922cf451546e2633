"""One chat call: what to ask of the pipeline, and how the caller wants to hear back.

Knows the pipeline's own description of itself and the request's meaning. Pure: bytes in, a
`ChatCall` or an `OmniError` out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from omni_core.errors import ContextLengthError, MediaError, NotFoundError, RequestError
from omni_core.pipeline import Pipeline
from omni_core.specs import ModelInfo
from omni_core.types import (
    MediaOptions,
    MediaPart,
    Message,
    Modality,
    Part,
    Request,
    RequestParams,
    SamplingParams,
    Shared,
)
from omni_server.audio import FORMATS, STREAM_FORMAT
from omni_server.openai.messages import MessageRules, to_messages
from omni_server.openai.refused import check_stream_options, refuse_unsupported
from omni_server.openai.sampling import request_sampling, stage_sampling
from omni_server.openai.tools import tool_use
from omni_server.schema.chat import PART_TYPES, ChatBody
from omni_server.schema.decode import decode_body
from omni_server.voices.known import Voices

DEFAULT_FORMAT = "wav"
MAX_CHOICES = 8
VOICE = "audio.voice"
_HINTS = {"type": f"one of {', '.join(PART_TYPES)}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A checked request and the shape of its answer."""

    requests: tuple[Request, ...]
    """One for each choice."""
    stream: bool
    wants_audio: bool
    audio_format: str
    include_usage: bool
    include_timeline: bool

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token's log-probability is part of the answer."""
        return self.requests[0].params.sampling.logprobs is not None

    @property
    def only_calls(self) -> bool:
        """Whether the reply is calls of functions and nothing else."""
        use = self.requests[0].tool_use
        return use is not None and use.required


def parse_call(
    body: bytes | bytearray,
    *,
    pipeline: Pipeline,
    voices: Voices,
    served_model_name: str,
    rules: MessageRules,
    request_id: str,
    client_named: Callable[[str | None], str],
    longest_s: float | None,
    max_body_bytes: int,
) -> ChatCall:
    """Check a request body against the API and against what this pipeline can do.

    `client_named` gives the key of the client for the `user` it names; `longest_s` is what the
    server lets a request take, `max_body_bytes` what all choices together may carry of the body.
    """
    chat = decode_body(body, ChatBody, _HINTS)
    check_model(chat.model, served_model_name)
    refuse_unsupported(chat, pipeline.info)
    check_stream_options(chat.stream_options, stream=bool(chat.stream))
    params = _params(chat, pipeline, voices)
    wants_audio = "audio" in params.modalities
    _check_lengths(chat, pipeline.info.context_length)
    request = Request(
        messages=_taken(to_messages(chat, rules), pipeline.info),
        tool_use=tool_use(chat),
        params=params,
        request_id=request_id,
        client=client_named(chat.user or chat.safety_identifier),
        timeout_s=min(filter(None, (chat.timeout, longest_s)), default=None),
    )
    return ChatCall(
        requests=_choices(request, chat, len(body), max_body_bytes),
        stream=bool(chat.stream),
        wants_audio=wants_audio,
        audio_format=_audio_format(chat, wants_audio),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        include_timeline=bool(chat.include_timeline),
    )


def _taken(messages: tuple[Message, ...], info: ModelInfo) -> tuple[Message, ...]:
    """The messages; MediaError for the first item of a kind that the model does not take."""
    for part in (part for message in messages for part in message.content):
        if isinstance(part, MediaPart) and part.kind not in info.input_modalities:
            takes = ", ".join(info.input_modalities)
            raise MediaError(
                f"'{part.param}': the served model takes no {part.kind}; it takes {takes}.",
                param=part.param,
                code="unsupported_value",
            )
    return messages


def _choices(
    request: Request, chat: ChatBody, body_bytes: int, max_body_bytes: int
) -> tuple[Request, ...]:
    """The request once for each choice; where it has seeds, each choice has its own."""
    wanted = chat.n or 1
    if wanted > MAX_CHOICES:
        raise RequestError(f"'n' is at most {MAX_CHOICES}.", param="n")
    if wanted > 1 and chat.include_timeline:
        raise RequestError(
            "'include_timeline' needs 'n' to be 1: each choice has a timeline of its own.",
            param="include_timeline",
        )
    if wanted * body_bytes > max_body_bytes:
        raise RequestError(
            f"'n': the {body_bytes} bytes of this request count once for each choice, and together "
            f"they may be {max_body_bytes}; ask for fewer choices, or send media as URLs.",
            param="n",
        )
    if wanted > 1:
        request = _sharing_media(request, Shared(by=uuid.uuid4().hex, requests=wanted))
    return tuple(seeded(request, choice) for choice in range(wanted))


def _sharing_media(request: Request, shared: Shared) -> Request:
    """The request with its media named as those of all choices, which are fetched once."""
    messages = tuple(
        msgspec.structs.replace(message, content=tuple(_share(p, shared) for p in message.content))
        for message in request.messages
    )
    return msgspec.structs.replace(request, messages=messages)


def _share(part: Part, shared: Shared) -> Part:
    if isinstance(part, MediaPart) and part.url is not None:
        return msgspec.structs.replace(part, shared=shared)
    return part


def seeded(request: Request, choice: int) -> Request:
    """The request for another choice of its reply: each of its seeds is that many further."""
    params = request.params
    further = msgspec.structs.replace(
        params,
        sampling=_with_seed(params.sampling, choice),
        stage_params={name: _with_seed(p, choice) for name, p in params.stage_params.items()},
    )
    return msgspec.structs.replace(request, params=further) if choice else request


def _with_seed(params: SamplingParams, choice: int) -> SamplingParams:
    if params.seed is None:
        return params
    return msgspec.structs.replace(params, seed=params.seed + choice)


def _params(chat: ChatBody, pipeline: Pipeline, voices: Voices) -> RequestParams:
    modalities = _modalities(chat.modalities, pipeline)
    return RequestParams(
        modalities=modalities,
        voice=_voice(chat, voices, "audio" in modalities),
        sampling=request_sampling(chat),
        stage_params=stage_sampling(chat, pipeline.stages),
        media=_media_options(chat),
    )


def check_model(model: str | None, served_model_name: str) -> None:
    """NotFoundError unless `model` is the one that is served; absent means that one."""
    if model is not None and model != served_model_name:
        raise NotFoundError(
            f"The model {model!r} does not exist; this server has {served_model_name!r}.",
            param="model",
            code="model_not_found",
        )


def _check_lengths(chat: ChatBody, context_length: int) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        check_reply_length(getattr(chat, name), context_length, name)


def check_reply_length(asked: int | None, context_length: int, name: str) -> None:
    """Refuse replies over the whole context; what a prompt leaves of it, the pipeline knows."""
    if asked is not None and asked > context_length:
        raise ContextLengthError(
            f"'{name}' is {asked} and the model's context is {context_length}, which must also "
            "hold the prompt; ask for less.",
            param=name,
        )


def _modalities(wanted: list[str] | None, pipeline: Pipeline) -> tuple[Modality, ...]:
    """What the pipeline must emit; audio brings its transcript along, so it implies text."""
    if wanted is None:
        return ("text",)
    for name in wanted:
        if name not in ("text", "audio"):
            raise RequestError(
                f"'modalities': {name!r} is not one of text, audio.", param="modalities"
            )
    if not wanted:
        raise RequestError(
            "'modalities' is empty; ask for text, audio or both.", param="modalities"
        )
    if "audio" not in wanted:
        return ("text",)
    if "audio" not in pipeline.modalities:
        why = pipeline.info.refused_modalities.get(
            "audio", f"this pipeline emits {', '.join(pipeline.modalities)} only"
        )
        raise RequestError(
            f"Audio output is not served here: {why}.",
            param="modalities",
            code="unsupported_value",
        )
    return ("text", "audio")


def _voice(chat: ChatBody, voices: Voices, wants_audio: bool) -> str | None:
    """The voice as it is spelled; None leaves the choice to the checkpoint."""
    asked = chat.audio.voice if chat.audio else None
    if asked is None or not (wants_audio or voices.pipeline.info.voices):
        return None
    return voices.named(asked, VOICE)


def _audio_format(chat: ChatBody, wants_audio: bool) -> str:
    asked = chat.audio.format if chat.audio else None
    if asked is None:
        return STREAM_FORMAT if chat.stream else DEFAULT_FORMAT
    if asked not in FORMATS:
        raise RequestError(
            f"'audio.format': {asked!r} is not one of {', '.join(FORMATS)}.", param="audio.format"
        )
    if chat.stream and wants_audio and asked != STREAM_FORMAT:
        raise RequestError(
            f"'audio.format': streamed audio is always {STREAM_FORMAT}; ask for that, "
            f"or for {asked} without stream.",
            param="audio.format",
            code="unsupported_value",
        )
    return asked


def _media_options(chat: ChatBody) -> MediaOptions:
    low, high = chat.min_pixels, chat.max_pixels
    if low is not None and high is not None and low > high:
        raise RequestError(
            f"'min_pixels' ({low}) is larger than 'max_pixels' ({high}).", param="min_pixels"
        )
    return MediaOptions(
        use_audio_in_video=bool(chat.use_audio_in_video),
        video_fps=chat.video_fps,
        video_max_frames=chat.video_max_frames,
        min_pixels=low,
        max_pixels=high,
        total_pixels=chat.total_pixels,
    )
