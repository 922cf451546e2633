"""Audio clips through the audio tower, clip by clip or many at once.

Knows payloads, mel frames and the tower's memory. Knows nothing of caches or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from omni_core.checkpoint.weights import Weights
from omni_core.encoder.budget import OPTION, cut_clips
from omni_core.errors import ConfigError, StageError
from omni_core.tensors import tensor_over
from omni_core.types import FloatArray, Payload
from omni_qwen3.activation import audio_bytes
from omni_qwen3.payloads import Audio, ByteArray, Features
from omni_qwen3.preprocess.again import MediaAgain
from omni_qwen3.preprocess.audio import audio_tokens
from omni_qwen3.towers.audio import AudioTower


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One audio clip."""

    key: bytes
    param: str
    length: int
    """Mel frames."""
    padded_chunk: int
    """Mel frames to which the tower pads the clip's chunks."""
    content: FloatArray | None
    """Log-mel frames (mel_bins, length); without them `encoded` is read again."""
    encoded: ByteArray | None
    padded_samples: int


class AudioEncoder:
    """Audio clips to embeddings, in tower calls that keep to a memory budget."""

    too_large = "send shorter clips"

    def __init__(
        self, tower: AudioTower, weights: Weights, budget_bytes: int, again: MediaAgain
    ) -> None:
        config = tower.config
        self._tower = tower
        self._again = again
        self._chunk_frames = config.chunk_frames
        self._window_frames = config.n_window_infer
        self._device, self._dtype = weights.device, weights.dtype
        sizes = audio_bytes(config, self._dtype.itemsize)
        company = 1  # see `_call`
        self._max_frames = (sizes.chunks_within(budget_bytes) - company) * self._chunk_frames
        if self._max_frames < self._window_frames:
            least = sizes.of(self._window_frames // self._chunk_frames + company)
            raise ConfigError(
                f"{OPTION} of the audio encoder is {budget_bytes}; one window of sound takes "
                f"{least} bytes, and it cannot be cut"
            )

    def cost(self, payload: Payload) -> int:
        """Mel frames of a request."""
        return int(payload["audio"]["lengths"].sum())

    def items(self, payload: Payload) -> list[Clip]:
        """All clips of a request.

        The tower pads every chunk to the longest of its call, and its convolutions see the padding;
        so a clip is padded as the longest of its request would have it, whoever shares the call.
        """
        audio = cast(Audio, payload["audio"])
        lengths: list[int] = audio["lengths"].tolist()
        clips = [
            Clip(
                key=key,
                param=audio["params"][index],
                length=lengths[index],
                padded_chunk=min(max(lengths), self._chunk_frames),
                content=audio["input_features"][index],
                encoded=audio["encoded"][index],
                padded_samples=audio["padded_samples"],
            )
            for index, key in enumerate(audio["keys"])
        ]
        for clip in clips:
            given = clip.length if clip.content is None else clip.content.shape[1]
            if given != clip.length or given < 1:
                raise StageError(f"{given} mel frames do not make a clip of {clip.length}")
        return clips

    @torch.inference_mode()
    def encode(self, items: Sequence[Clip]) -> list[torch.Tensor]:
        """One run of tower calls for each padded chunk length; results (n, H) on the CPU.

        MediaError if the file of a clip cannot be read again.
        """
        groups: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            groups.setdefault(item.padded_chunk, []).append(index)
        made: dict[int, torch.Tensor] = {}
        for padded_chunk, members in groups.items():
            encoded = self._encode([self._frames(items[index]) for index in members], padded_chunk)
            made.update(zip(members, encoded, strict=True))
        return [made[index] for index in range(len(items))]

    def join(self, items: Sequence[Clip], made: Sequence[torch.Tensor]) -> Payload:
        """`Features` of a request out of those of its clips."""
        return cast(Payload, Features(audio=made[0] if len(made) == 1 else torch.cat(list(made))))

    def size_bytes(self, made: torch.Tensor) -> int:
        """Memory of one clip's features."""
        return int(made.nbytes)

    def _frames(self, clip: Clip) -> FloatArray:
        if clip.content is not None:
            return clip.content
        assert clip.encoded is not None
        return self._again.sound(clip.encoded, clip.padded_samples)

    def _encode(self, clips: list[FloatArray], padded_chunk: int) -> list[torch.Tensor]:
        features = np.concatenate(clips, axis=1)
        calls = cut_clips(
            [clip.shape[1] for clip in clips],
            chunk=self._chunk_frames,
            window=self._window_frames,
            max_frames=self._max_frames,
        )
        rows: list[torch.Tensor] = []
        start = 0
        for lengths in calls:
            end = start + sum(lengths)
            rows.append(self._call(features[:, start:end], lengths, padded_chunk))
            start = end
        split = torch.split(torch.cat(rows), [audio_tokens(clip.shape[1]) for clip in clips])
        # Copies: a view would keep what all the others of the batch were made into.
        return [part.to("cpu", copy=True) for part in split]

    def _call(self, features: FloatArray, lengths: list[int], padded_chunk: int) -> torch.Tensor:
        """Rows of clips that are padded to chunks of `padded_chunk` frames; where none of them is
        that long, a silent clip that is keeps them company."""
        spare = 0
        if max(lengths) < padded_chunk:
            features = np.pad(features, ((0, 0), (0, padded_chunk)))
            lengths = [*lengths, padded_chunk]
            spare = audio_tokens(padded_chunk)
        frames = tensor_over(features).to(self._device, self._dtype)
        rows: torch.Tensor = self._tower(frames, lengths)
        return rows[: len(rows) - spare]
