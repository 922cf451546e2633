"""GET /v1/audio/voices, and voices by name.

Knows the checkpoint's own voices. None can be added: a voice that is cloned comes with the request
that it speaks, and nothing of it is kept.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from omni_core.errors import RequestError
from omni_core.specs import ModelInfo
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse


def router(context: ServerContext) -> APIRouter:
    """The voice routes of one server."""
    routes = APIRouter()

    @routes.get("/v1/audio/voices")
    async def list_voices() -> Response:
        """List the voices that speech may have; `id` is what requests name."""
        speaks = "audio" in context.pipeline.modalities
        info = context.pipeline.info
        voices = [{"id": voice, "name": voice} for voice in info.voices] if speaks else []
        return JsonResponse(
            {"voices": voices, "default_voice": info.default_voice if speaks else None}
        )

    @routes.post("/v1/audio/voices")
    async def add_voice() -> Response:
        """Refused: a voice is a part of the checkpoint, or of a request."""
        raise _fixed("No voice can be added", context.pipeline.info)

    @routes.delete("/v1/audio/voices/{voice_id:path}")
    async def delete_voice(voice_id: str) -> Response:
        """Refused: a voice is a part of the checkpoint."""
        raise _fixed(f"The voice {voice_id!r} cannot be deleted", context.pipeline.info)

    return routes


def voice_named(asked: str, info: ModelInfo, param: str) -> str:
    """The voice as the checkpoint spells it, whatever the case of `asked`; RequestError names
    those there are."""
    for voice in info.voices:
        if voice.lower() == asked.lower():
            return voice
    voices = ", ".join(info.voices) or "none, leave the field out"
    raise RequestError(f"'{param}': there is no voice {asked!r}; voices: {voices}.", param=param)


def _fixed(what: str, info: ModelInfo) -> RequestError:
    why = "and cannot clone others; GET /v1/audio/voices lists them."
    if info.clones_voices:
        why = (
            "and clones others for one request: send the recording as 'ref_audio' to "
            "/v1/audio/speech."
        )
    return RequestError(
        f"{what}: the model speaks with the voices of its checkpoint {why}",
        code="unsupported_operation",
    )
