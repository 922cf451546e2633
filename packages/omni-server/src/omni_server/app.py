"""The HTTP application: routes and error table around one pipeline.

Starts and stops nothing; whoever owns the pipeline does.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from omni_core.pipeline import Pipeline
from omni_server import errors, health
from omni_server.context import ServerContext
from omni_server.openai import chat, models, requests, transcriptions
from omni_server.settings import Settings
from omni_server.transcripts import TranscriptStore


def create_app(pipeline: Pipeline, settings: Settings) -> FastAPI:
    """The application that serves `pipeline`, and observes it; needs it running only once requests
    come."""
    context = ServerContext(
        pipeline=pipeline,
        settings=settings,
        transcripts=TranscriptStore(settings.max_audio_ids, settings.audio_ttl_s),
    )
    app = FastAPI(title="Omni", version=version("omni-server"))
    pipeline.observer = context.metrics
    for part in (health, models, chat, transcriptions, requests):
        app.include_router(part.router(context))
    errors.install(app)
    return app
