"""Which devices and compilers this machine has, found without importing torch."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Sequence
from typing import Final

from omni_core.graph import cards_of
from omni_core.specs import StageConfig

DEVICES: Final = ("auto", "cpu", "cuda")
_NAME_BYTES: Final = 256


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


def card_names() -> tuple[str, ...]:
    """What the driver calls the cards that it shows to this process."""
    count = cuda_device_count()
    if not count:
        return ()
    driver = ctypes.CDLL("libcuda.so.1")
    names: list[str] = []
    for number in range(count):
        card, name = ctypes.c_int(0), ctypes.create_string_buffer(_NAME_BYTES)
        driver.cuDeviceGet(ctypes.byref(card), number)
        driver.cuDeviceGetName(name, _NAME_BYTES, card)
        names.append(name.value.decode(errors="replace"))
    return tuple(names)


def cpp_compiler() -> str | None:
    """The C++ compiler that torch would call: `CXX`, or g++; None if it is not there."""
    return shutil.which(os.environ.get("CXX", "g++"))


def default_device(cards: int) -> str:
    """What "auto" is on a machine with so many cards."""
    return "cuda" if cards else "cpu"


def stage_devices(stage: StageConfig, replica: int = 0) -> tuple[str, ...]:
    """The torch device of each rank of a stage, in the replica of this number."""
    cards = cards_of(stage)
    first = replica * stage.tp_size
    return tuple(
        f"cuda:{cards[(first + rank) % len(cards)]}" if cards else "cpu"
        for rank in range(stage.tp_size)
    )


def stage_device(stage: StageConfig, replica: int = 0) -> str:
    """That of the first rank, which is all there is of most stages."""
    return stage_devices(stage, replica)[0]


def missing_cards(stages: Sequence[StageConfig], cards: int) -> list[str]:
    """A sentence for each stage placed on a card this machine lacks."""
    return [
        f"stage {stage.name!r}: gpu is {card} but this machine has {cards} card(s); "
        f"use --{stage.name}.gpu N or another --variant"
        for stage in stages
        for card in cards_of(stage)
        if card >= cards
    ]
