"""GET /version: what exactly answers here, so that a result can be told from another server's.

Knows installed distributions and our own source tree. What runs in the pipeline is its manifest.
"""

from __future__ import annotations

import asyncio
import json
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from omni_server.context import ServerContext
from omni_server.errors import JsonResponse

OURS: Final = "omni-"
_PACKAGE: Final = Path(__file__).resolve().parent
_PLACE: Final = Path("packages") / "omni-server" / "src" / "omni_server"


def router(context: ServerContext) -> APIRouter:
    """The route of one server."""
    routes = APIRouter()

    @routes.get("/version")
    async def version() -> Response:
        """Versions, commit, checkpoint, engines, cards and the place of every stage."""
        return JsonResponse(await asyncio.to_thread(run_manifest, context))

    return routes


def run_manifest(context: ServerContext) -> dict[str, Any]:
    """What runs here. Reads files, and asks the driver of the cards."""
    return {
        "version": metadata.version("omni-server"),
        "commit": commit(),
        "packages": packages(),
        "python": platform.python_version(),
        "model": context.settings.served_model_name,
        "started_at": context.started_at,
        **msgspec.to_builtins(context.pipeline.manifest()),
    }


@cache
def packages() -> dict[str, str]:
    """{distribution: version} of ours that are installed."""
    found = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return {name: found[name] for name in sorted(found) if name.startswith(OURS)}


@cache
def commit() -> str | None:
    """The commit we were installed or are run from; None if nothing says so."""
    said = metadata.distribution("omni-server").read_text("direct_url.json")
    installed: str | None = json.loads(said or "{}").get("vcs_info", {}).get("commit_id")
    root = _PACKAGE.parents[len(_PLACE.parts) - 1]
    if installed is None and root / _PLACE == _PACKAGE:
        return checked_out(root / ".git")
    return installed


def checked_out(git: Path) -> str | None:
    """The commit of a working tree, by git's own files."""
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text().strip()
        packed = (line.split(" ") for line in (git / "packed-refs").read_text().splitlines())
        return next((words[0] for words in packed if words[-1] == name), None)
    except OSError:
        return None
