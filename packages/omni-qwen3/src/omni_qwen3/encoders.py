"""The encoder stages: transformers' own vision and audio towers, batched over requests.

Knows tower inputs and how their outputs split back into requests. Knows nothing of prompts, of
decoding media, or of the rest of the model, whose weights are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from omni_core.errors import OmniError, StageError
from omni_core.scheduler.base import Scheduler, Work
from omni_core.scheduler.simple import SimpleScheduler
from omni_core.specs import StageContext
from omni_core.types import Payload
from omni_qwen3.payloads import Audio, Features, Prompt, Visual, VisualFeatures
from omni_qwen3.preprocess.audio import audio_tokens
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
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
        Qwen3OmniMoeVisionEncoder,
    )

    config = _thinker_config(ctx).vision_config
    return ImageEncoder(*_load(ctx, Qwen3OmniMoeVisionEncoder, config, VISION_WEIGHTS))


def load_audio(ctx: StageContext) -> AudioEncoder:
    """The checkpoint's audio tower."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
        Qwen3OmniMoeAudioEncoder,
    )

    config = _thinker_config(ctx).audio_config
    return AudioEncoder(*_load(ctx, Qwen3OmniMoeAudioEncoder, config, AUDIO_WEIGHTS))


class ImageEncoder:
    """`Prompt`s with images or videos to `Features`."""

    def __init__(self, tower: torch.nn.Module, config: Any, weights: Weights) -> None:
        self._tower = tower
        self._merged = config.spatial_merge_size**2
        self._device, self._dtype = weights.device, weights.dtype

    @torch.inference_mode()
    def __call__(self, works: Sequence[Work]) -> list[Payload | OmniError]:
        """One tower call for all items of all requests; an item attends to itself alone."""
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
        return None

    def _encode(self, visuals: list[Visual]) -> list[VisualFeatures]:
        pixels = np.concatenate([visual["pixel_values"] for visual in visuals])
        grids = np.concatenate([visual["grid_thw"] for visual in visuals])
        out = self._tower(
            torch.from_numpy(pixels).to(self._device, self._dtype),
            grid_thw=torch.from_numpy(grids).to(self._device),
        )
        counts = [len(visual["pixel_values"]) // self._merged for visual in visuals]
        deepstack = torch.split(torch.stack(list(out.deepstack_features)), counts, dim=1)
        return [
            VisualFeatures(embeds=embeds, deepstack=levels)
            for embeds, levels in zip(out.pooler_output.split(counts), deepstack, strict=True)
        ]


class AudioEncoder:
    """`Prompt`s with audio to `Features`."""

    def __init__(self, tower: torch.nn.Module, config: Any, weights: Weights) -> None:
        self._tower = tower
        self._chunk_frames = 2 * config.n_window
        self._device, self._dtype = weights.device, weights.dtype

    @torch.inference_mode()
    def __call__(self, works: Sequence[Work]) -> list[Payload | OmniError]:
        """One tower call per padded chunk length among the requests.

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
        for members in groups.values():
            audios = [cast(Prompt, works[index].payload)["audio"] for index in members]
            for index, embeds in zip(members, self._encode(audios), strict=True):
                results[index] = cast(Payload, Features(audio=embeds))
        return [results[index] for index in range(len(works))]

    def _refusal(self, audio: Audio) -> OmniError | None:
        frames, given = int(audio["lengths"].sum()), audio["input_features"].shape[1]
        if frames != given or audio["lengths"].min() < 1:
            return StageError(
                f"{given} mel frames do not make clips of {audio['lengths'].tolist()}"
            )
        return None

    def _encode(self, audios: list[Audio]) -> Sequence[torch.Tensor]:
        features = np.concatenate([audio["input_features"] for audio in audios], axis=1)
        lengths = np.concatenate([audio["lengths"] for audio in audios])
        out = self._tower(
            torch.from_numpy(features).to(self._device, self._dtype),
            feature_lens=torch.from_numpy(lengths).to(self._device),
        )
        counts = [sum(audio_tokens(int(n)) for n in audio["lengths"]) for audio in audios]
        rows: Sequence[torch.Tensor] = out.last_hidden_state.split(counts)
        return rows


class _EmptyOnMeta(TorchFunctionMode):
    """Parameters, which modules make with `torch.empty`, take no memory until they are assigned;
    buffers, which are computed, are made as ever."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.empty:
            return func(*args, **{**(kwargs or {}), "device": "meta"})
        return func(*args, **(kwargs or {}))


def _thinker_config(ctx: StageContext) -> Any:
    from transformers import Qwen3OmniMoeConfig

    return Qwen3OmniMoeConfig.from_pretrained(ctx.model_path).thinker_config


def _load(
    ctx: StageContext, tower_class: Callable[[Any], torch.nn.Module], config: Any, prefix: str
) -> tuple[torch.nn.Module, Any, Weights]:
    """A tower with its weights in the stage's dtype.

    Parameters are assigned, not cast: the rotary and sinusoid buffers must stay float32.
    """
    config._attn_implementation = "sdpa"
    with _EmptyOnMeta():
        tower = tower_class(config).eval().requires_grad_(False)
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
    return tower.to(weights.device), config, weights


def _scheduler(
    ctx: StageContext, compute: Callable[[list[Work]], Sequence[Payload | OmniError]]
) -> Scheduler:
    return SimpleScheduler(
        compute,
        max_batch=ctx.stage.max_batch,
        max_wait_ms=ctx.stage.max_wait_ms,
        max_concurrency=ctx.stage.max_concurrency,
    )
