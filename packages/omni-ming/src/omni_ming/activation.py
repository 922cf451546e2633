"""Activation memory of the encoder towers: what a call takes. Knows sizes only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omni_core.layers.vit import MARGIN, patch_bytes
from omni_ming.towers.config import AudioConfig, VisionConfig


def vision_patch_bytes(config: VisionConfig, itemsize: int) -> int:
    """Peak bytes of the vision tower per patch of a call."""
    widest = max(config.out_hidden_size, 2 * config.thinker_hidden_size)
    return patch_bytes(config, itemsize, widest // config.spatial_merge_size**2)


@dataclass(frozen=True, slots=True)
class AudioBytes:
    """Peak bytes of the audio tower: `call`, and `frame` for each mel frame."""

    call: int
    frame: int

    def of(self, frames: int) -> int:
        """Of a call for so many frames."""
        return self.call + self.frame * frames


def audio_bytes(config: AudioConfig, itemsize: int) -> AudioBytes:
    """Peak bytes of the audio tower; `config` is the audio_config.

    Counted from `towers.audio`, whose attention keeps no score matrix. With w n_state and m mel
    bins, a frame takes the larger of 3w + m elements in the first convolution (before and after
    GELU, once more where a kernel reorders it) and 5w in a layer, which has half a state for each
    frame, beside input, states and rows. A kernel may reorder a convolution's weights, too.
    """
    width, hidden = config.n_state, config.thinker_hidden_size
    layer = max(3 * width + config.n_mels, 5 * width)
    kept = config.n_mels + width // 2 + hidden // 2
    return AudioBytes(
        call=math.ceil(MARGIN * itemsize * 3 * width * max(width, hidden)),
        frame=math.ceil(MARGIN * itemsize * (layer + kept)),
    )
