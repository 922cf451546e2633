"""Code2Wav as a `StreamingVocoder`, exact or cut as transformers cuts.

Knows replies as states and arrays of codes. Knows nothing of requests, queues or events.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch

from omni_core.types import FloatArray, IntArray, Payload, RequestParams
from omni_qwen3.code2wav.memory import Memory
from omni_qwen3.code2wav.model import Code2Wav
from omni_qwen3.defaults import SAMPLE_RATE

WINDOW_FRAMES = 300
CONTEXT_FRAMES = 25
"""What transformers' `generate` decodes at a time, and how much of the past it decodes again."""


class Qwen3Vocoder:
    """Stateful decode: any pieces give the samples of the whole."""

    sample_rate = SAMPLE_RATE

    def __init__(self, model: Code2Wav, device: str) -> None:
        self._model = model
        self._device = device

    def open(self, params: RequestParams, payload: Payload) -> Memory:
        """An empty past."""
        return Memory()

    def push(self, states: list[Memory], codes: list[IntArray]) -> list[FloatArray]:
        """Samples that are now final; replies of like shape go through the model together."""
        alike: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
        for i, (state, frames) in enumerate(zip(states, codes, strict=True)):
            alike[state.is_fresh, frames.shape[1]].append(i)
        samples: list[FloatArray] = [np.zeros(0, np.float32)] * len(states)
        for (_, count), rows in alike.items():
            if count == 0:
                continue
            batch = torch.from_numpy(np.stack([codes[i] for i in rows])).to(self._device)
            wavs = self._model.push([states[i] for i in rows], batch).float().cpu().numpy()
            for i, wav in zip(rows, wavs, strict=True):
                samples[i] = wav
        return samples

    def flush(self, state: Memory) -> FloatArray:
        """Nothing: the network's lookahead past the last frame is never heard."""
        return np.zeros(0, np.float32)

    def close(self, state: Memory) -> None:
        """Let the tensors go."""
        state.past.clear()


@dataclass(slots=True)
class _Window:
    codes: IntArray | None = None
    """(groups, n): context, then frames not decoded yet."""
    context: int = 0
    """How many of these were decoded before."""


@dataclass(slots=True)
class WindowVocoder:
    """Decode by windows of 300 frames after 25 of context, for comparison with transformers.

    A reply of more than one window loses the lookahead (555 samples) at each seam and hears only
    the context of the past. Audio leaves window by window.
    """

    model: Code2Wav
    device: str
    sample_rate: int = field(default=SAMPLE_RATE, init=False)

    def open(self, params: RequestParams, payload: Payload) -> _Window:
        """An empty window."""
        return _Window()

    def push(self, states: list[_Window], codes: list[IntArray]) -> list[FloatArray]:
        """Samples of the windows that are now full, usually none."""
        return [self._push(state, more) for state, more in zip(states, codes, strict=True)]

    def flush(self, state: _Window) -> FloatArray:
        """Samples of the last, shorter window."""
        if state.codes is None or state.codes.shape[1] == state.context:
            return np.zeros(0, np.float32)
        return self._decode(state.codes, state.context)

    def close(self, state: _Window) -> None:
        """Let the codes go."""
        state.codes = None

    def _push(self, state: _Window, more: IntArray) -> FloatArray:
        codes = more if state.codes is None else np.concatenate([state.codes, more], axis=1)
        wavs = [np.zeros(0, np.float32)]
        while codes.shape[1] - state.context >= WINDOW_FRAMES:
            end = state.context + WINDOW_FRAMES
            wavs.append(self._decode(codes[:, :end], state.context))
            codes = codes[:, end - CONTEXT_FRAMES :]
            state.context = CONTEXT_FRAMES
        state.codes = codes
        return np.concatenate(wavs)

    def _decode(self, codes: IntArray, context: int) -> FloatArray:
        wav = self.model.decode(torch.from_numpy(codes).to(self.device))
        samples: FloatArray = (
            wav[context * self.model.config.samples_per_frame :].float().cpu().numpy()
        )
        return samples
