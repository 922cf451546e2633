"""What a transcription call answers with, in each format.

Shapes follow `Transcription`, `TranscriptionVerbose` and the stream events of the openai package;
SubRip has no standard, WebVTT is the W3C's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from starlette.responses import Response

from omni_core.languages import LANGUAGES
from omni_core.types import TokenLogprob, Usage
from omni_server.errors import JsonResponse
from omni_server.openai.logprobs import token_object
from omni_server.openai.reply import Json
from omni_server.openai.transcriptions_call import TranscriptionCall
from omni_server.openai.transcriptions_run import Recording
from omni_server.openai.transcriptions_text import SegmentText, Transcript

SUBRIP = "application/x-subrip"
WEBVTT = "text/vtt"
_SEEK_PER_S = 100
"""Whisper's `seek` counts mel frames of 10 ms."""


def response(
    call: TranscriptionCall, recording: Recording, transcript: Transcript, headers: dict[str, str]
) -> Response:
    """The whole answer."""
    match call.response_format:
        case "json":
            return JsonResponse(json_object(call, transcript), headers=headers)
        case "verbose_json":
            return JsonResponse(verbose_object(call, recording, transcript), headers=headers)
        case "text":
            return Response(transcript.text, media_type="text/plain", headers=headers)
        case "srt":
            return Response(srt(recording, transcript), media_type=SUBRIP, headers=headers)
        case "vtt":
            return Response(vtt(recording, transcript), media_type=WEBVTT, headers=headers)


def json_object(call: TranscriptionCall, transcript: Transcript) -> Json:
    """`Transcription`; `usage` counts tokens."""
    reply: Json = {"text": transcript.text, "usage": usage_object(transcript.usage)}
    if call.include_logprobs:
        reply["logprobs"] = logprobs(transcript.logprobs)
    return reply


def delta_object(call: TranscriptionCall, delta: str, tokens: Iterable[TokenLogprob]) -> Json:
    """`TranscriptionTextDeltaEvent`."""
    event: Json = {"type": "transcript.text.delta", "delta": delta}
    if call.include_logprobs:
        event["logprobs"] = logprobs(tokens)
    return event


def done_object(call: TranscriptionCall, transcript: Transcript) -> Json:
    """`TranscriptionTextDoneEvent`."""
    return {"type": "transcript.text.done", **json_object(call, transcript)}


def usage_object(usage: Usage) -> Json:
    """`UsageTokens`, of all segments together."""
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.text_tokens,
        "total_tokens": usage.prompt_tokens + usage.text_tokens,
        "input_token_details": {
            "audio_tokens": usage.prompt_audio_tokens,
            "text_tokens": usage.prompt_tokens - usage.prompt_audio_tokens,
        },
    }


def logprobs(tokens: Iterable[TokenLogprob]) -> list[Json]:
    """`Logprob` of each token."""
    return [token_object(token) for token in tokens]


def verbose_object(call: TranscriptionCall, recording: Recording, transcript: Transcript) -> Json:
    """`TranscriptionVerbose`; `language` is what the caller named, or "" (a translation's is
    English)."""
    task = call.task
    spoken = "" if task.language is None else LANGUAGES[task.language].lower()
    return {
        "task": "translate" if task.translate else "transcribe",
        "language": "english" if task.translate else spoken,
        "duration": recording.duration_s,
        "text": transcript.text,
        "segments": [
            _segment_object(number, segment, times, call)
            for number, (segment, times) in enumerate(_timed(recording, transcript))
        ],
        "usage": {"type": "duration", "seconds": recording.duration_s},
    }


def _segment_object(
    number: int, segment: SegmentText, times: tuple[float, float], call: TranscriptionCall
) -> Json:
    """`TranscriptionSegment`. `no_speech_prob` is not measured: 1 for digital silence, else 0."""
    data = segment.text.encode()
    likely = [token.logprob for token in segment.logprobs]
    return {
        "id": number,
        "start": times[0],
        "end": times[1],
        "seek": round(times[0] * _SEEK_PER_S),
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": call.params.sampling.temperature,
        "avg_logprob": sum(likely) / len(likely) if likely else 0.0,
        "compression_ratio": len(data) / len(zlib.compress(data)),
        "no_speech_prob": 0.0 if segment.was_asked else 1.0,
    }


def srt(recording: Recording, transcript: Transcript) -> str:
    """SubRip: numbered cues, one a segment that says something."""
    cues = [
        f"{number}\n{_clock(start, ',')} --> {_clock(stop, ',')}\n{text}\n"
        for number, (text, start, stop) in enumerate(_cues(recording, transcript), start=1)
    ]
    return "\n".join(cues)


def vtt(recording: Recording, transcript: Transcript) -> str:
    """WebVTT: one cue a segment that says something."""
    cues = [
        f"\n{_clock(start, '.')} --> {_clock(stop, '.')}\n{_escaped(text)}\n"
        for text, start, stop in _cues(recording, transcript)
    ]
    return "WEBVTT\n" + "".join(cues)


def _cues(recording: Recording, transcript: Transcript) -> list[tuple[str, float, float]]:
    """(text in one line, start, end): an empty line would end a cue."""
    return [
        (" ".join(segment.text.split()), *times)
        for segment, times in _timed(recording, transcript)
        if segment.text
    ]


def _timed(
    recording: Recording, transcript: Transcript
) -> list[tuple[SegmentText, tuple[float, float]]]:
    rate = recording.sample_rate
    return [
        (text, (segment.start / rate, segment.stop / rate))
        for text, segment in zip(transcript.segments, recording.segments, strict=True)
    ]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float, point: str) -> str:
    minutes, ms = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{ms // 1000:02}{point}{ms % 1000:03}"
