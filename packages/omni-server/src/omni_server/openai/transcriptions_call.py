"""One transcription call: what to ask of the pipeline, and how the caller wants to read it.

Knows the pipeline's own description of itself and the meaning of each field. Pure: a form in, a
`TranscriptionCall` or an `OmniError` out, but for the clock; the upload is decoded elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from omni_core.errors import DeadlineError, RequestError
from omni_core.languages import LANGUAGES
from omni_core.pipeline import Pipeline
from omni_core.specs import ModelInfo, Transcription, TranscriptionTask
from omni_core.types import RequestParams, SamplingParams
from omni_server.form import Form
from omni_server.openai.call import check_model
from omni_server.schema.decode import convert_form
from omni_server.schema.transcriptions import (
    FORMATS,
    GRANULARITIES,
    HINTS,
    LISTS,
    OBJECTS,
    ResponseFormat,
    ServerVad,
    TranscriptionForm,
)

FILE = "file"
MIN_PAUSE_S = 0.2
MIN_CUE_S, MAX_CUE_S = 2.0, 12.0
"""Segments of formats with times are read as subtitles."""
_STREAMED: tuple[ResponseFormat, ...] = ("json", "text")
_TIMED: tuple[ResponseFormat, ...] = ("srt", "vtt", "verbose_json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionCall:
    """A checked call and the shape of its answer."""

    upload: bytearray
    model: Transcription
    task: TranscriptionTask
    params: RequestParams
    response_format: ResponseFormat
    stream: bool
    include_logprobs: bool
    min_pause_s: float
    request_id: str
    client: str
    deadline_s: float | None
    """By `time.monotonic`, of all that the call takes; None is no limit."""

    def left_s(self) -> float | None:
        """What is left until the deadline; DeadlineError if that has passed."""
        if self.deadline_s is None:
            return None
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineError("The request took longer than it may; ask for more 'timeout'.")
        return left_s

    @property
    def segment_s(self) -> tuple[float, float]:
        """The shortest and longest segments a long recording is cut into, in seconds."""
        shortest, longest = self.model.min_segment_s, self.model.max_segment_s
        if self.response_format in _TIMED:
            return min(MIN_CUE_S, shortest), min(MAX_CUE_S, longest)
        return shortest, longest


def parse_transcription(
    form: Form,
    *,
    translate: bool,
    pipeline: Pipeline,
    served_model_name: str,
    request_id: str,
    client_named: Callable[[str | None], str],
    longest_s: float | None,
) -> TranscriptionCall:
    """Check a form against the API and against what this pipeline can do.

    `client_named` gives the key of the client for the `user` it names; `longest_s` is what the
    server lets a request take.
    """
    asked = convert_form(form.fields, TranscriptionForm, lists=LISTS, objects=OBJECTS, hints=HINTS)
    check_model(asked.model, served_model_name)
    model = _transcription_of(pipeline.info)
    response_format = _response_format(asked)
    include_logprobs = _include_logprobs(asked, pipeline.info)
    _check_granularities(asked)
    _refuse_unsupported(asked)
    timeout_s = min(filter(None, (asked.timeout, longest_s)), default=None)
    wants_confidence = response_format == "verbose_json" and pipeline.info.logprobs
    return TranscriptionCall(
        upload=_upload(form),
        model=model,
        task=TranscriptionTask(
            language=_language(asked.language), prompt=asked.prompt, translate=translate
        ),
        params=RequestParams(sampling=_sampling(asked, include_logprobs or wants_confidence)),
        response_format=response_format,
        stream=asked.stream,
        include_logprobs=include_logprobs,
        min_pause_s=_min_pause_s(asked.chunking_strategy),
        request_id=request_id,
        client=client_named(asked.user),
        deadline_s=None if timeout_s is None else time.monotonic() + timeout_s,
    )


def _transcription_of(info: ModelInfo) -> Transcription:
    if info.transcription is None or "audio" not in info.input_modalities:
        raise RequestError(
            "The served model cannot transcribe: it takes no audio that it could write down.",
            param="model",
            code="unsupported_model",
        )
    return info.transcription


def _upload(form: Form) -> bytearray:
    upload = form.files.get(FILE)
    if upload is None:
        raise RequestError(
            f"Missing required parameter: '{FILE}'; send the audio as a part of that name.",
            param=FILE,
            code="missing_required_parameter",
        )
    if not upload:
        raise RequestError("The uploaded file is empty (0 bytes).", param=FILE)
    return upload


def _language(code: str | None) -> str | None:
    if code is None or code.lower() in LANGUAGES:
        return code and code.lower()
    by_name = {name.lower(): known for known, name in LANGUAGES.items()}
    meant = by_name.get(code.lower(), code.lower()[:2])
    hint = f"{meant!r} is {LANGUAGES[meant]}" if meant in LANGUAGES else "'en' is English"
    raise RequestError(
        f"'language': {code[:32]!r} is no two-letter code of ISO 639-1; {hint}.", param="language"
    )


def _response_format(asked: TranscriptionForm) -> ResponseFormat:
    name = asked.response_format
    if name not in FORMATS:
        known = name == "diarized_json"
        why = "this server cannot tell speakers apart" if known else f"{name[:32]!r} is not known"
        raise RequestError(
            f"'response_format': {why}; use one of {', '.join(FORMATS)}.",
            param="response_format",
            code="unsupported_value" if known else None,
        )
    if asked.stream and name not in _STREAMED:
        raise RequestError(
            f"'response_format': {name} cannot be streamed; ask for {' or '.join(_STREAMED)}, or "
            "leave 'stream' out.",
            param="response_format",
            code="unsupported_value",
        )
    return name


def _check_granularities(asked: TranscriptionForm) -> None:
    param = "timestamp_granularities"
    for name in asked.timestamp_granularities:
        if name not in GRANULARITIES:
            raise RequestError(f"'{param}': {name[:32]!r} is not known; use segment.", param=param)
        if name == "word":
            raise RequestError(
                f"'{param}': times of words are not known here; ask for segment.",
                param=param,
                code="unsupported_value",
            )
    if asked.timestamp_granularities and asked.response_format != "verbose_json":
        raise RequestError(f"'{param}' needs 'response_format': verbose_json.", param=param)


def _include_logprobs(asked: TranscriptionForm, info: ModelInfo) -> bool:
    for name in asked.include:
        if name != "logprobs":
            raise RequestError(f"'include': {name[:32]!r} is not logprobs.", param="include")
    if asked.include and asked.response_format != "json":
        raise RequestError("'include' needs 'response_format': json.", param="include")
    if asked.include and not info.logprobs:
        raise RequestError(
            "'include': the served model gives no logprobs; leave it out.",
            param="include",
            code="unsupported_value",
        )
    return bool(asked.include)


def _refuse_unsupported(asked: TranscriptionForm) -> None:
    unheard = "this server cannot tell speakers apart; leave it out"
    reasons = {
        "known_speaker_names": unheard,
        "known_speaker_references": unheard,
        "languages": "one language at most can be named, in 'language'",
        "keywords": "name them in 'prompt'",
    }
    for name, reason in reasons.items():
        if getattr(asked, name):
            raise RequestError(
                f"'{name}' is not supported: {reason}.", param=name, code="unsupported_parameter"
            )


def _min_pause_s(strategy: str | ServerVad | None) -> float:
    if not isinstance(strategy, ServerVad):
        return MIN_PAUSE_S
    for name in ("threshold", "prefix_padding_ms"):
        if getattr(strategy, name) is not None:
            raise RequestError(
                f"'chunking_strategy.{name}' is not supported: pauses are found by loudness "
                "relative to their surroundings; leave it out.",
                param=f"chunking_strategy.{name}",
                code="unsupported_parameter",
            )
    if strategy.silence_duration_ms is None:
        return MIN_PAUSE_S
    return strategy.silence_duration_ms / 1000


def _sampling(asked: TranscriptionForm, with_logprobs: bool) -> SamplingParams:
    """Greedy unless the caller says otherwise, as OpenAI's endpoint is."""
    return SamplingParams(
        temperature=asked.temperature or 0.0,
        seed=asked.seed,
        max_tokens=asked.max_tokens,
        logprobs=0 if with_logprobs else None,
    )
