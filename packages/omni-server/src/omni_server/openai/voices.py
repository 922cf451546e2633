"""GET, POST and DELETE /v1/audio/voices: the voices there are, and recordings that become some.

Knows what clients are told. What a form may say is `voices_call`'s, where uploaded voices are kept
`omni_server.voices`'s.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import NotFoundError, RequestError
from omni_core.media.patience import Stop
from omni_core.media.voice import load_voice
from omni_core.specs import VoiceCloning
from omni_server.context import ServerContext
from omni_server.errors import JsonResponse
from omni_server.form import read_form
from omni_server.keys import presented_key
from omni_server.metrics import RequestTimer
from omni_server.openai.envelope import Headers, answered
from omni_server.openai.voices_call import SAMPLE, parse_voice
from omni_server.settings import MIB
from omni_server.stream import while_connected
from omni_server.voices.store import UploadedVoice, VoiceCard

Json = dict[str, Any]
MAX_RECORDING_BYTES: Final = 10 * MIB
"""As at OpenAI."""
NO_MORE: Final = "No voice can be added"
MAX_FORM_BYTES: Final = MAX_RECORDING_BYTES + MIB


def router(context: ServerContext) -> APIRouter:
    """The voice routes of one server."""
    routes = APIRouter()

    @routes.get("/v1/audio/voices")
    async def list_voices(request: Request) -> Response:
        """List the voices that speech may have; `id` is what requests name."""
        return JsonResponse(await _listed(request, context))

    @routes.post("/v1/audio/voices")
    async def add_voice(request: Request) -> Response:
        """Keep a recording of a voice, to speak with by its name."""
        return await _answer(request, context)

    @routes.get("/v1/audio/voices/{voice_id:path}")
    async def retrieve_voice(voice_id: str) -> Response:
        """Describe one voice."""
        return JsonResponse(await asyncio.to_thread(_described, voice_id, context))

    @routes.delete("/v1/audio/voices/{voice_id:path}")
    async def delete_voice(voice_id: str) -> Response:
        """Forget an uploaded voice; what is being spoken with it goes on."""
        return JsonResponse(await asyncio.to_thread(_deleted, voice_id, context))

    return routes


async def _listed(request: Request, context: ServerContext) -> Json:
    voices, uploads = context.voices, list[VoiceCard]()
    if _is_known(request, context):
        uploads = await asyncio.to_thread(voices.uploads)
    names = [*voices.presets, *(card.name for card in uploads)]
    return {
        "voices": [{"id": name, "name": name} for name in names],
        "uploaded_voices": [_object(card) for card in uploads],
        "default_voice": voices.pipeline.info.default_voice if voices.presets else None,
    }


def _is_known(request: Request, context: ServerContext) -> bool:
    """Whether the client may use the server: the list is open to those who may not, too."""
    settings, key = context.settings, presented_key(request.headers)
    return not settings.api_keys or settings.api_keys.has(key) or settings.admin_keys.has(key)


async def _answer(request: Request, context: ServerContext) -> Response:
    async def serve(timer: RequestTimer, headers: Headers) -> Response:
        wanted, settings = _cloning(context, NO_MORE), context.settings
        if not settings.max_voices:
            raise RequestError(
                f"{NO_MORE}: its operator lets this server keep none.", code="unsupported_operation"
            )
        form = await read_form(
            request,
            (SAMPLE,),
            max_body_bytes=min(settings.max_body_bytes, MAX_FORM_BYTES),
            max_file_bytes=min(settings.media.max_bytes, MAX_RECORDING_BYTES),
        )
        voice = await asyncio.to_thread(parse_voice, form, wanted, context.voices)
        await while_connected(_kept(voice, wanted, context), request.receive)
        return JsonResponse(_object(voice.card), headers=headers)

    return await answered(request, context, f"voice-{uuid.uuid4().hex}", serve)


async def _kept(voice: UploadedVoice, wanted: VoiceCloning, context: ServerContext) -> None:
    """Decode the recording and keep it, in one of the threads for uploads; stops when the client
    leaves."""
    over = threading.Event()
    try:
        await asyncio.get_running_loop().run_in_executor(
            context.decoders, partial(_keep, voice, wanted, context, over.is_set)
        )
    finally:
        over.set()


def _keep(voice: UploadedVoice, wanted: VoiceCloning, context: ServerContext, stop: Stop) -> None:
    try:
        load_voice(voice.recording, wanted, context.settings.media, stop)
    except RequestError as error:
        error.param = SAMPLE
        raise
    context.voices.store.add(voice)


def _described(voice_id: str, context: ServerContext) -> Json:
    if card := context.voices.uploaded(voice_id):
        return _object(card)
    preset = context.voices.preset(voice_id)
    if preset is None or not context.voices.presets:
        raise _unknown(voice_id)
    return _object(VoiceCard(name=preset, created_at=context.started_at), "preset")


def _deleted(voice_id: str, context: ServerContext) -> Json:
    _cloning(context, f"The voice {voice_id!r} cannot be deleted")
    if not context.voices.store.remove(voice_id):
        if preset := context.voices.preset(voice_id):
            raise RequestError(
                f"The voice {preset!r} cannot be deleted: it is a part of the checkpoint.",
                param="voice_id",
                code="unsupported_operation",
            )
        raise _unknown(voice_id)
    return {"id": voice_id, "object": "audio.voice.deleted", "deleted": True}


def _cloning(context: ServerContext, what: str) -> VoiceCloning:
    """What a recording must be; RequestError that says `what` cannot be done without any."""
    if (wanted := context.voices.cloning) is None:
        raise RequestError(
            f"{what}: the model speaks with the voices of its checkpoint and cannot clone others; "
            "GET /v1/audio/voices lists them.",
            code="unsupported_operation",
        )
    return wanted


def _unknown(voice_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no voice {voice_id!r}; GET /v1/audio/voices lists those there are.",
        param="voice_id",
        code="voice_not_found",
    )


def _object(card: VoiceCard, kind: str = "audio_sample") -> Json:
    """OpenAI's `audio.voice`, and what else was said of it."""
    return {
        "id": card.name,
        "object": "audio.voice",
        "name": card.name,
        "created_at": card.created_at,
        "type": kind,
        "ref_text": card.text or None,
        "consent": card.consent,
    }
