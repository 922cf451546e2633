"""Which devices this machine has, found without importing torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from omni_core.errors import ConfigError
from omni_core.specs import StageConfig


def cuda_device_count() -> int:
    """CUDA cards the driver shows to this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def resolve_device(asked: str) -> str:
    """ "cpu" or "cuda" for "auto", "cpu" or "cuda"; ConfigError if there is no such device."""
    cards = cuda_device_count()
    if asked == "auto":
        return "cuda" if cards else "cpu"
    if asked not in {"cpu", "cuda"}:
        raise ConfigError(f"--device {asked!r}: choose auto, cpu or cuda")
    if asked == "cuda" and not cards:
        raise ConfigError("--device cuda: no CUDA card is visible; use --device cpu")
    return asked


def resolve_dtype(asked: str, device: str) -> str:
    """A torch dtype name: "auto" is bfloat16 on a card and float32 on a CPU."""
    if asked == "auto":
        return "bfloat16" if device == "cuda" else "float32"
    if asked not in {"float32", "bfloat16", "float16"}:
        raise ConfigError(f"--dtype {asked!r}: choose auto, float32, bfloat16 or float16")
    return asked


def stage_device(stage: StageConfig) -> str:
    """The torch device of a stage."""
    if stage.gpu is None:
        return "cpu"
    card = stage.gpu if isinstance(stage.gpu, int) else stage.gpu[0]
    return f"cuda:{card}"


def missing_cards(stages: Sequence[StageConfig], cards: int) -> list[str]:
    """A sentence for each stage placed on a card this machine lacks."""
    return [
        f"stage {stage.name!r}: gpu is {card} but this machine has {cards} card(s); "
        f"use --{stage.name}.gpu N or another --variant"
        for stage in stages
        for card in ((stage.gpu,) if isinstance(stage.gpu, int) else stage.gpu or ())
        if card >= cards
    ]
