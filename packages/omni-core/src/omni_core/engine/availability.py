"""Which engines can run on this machine, and what stands in the way of the others.

Knows which distributions are installed and how torch was built. Imports neither torch nor upstream.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from omni_core.devices import cuda_device_count
from omni_core.engine.base import ENGINES, SGLANG, TORCH, EngineCapabilities
from omni_core.errors import ConfigError

SGLANG_RELEASE: Final = "0.5.23"
"""The one release that the bridge is written for and tested with."""
PLACES: Final = ("cuda", "cpu")
_HOW_TO_INSTALL: Final = "docs/engines.md says how to install it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The torch that is installed."""

    version: str
    cuda: str | None
    """Release of CUDA that it was built for."""

    @classmethod
    @cache
    def here(cls) -> TorchBuild | None:
        """From the file in which torch says so; None if there is no torch.

        Read once, when a server starts: two threads must not run a file at a time, which changes
        `sys.modules` and `sys.argv` meanwhile.
        """
        found = find_spec("torch")
        if found is None or found.origin is None:
            return None
        said = runpy.run_path(str(Path(found.origin).with_name("version.py")))
        return cls(version=said["__version__"], cuda=said["cuda"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What one engine can do on a machine."""

    capabilities: EngineCapabilities
    version: str | None
    """Of the distribution that brings it; None if that is not installed."""
    obstacles: Mapping[str, str | None]
    """{"cuda" or "cpu": why it cannot run there; None if it can}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What of a machine decides which engines it can run."""

    torch: TorchBuild | None
    sglang: str | None
    """The version that is installed."""
    cards: int
    """CUDA cards that are visible."""

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        return cls(torch=TorchBuild.here(), sglang=_version("sglang"), cards=cuda_device_count())

    def obstacle(self, engine: str, device: str) -> str | None:
        """Why an engine cannot run on a torch device ("cpu", "cuda:1"), and what to do; None if it
        can."""
        place = device.partition(":")[0]
        on_sglang = self._sglang_obstacles(place) if engine == SGLANG.name else ()
        return next(iter([*on_sglang, *self._torch_obstacles(place)]), None)

    def default_engine(self, device: str) -> str:
        """What "auto" is on a device: SGLang on CUDA where it can run, torch anywhere else."""
        on_card = device.partition(":")[0] == "cuda"
        return SGLANG.name if on_card and not self.obstacle(SGLANG.name, device) else TORCH.name

    def reports(self) -> list[EngineReport]:
        """Every engine."""
        torch = None if self.torch is None else self.torch.version
        versions = {TORCH.name: torch, SGLANG.name: self.sglang}
        return [
            EngineReport(
                capabilities=engine,
                version=versions[name],
                obstacles={place: self.obstacle(name, place) for place in PLACES},
            )
            for name, engine in ENGINES.items()
        ]

    def _torch_obstacles(self, place: str) -> Iterator[str]:
        if self.torch is None:
            yield "torch is not installed; pip install 'omni-core[torch]'"
        elif place == "cuda" and self.torch.cuda is None:
            yield f"torch {self.torch.version} is built without CUDA; install a build with it"
        elif place == "cuda" and not self.cards:
            yield "no CUDA card is visible; use --device cpu"

    def _sglang_obstacles(self, place: str) -> Iterator[str]:
        if self.sglang is None:
            yield f"sglang {SGLANG_RELEASE} is not installed; {_HOW_TO_INSTALL}"
        elif self.sglang != SGLANG_RELEASE:
            yield f"sglang {self.sglang} is installed, not {SGLANG_RELEASE}; {_HOW_TO_INSTALL}"
        elif place == "cpu" and self.torch is not None and self.torch.cuda is not None:
            yield "beside a torch built for CUDA it runs on cards only; use the torch engine there"


def require(engine: str, stage: str, device: str) -> None:
    """ConfigError if the engine of a stage cannot run on its device of this machine."""
    if reason := Machine.here().obstacle(engine, device):
        raise ConfigError(f"stage {stage!r}: ar_engine is {engine} but {reason}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
