"""GET /v1/models: the one model there is.

Fields beyond OpenAI's `Model` tell clients what to ask for, and on which routes: modalities,
capabilities, voices, audio formats, sample rate, context length.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from omni_core.pipeline import Pipeline
from omni_server.audio import FORMATS, STREAM_FORMAT
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse
from omni_server.openai.call import check_model

ENDPOINTS: Final = {
    "/v1/chat/completions": None,
    "/v1/completions": "completions",
    "/v1/audio/speech": "speech",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "transcription",
}
"""{route: the capability it needs}."""


def router(context: ServerContext) -> APIRouter:
    """The model routes of one server."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def list_models() -> Response:
        """List the served model."""
        return JsonResponse({"object": "list", "data": [model_object(context)]})

    @routes.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> Response:
        """Describe the served model; its id may contain slashes."""
        check_model(model_id, context.settings.served_model_name)
        return JsonResponse(model_object(context))

    return routes


def model_object(context: ServerContext) -> dict[str, Any]:
    """OpenAI's `Model` with what this checkpoint can do."""
    info, speaks = context.pipeline.info, "audio" in context.pipeline.modalities
    can = capabilities(context.pipeline)
    return {
        "id": context.settings.served_model_name,
        "object": "model",
        "created": context.started_at,
        "owned_by": "omni",
        "context_length": info.context_length,
        "input_modalities": list(info.input_modalities),
        "output_modalities": list(context.pipeline.modalities),
        "voices": list(info.voices) if speaks else [],
        "default_voice": info.default_voice if speaks else None,
        "sample_rate": info.sample_rate if speaks else None,
        "audio_formats": {
            "chat": list(FORMATS) if speaks else [],
            "chat_stream": [STREAM_FORMAT] if speaks else [],
            "speech": list(context.plugged.formats.media_types) if can["speech"] else [],
        },
        "capabilities": can,
        "supported_endpoints": [
            path for path, needed in ENDPOINTS.items() if needed is None or can[needed]
        ],
    }


def capabilities(pipeline: Pipeline) -> dict[str, bool]:
    """What requests may ask of a pipeline beside text."""
    info, speaks = pipeline.info, "audio" in pipeline.modalities
    return {
        "tools": info.tools,
        "response_format": info.grammars,
        "logprobs": info.logprobs,
        "completions": info.completes_prompts,
        "audio_output": speaks,
        "speech": speaks and info.reads_aloud,
        "transcription": info.transcription is not None,
        "voice_cloning": speaks and info.reads_aloud and info.clones_voices is not None,
    }
