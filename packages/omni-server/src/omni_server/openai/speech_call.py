"""One speech call: what to ask of the pipeline, and how the caller wants to hear back.

Knows the pipeline's own description of itself and the request's meaning. Pure: bytes in, a
`SpeechCall` or an `OmniError` out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omni_core.errors import RequestError
from omni_core.media import MediaLimits
from omni_core.media.encode_stream import StreamFormats
from omni_core.pipeline import Pipeline
from omni_core.specs import ModelInfo
from omni_core.types import Request, RequestParams, SamplingParams, VoiceSample
from omni_server.openai.call import check_model
from omni_server.openai.media import part_from_url
from omni_server.openai.sampling import stage_sampling
from omni_server.schema.decode import decode_body, short_value
from omni_server.schema.speech import SpeechBody
from omni_server.voices.known import Voices

STREAM_FORMATS = ("audio", "sse")
"""The first is the default; of files it is mp3."""
VOICE = "voice"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCall:
    """A checked request and the shape of its answer."""

    request: Request
    audio_format: str
    """One of `StreamFormats.media_types`."""
    speed: float
    as_events: bool


def parse_call(
    body: bytes | bytearray,
    *,
    pipeline: Pipeline,
    voices: Voices,
    served_model_name: str,
    request_id: str,
    client_named: Callable[[str | None], str],
    longest_s: float | None,
    limits: MediaLimits,
    formats: StreamFormats,
) -> SpeechCall:
    """Check a request body against the API and against what this pipeline can do.

    `client_named` gives the key of the client for the `user` it names; `longest_s` is what the
    server lets a request take, `limits` a recording, `formats` what it may be answered in.
    """
    speech = decode_body(body, SpeechBody)
    check_model(speech.model, served_model_name)
    _require_reader(pipeline)
    _refuse_unsupported(speech, pipeline.info)
    stream_format = _one_of(STREAM_FORMATS, speech.stream_format, "stream_format")
    return SpeechCall(
        request=Request(
            read_aloud=_text(speech.input),
            voice_sample=_sample(speech, limits),
            params=_params(speech, pipeline, voices),
            request_id=request_id,
            client=client_named(speech.user),
            timeout_s=min(filter(None, (speech.timeout, longest_s)), default=None),
        ),
        audio_format=_one_of(formats.media_types, speech.response_format, "response_format"),
        speed=1.0 if speech.speed is None else speech.speed,
        as_events=stream_format == "sse",
    )


def _params(speech: SpeechBody, pipeline: Pipeline, voices: Voices) -> RequestParams:
    return RequestParams(
        modalities=("audio",),
        voice=None if speech.voice is None else voices.named(speech.voice, VOICE),
        sampling=SamplingParams(seed=speech.seed),
        stage_params=stage_sampling(speech, pipeline.stages),
    )


def _require_reader(pipeline: Pipeline) -> None:
    if "audio" not in pipeline.modalities:
        why = pipeline.info.refused_modalities.get("audio", "this pipeline emits text only")
    elif not pipeline.info.reads_aloud:
        why = "this model answers messages and cannot read a text aloud; use /v1/chat/completions"
    else:
        return
    raise RequestError(
        f"Speech is not served here: {why}.", param="model", code="unsupported_model"
    )


def _refuse_unsupported(speech: SpeechBody, info: ModelInfo) -> None:
    """Fields that would change the speech and that nothing here honours."""
    reasons = {"instructions": "the model's voice has no control for it"}
    if info.clones_voices:
        reasons["speaker_embedding"] = "send a recording in 'ref_audio'"
    else:
        cloning = ("ref_audio", "ref_text", "speaker_embedding")
        reasons |= dict.fromkeys(cloning, "the model cannot clone voices")
    for name, reason in reasons.items():
        if short_value(getattr(speech, name), name) not in (None, ""):
            raise RequestError(
                f"'{name}' is not supported: {reason}; leave it out.",
                param=name,
                code="unsupported_parameter",
            )


def _sample(speech: SpeechBody, limits: MediaLimits) -> VoiceSample | None:
    """The recording of the voice to speak with, if there is one."""
    if not speech.ref_audio:
        if speech.ref_text:
            raise RequestError(
                "'ref_text' is what is said in 'ref_audio', which is not there; send both.",
                param="ref_text",
            )
        return None
    if speech.voice is not None:
        raise RequestError(
            "'voice' and 'ref_audio' are two voices; send one of them.", param="ref_audio"
        )
    part = part_from_url("audio", speech.ref_audio, "ref_audio", limits)
    return VoiceSample(audio=part, text=speech.ref_text or "")


def _text(given: str) -> str:
    """What is to be said: white space around it has no sound."""
    if not (text := given.strip()):
        raise RequestError("'input' is blank; send the text to read aloud.", param="input")
    return text


def _one_of(known: Iterable[str], asked: str | None, param: str) -> str:
    """`asked`, which must be known; the first of them if nothing is asked for."""
    names = tuple(known)
    if asked is not None and asked not in names:
        raise RequestError(f"'{param}': {asked!r} is not one of {', '.join(names)}.", param=param)
    return names[0] if asked is None else asked
