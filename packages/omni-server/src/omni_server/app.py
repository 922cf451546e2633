"""The HTTP application: routes and error table around one pipeline, and what stands before them.

A request passes, from the outside in: its id and the access log, CORS, the keys, the rate limit and
the door. Starts and stops nothing; whoever owns the pipeline does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from omni_core.pipeline import Pipeline
from omni_server import admin, errors, health, version
from omni_server.access import Access, OnAccess, look_away
from omni_server.context import ServerContext
from omni_server.door import Doorkeeper
from omni_server.guard import Guard
from omni_server.openai import chat, completions, models, requests, speech, transcriptions, voices
from omni_server.openapi import DocumentedApi
from omni_server.playground import page
from omni_server.plugged import Plugged, add_routes
from omni_server.rate import RateLimit, RateLimiter
from omni_server.realtime import socket
from omni_server.settings import Settings
from omni_server.transcripts import TranscriptStore
from omni_server.voices.directory import DirectoryStore
from omni_server.voices.known import Voices
from omni_server.voices.store import MemoryStore, VoiceStore

EXPOSED_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
)
"""What a web page of another origin may read, besides the usual."""
_PREFLIGHT_MAX_AGE_S = 600


def create_app(pipeline: Pipeline, settings: Settings, on_access: OnAccess = look_away) -> ASGIApp:
    """The application that serves `pipeline`, and observes it; needs it running only once requests
    come."""
    return guarded(server_context(pipeline, settings), on_access)


def server_context(
    pipeline: Pipeline, settings: Settings, plugged: Plugged | None = None
) -> ServerContext:
    """What the routes around `pipeline` share; its metrics observe it from now on. ConfigError for
    a directory of voices that cannot be used."""
    context = ServerContext(
        pipeline=pipeline,
        settings=settings,
        transcripts=TranscriptStore(settings.max_audio_ids, settings.audio_ttl_s),
        voices=Voices(pipeline=pipeline, store=_voice_store(settings)),
        limiter=None if settings.rate_limit is None else RateLimiter(settings.rate_limit),
        plugged=plugged or Plugged(),
    )
    pipeline.observer = context.metrics
    return context


def _voice_store(settings: Settings) -> VoiceStore:
    if settings.voices_dir is None:
        return MemoryStore(settings.max_voices)
    return DirectoryStore(settings.voices_dir, settings.max_voices)


def guarded(context: ServerContext, on_access: OnAccess = look_away) -> ASGIApp:
    """The routes behind all that stands before them."""
    settings, metrics = context.settings, context.metrics
    app: ASGIApp = Doorkeeper(api(context), context.door, metrics)
    if context.limiter is not None:
        app = RateLimit(app, context.limiter, metrics, keys_are_checked=bool(settings.api_keys))
    app = Guard(app, settings, metrics)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            max_age=_PREFLIGHT_MAX_AGE_S,
        )
    return Access(app, metrics, on_access)


def api(context: ServerContext) -> FastAPI:
    """The routes alone."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.decoders.shutdown(wait=False, cancel_futures=True)
        context.speech.close()

    app = DocumentedApi(
        context.settings,
        context.plugged.formats,
        title="Omni",
        version=metadata.version("omni-server"),
        lifespan=lifespan,
    )
    for part in (
        *(health, version, models, chat, completions),
        *(speech, voices, transcriptions, requests, socket),
    ):
        app.include_router(part.router(context))
    if context.settings.playground:
        app.include_router(page.router())
    if context.settings.admin_keys:
        app.include_router(admin.router(context))
    add_routes(app, context.plugged, context.pipeline)
    errors.install(app)
    return app
