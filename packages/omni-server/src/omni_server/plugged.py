"""What plugins add to a server: routes, audio codecs, and words for the numbers of their stages.

Knows their descriptions, and that no name of ours is theirs to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.routing import Match

from omni_core.errors import PluginError
from omni_core.extensions import RouteSpec
from omni_core.media.encode_stream import STREAM_MEDIA_TYPES, StreamFormats
from omni_core.pipeline import Pipeline
from omni_core.plugins import AUDIO_CODECS, METRICS, ROUTES, Plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """Of all plugins together."""

    routes: tuple[tuple[str, RouteSpec], ...] = ()
    """With the plugin's name."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """{number of a stage: what it means}"""
    formats: StreamFormats = field(default_factory=StreamFormats)
    """Those that speech can be had in, ours included."""

    @classmethod
    def of(cls, plugins: Plugins) -> Plugged:
        """What these bring; PluginError if something has the name of ours."""
        codecs = plugins.owned(AUDIO_CODECS)
        for owner, codec in codecs:
            if codec.name in STREAM_MEDIA_TYPES:
                raise _ours(owner, "audio codec", codec.name)
        return cls(
            routes=tuple(plugins.owned(ROUTES)),
            meanings={metric.stat: metric.help for metric in plugins.all(METRICS)},
            formats=StreamFormats({codec.name: codec for _, codec in codecs}),
        )


def add_routes(app: FastAPI, plugged: Plugged, pipeline: Pipeline) -> None:
    """Add the routes of plugins to an application that has all of ours."""
    ours = list(app.routes)
    for owner, route in plugged.routes:
        for method in route.methods:
            asked = {"type": "http", "method": method, "path": route.path}
            if any(own.matches(dict(asked))[0] is Match.FULL for own in ours):
                raise _ours(owner, "route", f"{method} {route.path}")
        try:
            endpoint = route.endpoint.resolve()(pipeline)
            app.add_api_route(
                route.path, endpoint, methods=list(route.methods), response_model=None
            )
        except Exception as exc:
            raise PluginError(f"plugin {owner!r}: route {route.path!r}: {exc!r}") from exc


def _ours(owner: str, noun: str, name: str) -> PluginError:
    return PluginError(
        f"plugin {owner!r} registers {noun} {name!r}, which is the server's own; it must take "
        "another name"
    )
