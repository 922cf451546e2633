"""Activation memory of encoder towers: how much one call may take, and how to cut calls to it.

Knows sizes only. Cuts lie where the towers' attention has its borders, so a cut call computes what
the whole would: pictures and single temporal patches of videos, and the windows of audio.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from omni_core.encoder.options import whole_number
from omni_core.errors import ConfigError
from omni_core.specs import StageContext

OPTION = "activation_budget_bytes"
CPU_BUDGET_BYTES = 4 * 1024**3
FREE_SHARE = 0.5
"""Of a card's free memory, for a stage without a `memory_fraction`."""


def activation_budget(ctx: StageContext, device: torch.device) -> int:
    """Bytes that one tower call of a stage may take beyond weights, inputs and results.

    The stage's option `activation_budget_bytes`; else on a card what its `memory_fraction` leaves
    beside the weights (half of the free memory without a fraction), and 4 GiB on a CPU.
    """
    name, fraction = ctx.stage.name, ctx.stage.memory_fraction
    given = whole_number(ctx.stage, OPTION, None)
    if given is not None:
        return given
    if device.type != "cuda":
        return CPU_BUDGET_BYTES
    if fraction is None:
        return int(torch.cuda.mem_get_info(device)[0] * FREE_SHARE)
    share = int(torch.cuda.get_device_properties(device).total_memory * fraction)
    left = share - torch.cuda.memory_allocated(device)
    if left <= 0:
        raise ConfigError(
            f"stage {name!r}: its weights fill its memory_fraction {fraction}; raise it to leave "
            "room for activations"
        )
    return left


def cut_grids(grids: Iterable[Sequence[int]], max_patches: int) -> list[list[list[int]]]:
    """Grids [time, height, width] of consecutive items as calls of at most `max_patches` patches,
    which hold at least one picture of each.

    Videos are cut between temporal patches.
    """
    calls: list[list[list[int]]] = [[]]
    room = max_patches
    for time, height, width in grids:
        left, patches = time, height * width
        while left:
            count = min(left, room // patches)
            if not count:
                calls.append([])
                room = max_patches
                continue
            calls[-1].append([count, height, width])
            left -= count
            room -= count * patches
    return calls


def cut_clips(
    lengths: Iterable[int], *, chunk: int, window: int, max_frames: int
) -> list[list[int]]:
    """Frames of consecutive clips as calls of at most `max_frames`, counted in whole chunks.

    Clips are cut at multiples of `window`, a multiple of `chunk`; `max_frames` is at least one.
    """
    calls: list[list[int]] = [[]]
    room = max_frames
    for frames in lengths:
        left = frames
        while left:
            piece = left if left <= room // chunk * chunk else room // window * window
            if not piece:
                calls.append([])
                room = max_frames
                continue
            calls[-1].append(piece)
            left -= piece
            room -= -(-piece // chunk) * chunk
    return calls
