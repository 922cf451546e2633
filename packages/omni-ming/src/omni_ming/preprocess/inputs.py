"""What the encoders get of a prompt's media: patches, mel frames, or files they have met before.

Knows sizes, keys and the order of a payload. Decodes nothing and knows no text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omni_core.encoder.media import Item
from omni_core.encoder.patches import image_patches
from omni_core.encoder.payloads import Visual
from omni_core.media.keys import item_row_keys, media_key
from omni_core.types import ByteArray, FloatArray, IntArray
from omni_ming.payloads import Audio
from omni_ming.preprocess.audio import AudioFeatures
from omni_ming.preprocess.chat import MediaSize
from omni_ming.preprocess.settings import Settings
from omni_ming.preprocess.video import pair_times, video_patches
from omni_ming.towers.sizes import audio_tokens


class EncoderInputs:
    """Makes payloads of decoded media; safe to share by threads."""

    def __init__(self, settings: Settings, features: AudioFeatures) -> None:
        self._settings = settings
        self._features = features

    def size(self, item: Item) -> MediaSize:
        """How many rows an item has, and where."""
        if item.encoded.kind == "audio":
            return MediaSize(tokens=audio_tokens(self._features.frames(item.measures.samples)))
        merge = self._settings.pictures.merge_size
        time, height, width = item.measures.grid
        grid = (time, height // merge, width // merge)
        if item.encoded.kind == "image":
            return MediaSize(grid=grid)
        measures, settings = item.measures, self._settings.pictures
        return MediaSize(grid=grid, times=pair_times(measures.frames, measures.fps, settings))

    def visual(self, items: Sequence[Item], rows: IntArray) -> Visual:
        """Images, or videos, which fill `rows` of the prompt."""
        keys = [media_key(item.encoded.key, item.measures.grid) for item in items]
        grids = np.array([item.measures.grid for item in items], dtype=np.int64)
        counts = grids.prod(axis=1) // self._settings.pictures.merge_size**2
        return Visual(
            pixel_values=[self._patches(item) for item in items],
            encoded=[_file(item) for item in items],
            grid_thw=grids,
            params=[item.encoded.param for item in items],
            keys=keys,
            rows=rows,
            row_keys=_row_keys(keys, counts.tolist()),
        )

    def audio(self, items: Sequence[Item], rows: IntArray) -> Audio:
        """Clips, which fill `rows` of the prompt."""
        keys = [media_key(item.encoded.key, "sound") for item in items]
        lengths = [self._features.frames(item.measures.samples) for item in items]
        return Audio(
            input_features=[
                None if item.sound is None else self._features(item.sound) for item in items
            ],
            encoded=[_file(item) for item in items],
            lengths=np.array(lengths, dtype=np.int64),
            params=[item.encoded.param for item in items],
            keys=keys,
            rows=rows,
            row_keys=_row_keys(keys, [audio_tokens(frames) for frames in lengths]),
        )

    def _patches(self, item: Item) -> FloatArray | None:
        settings, grid = self._settings.pictures, item.measures.grid
        if item.image is not None:
            return image_patches(item.image, grid, settings)
        return None if item.video is None else video_patches(item.video.frames, grid, settings)


def _file(item: Item) -> ByteArray | None:
    """What the encoder reads where it has not met the item, or forgotten it."""
    return None if item.decoded else np.frombuffer(item.encoded.data, dtype=np.uint8)


def _row_keys(keys: Sequence[bytes], counts: Sequence[int]) -> IntArray:
    pairs = zip(keys, counts, strict=True)
    return np.concatenate([item_row_keys(key, count) for key, count in pairs])
