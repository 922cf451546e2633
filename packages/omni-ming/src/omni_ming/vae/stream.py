"""Latents of many sounds as they come, to their samples as early as they are certain.

What comes out is, put together, what the decoder makes of the whole. Frames between two latents
need both, so the last latent waits for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from omni_core.checkpoint.weights import Checkpoint, Part, open_weights
from omni_core.specs import StageContext
from omni_core.types import FloatArray
from omni_ming.vae.backbone import Past
from omni_ming.vae.config import load_vae_config, vae_folder
from omni_ming.vae.decoder import PREFIXES, Decoder
from omni_ming.vae.istft import Tail


@dataclass(slots=True, eq=False)
class Slot:
    """One sound under way. `StreamingVae` fills it; nothing else reads it."""

    waiting: torch.Tensor | None = None
    """(n, hidden): latents that have no frames yet, and before them the last that has."""
    started: bool = False
    kv: torch.Tensor | None = None
    """(layers, P, 2 * kv_heads, head_dim)."""
    seen: int = 0
    tail: Tail | None = None
    to_cut: int = 0
    """Samples still to drop at the begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """More latents of one sound."""

    slot: Slot
    latents: torch.Tensor
    """(n, latent_dim); n may be 0 if it is the last."""
    last: bool


@dataclass(slots=True)
class StreamingVae:
    """The decoder over slots. Driven by one thread."""

    decoder: Decoder
    held: int | None = 1
    """Latents that wait for more. None: all of the last push, as the authors' code does, which is
    later by nearly a patch."""
    parts: Sequence[Part[Any]] = ()
    """What new weights are copied into."""
    steps: int = field(default=0, init=False)
    """Batches so far."""

    @classmethod
    def load(cls, ctx: StageContext) -> StreamingVae:
        """The checkpoint's."""
        with Checkpoint(vae_folder(ctx.model_path)) as checkpoint:
            weights = open_weights(
                checkpoint, PREFIXES, device=ctx.device, dtype=ctx.dtype, report=ctx.report
            )
            decoder = Decoder.load(weights, load_vae_config(ctx.model_path))
            weights.finish()
        return cls(decoder, parts=weights.parts)

    @property
    def sample_rate(self) -> int:
        """Of the sound, in Hz."""
        return self.decoder.config.sample_rate

    def open(self) -> Slot:
        """A sound that begins."""
        return Slot(to_cut=self.decoder.istft.cut)

    @torch.inference_mode()
    def push(self, pushes: Sequence[Push]) -> list[FloatArray]:
        """The samples (m,) that each push completes; pushes of one length are computed together."""
        made: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(pushes)
        groups: dict[tuple[int, bool], list[tuple[int, torch.Tensor]]] = {}
        for index, push in enumerate(pushes):
            frames = self._frames(push)
            if frames is not None:
                groups.setdefault((len(frames), push.last), []).append((index, frames))
        for members in groups.values():
            indices = [index for index, _ in members]
            slots = [pushes[index].slot for index in indices]
            frames = torch.stack([frames for _, frames in members])
            for index, sound in zip(indices, self._step(slots, frames), strict=True):
                made[index] = sound
        return [self._trimmed(push, sound) for push, sound in zip(pushes, made, strict=True)]

    def _frames(self, push: Push) -> torch.Tensor | None:
        """The frames (m, hidden) that are certain with this push; None for none."""
        slot, decoder = push.slot, self.decoder
        weight = decoder.widen[0]
        rows = decoder.widened(push.latents.to(weight.device, weight.dtype))
        rows = rows if slot.waiting is None else torch.cat([slot.waiting, rows])
        held = 0 if push.last else len(push.latents) if self.held is None else self.held
        before, ready = int(slot.started), len(rows) - held
        if ready <= before:
            slot.waiting = rows
            return None
        per_latent = decoder.config.frames_per_latent
        known = rows[: ready + 1]  # with one behind, if there is one
        frames = decoder.frames(known[None])[0, before * per_latent : ready * per_latent]
        slot.waiting, slot.started = rows[ready - 1 :], True
        return frames

    def _step(self, slots: list[Slot], frames: torch.Tensor) -> list[FloatArray]:
        self.steps += 1
        past = self._past(slots, frames)
        tails = [slot.tail or self.decoder.istft.begin(1) for slot in slots]
        tail = Tail(
            torch.cat([one.sound for one in tails]), torch.cat([one.windows for one in tails])
        )
        sound, left, tail = self.decoder.step(frames, past, tail)
        window = self.decoder.backbone.config.window
        for index, slot in enumerate(slots):
            kv = left[:, index]
            kv = kv if slot.kv is None else torch.cat([slot.kv, kv], dim=1)
            keep = kv.shape[1] if window is None else min(kv.shape[1], window - 1)
            slot.kv = kv[:, kv.shape[1] - keep :].clone()
            slot.seen += frames.shape[1]
            part = slice(index, index + 1)
            slot.tail = Tail(tail.sound[part].clone(), tail.windows[part].clone())
        return list(sound.cpu().numpy())

    def _past(self, slots: list[Slot], like: torch.Tensor) -> Past:
        config = self.decoder.backbone.config
        lengths = [0 if slot.kv is None else slot.kv.shape[1] for slot in slots]
        shape = (config.layers, len(slots), max(lengths), 2 * config.kv_heads, config.head_dim)
        kv = like.new_zeros(shape)
        for index, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
            if slot.kv is not None:
                kv[:, index, shape[2] - length :] = slot.kv
        seen = torch.tensor([slot.seen for slot in slots], device=like.device)
        return Past(kv, seen)

    def _trimmed(self, push: Push, sound: FloatArray) -> FloatArray:
        """What is left without the ends that a transform has beyond the sound."""
        slot, istft = push.slot, self.decoder.istft
        if push.last and slot.tail is not None:
            rest = istft.finish(slot.tail)[0, : istft.cut]
            sound = np.concatenate([sound, rest.cpu().numpy()])
        cut = min(slot.to_cut, len(sound))
        slot.to_cut -= cut
        return sound[cut:]
