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
from omni_core.types import ByteArray, IntArray, MediaOptions
from omni_qwen3.payloads import Audio, Video
from omni_qwen3.preprocess.audio import FRAMES_PER_CHUNK, AudioFeatures, audio_tokens
from omni_qwen3.preprocess.settings import Settings
from omni_qwen3.preprocess.tokens import MediaSizes
from omni_qwen3.preprocess.video import video_patches


class EncoderInputs:
    """Makes payloads of decoded media; safe to share by threads."""

    def __init__(self, settings: Settings, features: AudioFeatures) -> None:
        self._settings = settings
        self._features = features

    def sizes(self, media: Sequence[Item], options: MediaOptions) -> MediaSizes:
        """Sizes of a prompt's media, each kind in message order."""
        samples = [item.measures.samples for item in _sounding(media)]
        padded = self._features.padded_samples(samples) if samples else 0
        video = self._settings.video
        return MediaSizes(
            image_grids=[item.measures.grid for item in _of(media, "image")],
            video_grids=[item.measures.grid for item in _of(media, "video")],
            second_per_grid=[
                video.seconds_per_grid(item.measures.fps) for item in _of(media, "video")
            ],
            audio_lengths=[self._features.frames(count, padded) for count in samples],
            use_audio_in_video=options.use_audio_in_video,
        )

    def images(self, media: Sequence[Item], sizes: MediaSizes, rows: IntArray) -> Visual:
        """The images, which fill `rows` of the prompt."""
        items, settings = _of(media, "image"), self._settings.image
        patches = [
            None if item.image is None else image_patches(item.image, item.measures.grid, settings)
            for item in items
        ]
        keys = [media_key(item.encoded.key, item.measures.grid) for item in items]
        return Visual(
            pixel_values=patches,
            encoded=[_file(item) for item in items],
            grid_thw=grid_array(sizes.image_grids),
            params=[item.encoded.param for item in items],
            keys=keys,
            rows=rows,
            row_keys=self._visual_row_keys(keys, sizes.image_grids),
        )

    def videos(
        self,
        media: Sequence[Item],
        sizes: MediaSizes,
        rows: IntArray,
        sampling: tuple[float, int],
    ) -> Video:
        """The videos, sampled at (frames per second, most frames)."""
        items, settings = _of(media, "video"), self._settings.video
        patches = [
            None
            if item.video is None
            else video_patches(item.video.frames, item.measures.grid, settings)
            for item in items
        ]
        facts = zip(items, sizes.second_per_grid, strict=True)
        keys = [media_key(item.encoded.key, item.measures.grid, time) for item, time in facts]
        return Video(
            pixel_values=patches,
            encoded=[_file(item) for item in items],
            grid_thw=grid_array(sizes.video_grids),
            params=[item.encoded.param for item in items],
            keys=keys,
            rows=rows,
            row_keys=self._visual_row_keys(keys, sizes.video_grids),
            second_per_grid=sizes.second_per_grid,
            fps=sampling[0],
            max_frames=sampling[1],
        )

    def audio(self, media: Sequence[Item], sizes: MediaSizes, rows: IntArray) -> Audio:
        """Clips, and sound tracks in their videos' places."""
        items, lengths = _sounding(media), sizes.audio_lengths
        padded = self._features.padded_samples([item.measures.samples for item in items])
        new = [item.sound for item in items if item.sound is not None]
        made = iter(self._features(new, padded) if new else [])
        # What the encoder pads a clip's chunks to shows in its rows, like the silence after it.
        chunk = min(max(lengths), FRAMES_PER_CHUNK)
        keys = [
            media_key(
                item.encoded.key,
                "sound",
                self._features.padding(item.measures.samples, padded),
                chunk,
            )
            for item in items
        ]
        pairs = zip(keys, lengths, strict=True)
        return Audio(
            input_features=[None if item.sound is None else next(made) for item in items],
            encoded=[_file(item) for item in items],
            padded_samples=padded,
            lengths=np.array(lengths, dtype=np.int64),
            params=[item.encoded.param for item in items],
            keys=keys,
            rows=rows,
            row_keys=np.concatenate(
                [item_row_keys(key, audio_tokens(frames)) for key, frames in pairs]
            ),
        )

    def _visual_row_keys(self, keys: list[bytes], grids: list[list[int]]) -> IntArray:
        merged = self._settings.prompt.spatial_merge_size**2
        counts = grid_array(grids).prod(axis=1) // merged
        pairs = zip(keys, counts.tolist(), strict=True)
        return np.concatenate([item_row_keys(key, count) for key, count in pairs])


def grid_array(grids: list[list[int]]) -> IntArray:
    """(items, 3)."""
    return np.array(grids, dtype=np.int64)


def _of(media: Sequence[Item], kind: str) -> list[Item]:
    return [item for item in media if item.encoded.kind == kind]


def _sounding(media: Sequence[Item]) -> list[Item]:
    return [item for item in media if item.measures.samples]


def _file(item: Item) -> ByteArray | None:
    return None if item.decoded else np.frombuffer(item.encoded.data, dtype=np.uint8)
