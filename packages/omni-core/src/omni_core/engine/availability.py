"""Which engines can run on this machine, and what stands in the way of the others.

Knows which distributions are installed and how torch was built. Imports neither torch nor upstream.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
_INSTALL: Final = "see docs/engines.md for how to install it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The torch that is installed."""

    version: str
    cuda: str | None
    """Release of CUDA it was built for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What one engine can do on this machine."""

    capabilities: EngineCapabilities
    version: str | None
    """Of the distribution that brings it; None if that is not installed."""
    obstacles: Mapping[str, str | None]
    """{"cuda" or "cpu": why it cannot run there, None if it can}."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where it can run."""
        return tuple(place for place, obstacle in self.obstacles.items() if obstacle is None)


def survey() -> list[EngineReport]:
    """Every engine, on this machine."""
    return [
        EngineReport(
            capabilities=engine,
            version=_version(name),
            obstacles={place: obstacle(name, place) for place in PLACES},
        )
        for name, engine in ENGINES.items()
    ]


def obstacle(engine: str, device: str) -> str | None:
    """Why an engine cannot run on a device ("cpu", "cuda", "cuda:1") of this machine, and what to
    do; None if it can."""
    place = device.partition(":")[0]
    found = [*_torch_obstacles(place)]
    if engine == SGLANG.name:
        found = [*_sglang_obstacles(place), *found]
    return found[0] if found else None


def default_engine(device: str) -> str:
    """What "auto" is on a device: SGLang on CUDA where it can run, torch anywhere else."""
    on_cuda = device.partition(":")[0] == "cuda"
    return SGLANG.name if on_cuda and obstacle(SGLANG.name, device) is None else TORCH.name


def require(engine: str, stage: str, device: str) -> None:
    """ConfigError if the engine of a stage cannot run on its device."""
    if reason := obstacle(engine, device):
        raise ConfigError(f"stage {stage!r}: ar_engine is {engine} but {reason}")


def torch_build() -> TorchBuild | None:
    """The torch that is installed, from the file in which it says so; None without one."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    said = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    return TorchBuild(version=said["__version__"], cuda=said["cuda"])


def _torch_obstacles(place: str) -> Iterable[str]:
    build = torch_build()
    if build is None:
        yield "torch is not installed; pip install 'omni-core[torch]'"
    elif place == "cuda" and build.cuda is None:
        yield f"torch {build.version} is built without CUDA; install a build with it"
    elif place == "cuda" and not cuda_device_count():
        yield "no CUDA card is visible; use --device cpu"


def _sglang_obstacles(place: str) -> Iterable[str]:
    version, build = _version(SGLANG.name), torch_build()
    if version is None:
        yield f"sglang {SGLANG_RELEASE} is not installed; {_INSTALL}"
    elif version != SGLANG_RELEASE:
        yield f"sglang {version} is installed and {SGLANG_RELEASE} is needed; {_INSTALL}"
    elif place == "cpu" and build is not None and build.cuda is not None:
        yield "sglang runs on a CPU only beside a torch that is built without CUDA; use torch"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
