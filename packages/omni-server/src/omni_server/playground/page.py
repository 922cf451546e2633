"""GET /: the page on which a person talks with the model, and the files it is made of.

Knows files and HTTP headers. The page itself asks the API, with the key of the person before it;
nothing it holds is secret, so its files need no key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from omni_core.errors import NotFoundError

PAGE: Final = "/"
FILES: Final = "/playground/"
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' blob:",
    "media-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Of every file. A browser keeps them and asks each time whether they are still the same."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page."""

    content: bytes
    media_type: str

    @property
    def etag(self) -> str:
        """The same for the same content, whatever server it is on."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def is_page(path: str) -> bool:
    """Whether a path is the page or one of its files."""
    return path == PAGE or path.startswith(FILES)


def router() -> APIRouter:
    """The routes of the page. Reads its files, once."""
    routes = APIRouter(include_in_schema=False)
    static = static_files()

    @routes.api_route(PAGE, methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        """The page."""
        return answer(static["page.html"], request)

    @routes.api_route(FILES + "{name}", methods=["GET", "HEAD"])
    async def file(name: str, request: Request) -> Response:
        """One of its files."""
        if name not in static:
            raise NotFoundError(f"The page has no file {name!r}.", code="unknown_url")
        return answer(static[name], request)

    return routes


def static_files() -> dict[str, StaticFile]:
    """The files of the page, by name."""
    found = {}
    for file in files("omni_server.playground").joinpath("static").iterdir():
        media_type = _MEDIA_TYPES.get(PurePath(file.name).suffix)
        if media_type is not None:
            found[file.name] = StaticFile(file.read_bytes(), media_type)
    return found


def answer(file: StaticFile, request: Request) -> Response:
    """The file, or 304 to a browser that has it."""
    headers = {**HEADERS, "ETag": file.etag}
    kept = request.headers.get("if-none-match", "").split(",")
    if file.etag in (tag.strip().removeprefix("W/") for tag in kept):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
