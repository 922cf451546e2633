"""One chat call: what to ask of the pipeline, and how the caller wants to hear back.

Knows the pipeline's own description of itself and the request's meaning. Pure: bytes in, a
`ChatCall` or an `OmniError` out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omni_core.errors import ContextLengthError, NotFoundError, RequestError
from omni_core.pipeline import Pipeline
from omni_core.specs import ModelInfo
from omni_core.types import MediaOptions, Modality, Request, RequestParams
from omni_server.audio import FORMATS, STREAM_FORMAT
from omni_server.openai.messages import MessageRules, to_messages
from omni_server.openai.sampling import request_sampling, stage_sampling
from omni_server.openai.voices import voice_named
from omni_server.schema.chat import PART_TYPES, ChatBody
from omni_server.schema.decode import decode_body

DEFAULT_FORMAT = "wav"
_HINTS = {"type": f"one of {', '.join(PART_TYPES)}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A checked request and the shape of its answer."""

    request: Request
    stream: bool
    wants_audio: bool
    audio_format: str
    include_usage: bool
    include_timeline: bool

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token's log-probability is part of the answer."""
        return self.request.params.sampling.logprobs is not None


def parse_call(
    body: bytes | bytearray,
    *,
    pipeline: Pipeline,
    served_model_name: str,
    rules: MessageRules,
    request_id: str,
    client_named: Callable[[str | None], str],
    longest_s: float | None,
) -> ChatCall:
    """Check a request body against the API and against what this pipeline can do.

    `client_named` gives the key of the client for the `user` it names; `longest_s` is what the
    server lets a request take.
    """
    chat = decode_body(body, ChatBody, _HINTS)
    check_model(chat.model, served_model_name)
    _refuse_unsupported(chat, pipeline.info)
    if chat.stream_options is not None and not chat.stream:
        raise RequestError("'stream_options' needs 'stream': true.", param="stream_options")
    params = _params(chat, pipeline)
    wants_audio = "audio" in params.modalities
    _check_reply_length(chat, pipeline.info.context_length)
    messages = to_messages(chat, rules)
    return ChatCall(
        request=Request(
            messages=messages,
            params=params,
            request_id=request_id,
            client=client_named(chat.user),
            timeout_s=min(filter(None, (chat.timeout, longest_s)), default=None),
        ),
        stream=bool(chat.stream),
        wants_audio=wants_audio,
        audio_format=_audio_format(chat, wants_audio),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        include_timeline=bool(chat.include_timeline),
    )


def _params(chat: ChatBody, pipeline: Pipeline) -> RequestParams:
    modalities = _modalities(chat.modalities, pipeline)
    return RequestParams(
        modalities=modalities,
        voice=_voice(chat, pipeline.info, "audio" in modalities),
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


def _refuse_unsupported(chat: ChatBody, info: ModelInfo) -> None:
    """Fields that would change the reply and that nothing here honours."""
    harmless: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("n", lambda value: value == 1),
        ("tools", lambda value: value == []),
        ("tool_choice", lambda value: value in ("none", "auto")),
        ("functions", lambda value: value == []),
        ("function_call", lambda value: value in ("none", "auto")),
        ("logprobs", lambda value: info.logprobs or value is False),
        ("response_format", lambda value: value == {"type": "text"}),
        ("reasoning_effort", lambda value: value == "none"),
        ("verbosity", lambda value: value == "medium"),
        ("web_search_options", lambda value: False),
        ("mm_processor_kwargs", lambda value: value == {}),
    )
    for name, is_harmless in harmless:
        value = getattr(chat, name)
        if value is not None and not is_harmless(value):
            raise RequestError(
                f"'{name}' is not supported by this server; leave it out.",
                param=name,
                code="unsupported_parameter",
            )


def _check_reply_length(chat: ChatBody, context_length: int) -> None:
    """Refuse replies over the whole context; what a prompt leaves of it, the pipeline knows."""
    for name in ("max_completion_tokens", "max_tokens"):
        asked = getattr(chat, name)
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


def _voice(chat: ChatBody, info: ModelInfo, wants_audio: bool) -> str | None:
    """The voice as the checkpoint spells it; None leaves the choice to the checkpoint."""
    asked = chat.audio.voice if chat.audio else None
    if asked is None or not (wants_audio or info.voices):
        return None
    return voice_named(asked, info, "audio.voice")


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
