"""The encoder stages: the vision and audio towers, batched over requests.

Knows tower inputs and how their outputs split back into requests. Knows nothing of prompts, of
decoding media, or of the rest of the model, whose weights are not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import torch

from omni_core.errors import ConfigError, OmniError, RequestError, StageError
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import FloatArray, Payload
from omni_qwen3.activation import (
    OPTION,
    activation_budget,
    audio_bytes,
    cut_clips,
    cut_grids,
    vision_patch_bytes,
)
from omni_qwen3.payloads import Audio, Features, Prompt, Visual, VisualFeatures
from omni_qwen3.preprocess.audio import audio_tokens
from omni_qwen3.towers.audio import AudioTower
from omni_qwen3.towers.config import audio_config, vision_config
from omni_qwen3.towers.vision import VisionTower
from omni_qwen3.weights import Checkpoint, Weights, open_weights

VISION_WEIGHTS = "thinker.visual."
AUDIO_WEIGHTS = "thinker.audio_tower."
KINDS = ("image", "video")
"""Inputs of the vision tower, by payload key."""


def build_image(ctx: StageContext) -> Scheduler:
    """The image_encoder stage: images and videos."""
    return _scheduler(ctx, load_image(ctx))


def build_audio(ctx: StageContext) -> Scheduler:
    """The audio_encoder stage."""
    return _scheduler(ctx, load_audio(ctx))


def load_image(ctx: StageContext) -> ImageEncoder:
    """The checkpoint's vision tower."""
    with torch.device("meta"):
        tower = VisionTower(vision_config(ctx.model_path))
    weights = _load(ctx, tower, VISION_WEIGHTS)
    return ImageEncoder(tower, weights, activation_budget(ctx, weights.device))


def load_audio(ctx: StageContext) -> AudioEncoder:
    """The checkpoint's audio tower."""
    with torch.device("meta"):
        tower = AudioTower(audio_config(ctx.model_path))
    weights = _load(ctx, tower, AUDIO_WEIGHTS)
    return AudioEncoder(tower, weights, activation_budget(ctx, weights.device))


class ImageEncoder:
    """`Prompt`s with images or videos to `Features`, in calls that keep to a memory budget."""

    def __init__(self, tower: VisionTower, weights: Weights, budget_bytes: int) -> None:
        config = tower.config
        self._tower = tower
        self._merged = config.spatial_merge_size**2
        self._patch_pixels = config.patch_size**2
        self._device, self._dtype = weights.device, weights.dtype
        self._max_patches = budget_bytes // vision_patch_bytes(config, self._dtype.itemsize)

    @torch.inference_mode()
    def __call__(self, works: Sequence[Work]) -> list[Payload | OmniError]:
        """As few tower calls for all items of all requests as the budget allows.

        A picture of one item attends to itself alone, so calls may be cut between any two.
        RequestError for a picture that is over the budget by itself.
        """
        results: list[Payload | OmniError] = []
        items: list[tuple[Payload, str, Visual]] = []
        for work in works:
            visuals = {kind: work.payload[kind] for kind in KINDS if kind in work.payload}
            refusal = self._refusal(visuals.values())
            features: Payload = {}
            results.append(refusal or features)
            if refusal is None:
                items += [(features, kind, visual) for kind, visual in visuals.items()]
        encoded = self._encode([visual for _, _, visual in items]) if items else []
        for (features, kind, _), made in zip(items, encoded, strict=True):
            features[kind] = made
        return results

    def _refusal(self, visuals: Iterable[Visual]) -> OmniError | None:
        for visual in visuals:
            patches = int(visual["grid_thw"].prod(axis=1).sum())
            if patches != len(visual["pixel_values"]):
                return StageError(
                    f"{len(visual['pixel_values'])} patches do not fill the grids' {patches}"
                )
            for index, (_, height, width) in enumerate(visual["grid_thw"].tolist()):
                if height * width > self._max_patches:
                    return self._too_large(height * width, visual["params"][index])
        return None

    def _too_large(self, patches: int, param: str) -> RequestError:
        pixels, most = patches * self._patch_pixels, self._max_patches * self._patch_pixels
        return RequestError(
            f"one picture of {param} has {pixels} pixels after resizing, more than the {most} this "
            "server has memory to encode at once; lower max_pixels or send a smaller one",
            param=param,
        )

    def _encode(self, visuals: list[Visual]) -> list[VisualFeatures]:
        pixels = np.concatenate([visual["pixel_values"] for visual in visuals])
        grids = np.concatenate([visual["grid_thw"] for visual in visuals])
        embeds, deepstack = self._run(pixels, cut_grids(grids.tolist(), self._max_patches))
        counts = [len(visual["pixel_values"]) // self._merged for visual in visuals]
        return [
            VisualFeatures(embeds=rows, deepstack=levels)
            for rows, levels in zip(
                torch.split(embeds, counts), torch.split(deepstack, counts, dim=1), strict=True
            )
        ]

    def _run(
        self, pixels: FloatArray, calls: list[list[list[int]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings (N, H) and deepstack rows (levels, N, H) of all patches, call by call."""
        embeds, deepstack = [], []
        start = 0
        for grids in calls:
            end = start + sum(math.prod(grid) for grid in grids)
            patches = torch.from_numpy(pixels[start:end]).to(self._device, self._dtype)
            rows, levels = self._tower(patches, grids)
            embeds.append(rows)
            deepstack.append(levels)
            start = end
        return torch.cat(embeds), torch.cat(deepstack, dim=1)


class AudioEncoder:
    """`Prompt`s with audio to `Features`, in calls that keep to a memory budget."""

    def __init__(self, tower: AudioTower, weights: Weights, budget_bytes: int) -> None:
        config = tower.config
        self._tower = tower
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

    @torch.inference_mode()
    def __call__(self, works: Sequence[Work]) -> list[Payload | OmniError]:
        """One run of tower calls per padded chunk length among the requests.

        The tower pads every chunk to the longest of its call, and its convolutions see the
        padding; so a request shares a call only with those that pad as it would alone.
        """
        results: dict[int, Payload | OmniError] = {}
        groups: dict[int, list[int]] = {}
        for index, work in enumerate(works):
            audio = cast(Prompt, work.payload)["audio"]
            refusal = self._refusal(audio)
            if refusal is not None:
                results[index] = refusal
                continue
            longest = min(int(audio["lengths"].max()), self._chunk_frames)
            groups.setdefault(longest, []).append(index)
        for longest, members in groups.items():
            audios = [cast(Prompt, works[index].payload)["audio"] for index in members]
            for index, embeds in zip(members, self._encode(audios, longest), strict=True):
                results[index] = cast(Payload, Features(audio=embeds))
        return [results[index] for index in range(len(works))]

    def _refusal(self, audio: Audio) -> OmniError | None:
        frames, given = int(audio["lengths"].sum()), audio["input_features"].shape[1]
        if frames != given or audio["lengths"].min() < 1:
            return StageError(
                f"{given} mel frames do not make clips of {audio['lengths'].tolist()}"
            )
        return None

    def _encode(self, audios: list[Audio], longest: int) -> Sequence[torch.Tensor]:
        features = np.concatenate([audio["input_features"] for audio in audios], axis=1)
        calls = cut_clips(
            np.concatenate([audio["lengths"] for audio in audios]).tolist(),
            chunk=self._chunk_frames,
            window=self._window_frames,
            max_frames=self._max_frames,
        )
        rows: list[torch.Tensor] = []
        start = 0
        for lengths in calls:
            end = start + sum(lengths)
            rows.append(self._call(features[:, start:end], lengths, longest))
            start = end
        counts = [sum(audio_tokens(int(n)) for n in audio["lengths"]) for audio in audios]
        encoded: Sequence[torch.Tensor] = torch.split(torch.cat(rows), counts)
        return encoded

    def _call(self, features: FloatArray, lengths: list[int], longest: int) -> torch.Tensor:
        """Rows of clips that are padded to chunks of `longest` frames; where none of them is that
        long, a silent clip that is keeps them company."""
        spare = 0
        if max(lengths) < longest:
            features = np.pad(features, ((0, 0), (0, longest)))
            lengths = [*lengths, longest]
            spare = audio_tokens(longest)
        frames = torch.from_numpy(features).to(self._device, self._dtype)
        rows: torch.Tensor = self._tower(frames, lengths)
        return rows[: len(rows) - spare]


def _load(ctx: StageContext, tower: torch.nn.Module, prefix: str) -> Weights:
    """Fill a tower on the meta device with the checkpoint's weights, in the stage's dtype."""
    with Checkpoint(ctx.model_path) as checkpoint:
        weights = open_weights(
            checkpoint, (prefix,), device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        state = {
            name: weights.tensor(prefix + name, empty.shape)
            for name, empty in tower.state_dict().items()
        }
        weights.finish()
    tower.load_state_dict(state, assign=True)
    tower.requires_grad_(False).eval()
    return weights


def _scheduler(
    ctx: StageContext, compute: Callable[[list[Work]], Sequence[Payload | OmniError]]
) -> Scheduler:
    return SimpleScheduler(
        compute,
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
    )
