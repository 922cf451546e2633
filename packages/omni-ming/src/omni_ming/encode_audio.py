"""Audio clips through the audio tower, clip by clip or many at once.

Knows payloads, mel frames and the tower's memory. Knows nothing of caches or requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from omni_core.checkpoint.weights import Weights
from omni_core.errors import RequestError, StageError
from omni_core.tensors import tensor_over
from omni_core.types import ByteArray, FloatArray, Payload
from omni_ming.activation import audio_bytes
from omni_ming.payloads import Audio, Features
from omni_ming.preprocess.again import MediaAgain
from omni_ming.towers.audio import AudioTower

FRAMES_PER_SECOND = 100
"""Mel frames: Whisper's, at any settings this model can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One audio clip."""

    key: bytes
    param: str
    length: int
    """Mel frames."""
    content: FloatArray | None
    """Log-mel frames (mel_bins, length); without them `encoded` is read again."""
    encoded: ByteArray | None


class AudioEncoder:
    """Audio clips to embeddings, in tower calls that keep to a memory budget.

    A clip attends to itself as a whole, so one cannot be cut; calls may be cut between any two.
    """

    too_large = "send shorter clips"

    def __init__(
        self, tower: AudioTower, weights: Weights, budget_bytes: int, again: MediaAgain
    ) -> None:
        self._tower = tower
        self._again = again
        self._device, self._dtype = weights.device, weights.dtype
        sizes = audio_bytes(tower.config, weights.dtype.itemsize)
        self._max_frames = max(0, budget_bytes - sizes.call) // sizes.frame

    def cost(self, payload: Payload) -> int:
        """Mel frames of a request."""
        return int(payload["audio"]["lengths"].sum())

    def items(self, payload: Payload) -> list[Clip]:
        """All clips of a request; RequestError for one over the budget by itself."""
        audio = cast(Audio, payload["audio"])
        clips = [
            Clip(
                key=key,
                param=audio["params"][index],
                length=int(audio["lengths"][index]),
                content=audio["input_features"][index],
                encoded=audio["encoded"][index],
            )
            for index, key in enumerate(audio["keys"])
        ]
        for clip in clips:
            given = clip.length if clip.content is None else clip.content.shape[1]
            if given != clip.length or given < 1:
                raise StageError(f"{given} mel frames do not make a clip of {clip.length}")
            if clip.length > self._max_frames:
                most = self._max_frames / FRAMES_PER_SECOND
                raise RequestError(
                    f"{clip.param} lasts {clip.length / FRAMES_PER_SECOND:g} s, more than the "
                    f"{most:g} s that this server has memory for; send shorter clips",
                    param=clip.param,
                )
        return clips

    @torch.inference_mode()
    def encode(self, items: Sequence[Clip]) -> list[torch.Tensor]:
        """Rows (n, H) of each clip, on the CPU. MediaError if a file cannot be read again."""
        made: list[torch.Tensor] = []
        for call in self._calls(items):
            frames = [tensor_over(self._frames(c)).to(self._device, self._dtype) for c in call]
            made += [rows.to("cpu", copy=True) for rows in self._tower(frames)]
        return made

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
        return self._again.sound(clip.encoded)

    def _calls(self, items: Sequence[Clip]) -> Iterator[list[Clip]]:
        call: list[Clip] = []
        frames = 0
        for clip in items:
            if call and frames + clip.length > self._max_frames:
                yield call
                call, frames = [], 0
            call.append(clip)
            frames += clip.length
        if call:
            yield call
