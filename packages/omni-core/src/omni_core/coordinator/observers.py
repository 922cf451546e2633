"""Several observers of one pipeline: its owner's, and those of plugins.

Knows who failed. Knows no request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from omni_core.coordinator.aborts import Observer
from omni_core.errors import PluginError
from omni_core.extensions import ObserverSpec
from omni_core.types import Modality

log = logging.getLogger("omni.observers")


def together(owners: Observer, specs: Iterable[tuple[str, ObserverSpec]]) -> Observer:
    """The owner's observer, and one of each (plugin, description); PluginError if one cannot be
    built."""
    built = [
        (f"{spec.name!r} of plugin {plugin!r}", _build(plugin, spec)) for plugin, spec in specs
    ]
    return Together(owners, built) if built else owners


def _build(plugin: str, spec: ObserverSpec) -> Observer:
    try:
        observer: Observer = spec.build.resolve()()
    except Exception as exc:
        raise PluginError(f"plugin {plugin!r}: observer {spec.name!r}: {exc!r}") from exc
    return observer


class Together:
    """An `Observer` that tells others. One of a plugin that raises is told nothing more: it must
    not end requests."""

    def __init__(self, owners: Observer, others: list[tuple[str, Observer]]) -> None:
        self._owners = owners
        self._others = others

    def admitted(self, modalities: Collection[Modality], waited_s: float) -> None:
        """See `Observer.admitted`."""
        self._owners.admitted(modalities, waited_s)
        self._tell(lambda observer: observer.admitted(modalities, waited_s))

    def refused(self, reason: str) -> None:
        """See `Observer.refused`."""
        self._owners.refused(reason)
        self._tell(lambda observer: observer.refused(reason))

    def aborted(self, reason: str) -> None:
        """See `Observer.aborted`."""
        self._owners.aborted(reason)
        self._tell(lambda observer: observer.aborted(reason))

    def released(self, stage: str, after_s: float) -> None:
        """See `Observer.released`."""
        self._owners.released(stage, after_s)
        self._tell(lambda observer: observer.released(stage, after_s))

    def ready(self, process: str, stages: Sequence[str]) -> None:
        """See `Observer.ready`."""
        self._owners.ready(process, stages)
        self._tell(lambda observer: observer.ready(process, stages))

    def lost(self, process: str, stages: Sequence[str], cause: str) -> None:
        """See `Observer.lost`."""
        self._owners.lost(process, stages, cause)
        self._tell(lambda observer: observer.lost(process, stages, cause))

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for named in list(self._others):
            name, observer = named
            try:
                what(observer)
            except Exception:
                log.exception("observer %s failed; it is told nothing more", name)
                self._others.remove(named)
