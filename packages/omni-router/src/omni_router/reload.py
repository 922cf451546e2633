"""SIGHUP: the workers of the --config file as it is now, without a request lost.

Knows settings and the router's workers. What operators have added at run time stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from omni_router.errors import ConfigError, RouterError
from omni_router.router import Router
from omni_router.settings import Settings, WorkerSpec

log = logging.getLogger("omni.router")

RELOADED: Final = "workers"
"""The one setting that is; all others need a new start."""


@dataclass(frozen=True, slots=True)
class Changes:
    """From some settings to others."""

    added: tuple[WorkerSpec, ...]
    adjusted: tuple[WorkerSpec, ...]
    """With another weight, or another bound."""
    removed: tuple[str, ...]
    refused: tuple[str, ...]
    """Why what else has changed is not done."""


def changes(old: Settings, new: Settings) -> Changes:
    """What a reload has to do."""
    before = {spec.name: spec for spec in old.workers}
    after = {spec.name: spec for spec in new.workers}
    kept = [(before[name], spec) for name, spec in after.items() if name in before]
    moved = tuple(
        f"worker {spec.name} stays at {was.url}; give the one at {spec.url} another name"
        for was, spec in kept
        if was.url != spec.url
    )
    others = [field.name for field in fields(Settings) if field.name != RELOADED]
    changed = [name for name in others if getattr(old, name) != getattr(new, name)]
    return Changes(
        added=tuple(spec for name, spec in after.items() if name not in before),
        adjusted=tuple(spec for was, spec in kept if was != spec and was.url == spec.url),
        removed=tuple(name for name in before if name not in after),
        refused=(*moved, *(f"{name} changes with a new start only" for name in changed)),
    )


class Reload:
    """What SIGHUP does in one process of the router."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """`reread` gives the settings of the file as it is then, or raises ConfigError."""
        self._settings = settings
        self._reread = reread
        self._removals: set[asyncio.Task[None]] = set()

    def __call__(self, router: Router) -> None:
        """Change the router's workers to those of the file; what is wrong there changes nothing."""
        if (new := reread_or_none(self._reread)) is None:
            return
        todo = changes(self._settings, new)
        for why in todo.refused:
            log.warning("reload: %s", why)
        for spec in (*todo.added, *todo.adjusted):
            self._put(router, spec)
        for name in todo.removed:
            task = asyncio.create_task(self._remove(router, name), name=f"remove {name}")
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)
        self._settings = new
        counts = (len(todo.added), len(todo.adjusted), len(todo.removed))
        log.info("reload: %d workers added, %d adjusted, %d removed", *counts)

    @staticmethod
    def _put(router: Router, spec: WorkerSpec) -> None:
        try:
            router.adjust(spec)
        except RouterError as error:
            log.error("reload: %s", error.message)

    async def _remove(self, router: Router, name: str) -> None:
        try:
            await router.remove(name, wait_s=self._settings.drain_timeout_s)
        except RouterError as error:
            log.error("reload: %s", error.message)


def reread_or_none(reread: Callable[[], Settings]) -> Settings | None:
    """The settings as they are now; None, and said in the log, if they cannot be."""
    try:
        return reread()
    except ConfigError as error:
        for line in str(error).splitlines():
            log.error("reload: %s", line)
        log.error("reload: nothing has changed")
        return None
