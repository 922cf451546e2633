"""Code2Wav as a `StreamingVocoder`, exact or cut as transformers cuts.

Knows replies as slots of state and arrays of codes. Knows nothing of requests, queues or events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from omni_core.errors import StageError
from omni_core.steps import StepBank
from omni_core.types import FloatArray, IntArray, Payload, RequestParams
from omni_qwen3.code2wav.config import Code2WavConfig
from omni_qwen3.code2wav.memory import StatePool
from omni_qwen3.code2wav.model import PIECE_FRAMES, Code2Wav
from omni_qwen3.defaults import SAMPLE_RATE

WINDOW_FRAMES = 300
CONTEXT_FRAMES = 25
"""What transformers' `generate` decodes at a time, and how much of the past it decodes again."""


class Qwen3Vocoder:
    """Stateful decode: any pieces give the samples of the whole. A reply's state is its slot."""

    sample_rate = SAMPLE_RATE

    def __init__(
        self,
        model: Code2Wav,
        bank: StepBank,
        *,
        max_replies: int,
        chunk_frames: Sequence[int] = (),
    ) -> None:
        """Allocates the slots of `max_replies` replies. Steps of `chunk_frames` are made ready
        where the bank waits for them."""
        self.max_replies: int | None = max_replies
        self._config = model.config
        table = model.embeddings
        self._device = table.device
        self._pool = StatePool(
            max_replies, model.state_size, device=table.device, dtype=table.dtype
        )
        self._ready_widths: tuple[int, ...] = ()
        hot = {self._width(frames) for frames in chunk_frames}
        if bank.waits:
            self._ready_widths = tuple(sorted(hot))
        # One for each width: no library serves both fewer frames than a convolution reaches back
        # over and more.
        self._step_of = {
            width: bank.step(
                f"code2wav_{width}",
                model,
                dynamic=({0: "batch"},) * 3,
                examples=partial(_examples, model, width, bank.batches if width in hot else ()),
            )
            for width in range(1, PIECE_FRAMES + 1)
        }

    @property
    def free_slots(self) -> int:
        """Replies that may still be opened."""
        return self._pool.free

    def open(self, params: RequestParams, payload: Payload) -> int:
        """A slot without a past."""
        return self._pool.acquire()

    @torch.inference_mode()
    def push(self, states: list[int], codes: list[IntArray]) -> list[FloatArray]:
        """Samples that are now final. Nothing is kept before all have succeeded."""
        for frames in codes:
            check_codes(frames, self._config)
        work, seen = self._pool.read(states), self._pool.frames(states)
        wavs: list[list[FloatArray]] = [[np.zeros(0, np.float32)] for _ in states]
        for rows, starts, width in self._steps([frames.shape[1] for frames in codes]):
            pieces = [codes[i][:, s : s + width] for i, s in zip(rows, starts, strict=True)]
            before = [seen[i] + s for i, s in zip(rows, starts, strict=True)]
            index = torch.tensor(rows, device=self._device)
            samples, state = self._step_of[width](
                torch.from_numpy(np.stack(pieces)).to(self._device),
                torch.tensor(before, device=self._device),
                work.index_select(0, index),
            )
            work.index_copy_(0, index, state)
            for i, count, wav in zip(rows, before, samples.float().cpu().numpy(), strict=True):
                wavs[i].append(wav if count else wav[self._config.lookahead_samples :])
        after = [count + frames.shape[1] for count, frames in zip(seen, codes, strict=True)]
        self._pool.write(states, work, after)
        return [np.concatenate(pieces) for pieces in wavs]

    def flush(self, state: int) -> FloatArray:
        """Nothing: the network's lookahead past the last frame is never heard."""
        return np.zeros(0, np.float32)

    def close(self, state: int) -> None:
        """Free the slot."""
        self._pool.release(state)

    def _steps(self, counts: Sequence[int]) -> Iterator[tuple[list[int], list[int], int]]:
        """Rows, the frame each starts at, and the width of every step of a push.

        Equal widths share a step. On a CPU it has at most PIECE_FRAMES frames over all rows: more
        leave its cache.
        """
        starts = [0] * len(counts)
        while True:
            alike: defaultdict[int, list[int]] = defaultdict(list)
            for i, (count, start) in enumerate(zip(counts, starts, strict=True)):
                if count > start:
                    alike[self._width(count - start)].append(i)
            if not alike:
                return
            width = max(alike)
            limit = PIECE_FRAMES // width if self._device.type == "cpu" else len(counts)
            rows = alike[width][:limit]
            yield rows, [starts[i] for i in rows], width
            for i in rows:
                starts[i] += width

    def _width(self, frames: int) -> int:
        """Frames of one step for a chunk of so many: the widest that was made ready, if one was. On
        a card a power of two, since each width there is a graph of its own and replies of unlike
        chunks shall share them."""
        width = min(frames, PIECE_FRAMES)
        if ready := [wide for wide in self._ready_widths if wide <= width]:
            return ready[-1]
        return width if self._device.type == "cpu" else 1 << (width.bit_length() - 1)


def check_codes(codes: IntArray, config: Code2WavConfig) -> None:
    """StageError unless these are codes of the checkpoint, int64 (groups, frames)."""
    groups, size = config.groups, config.codebook_size
    if codes.shape[0] != groups:
        raise StageError(f"a frame has {groups} codes, not {codes.shape[0]}")
    if codes.size and not 0 <= codes.min() <= codes.max() < size:
        raise StageError(
            f"codes are 0 to {size - 1}, not {codes.min()} to {codes.max()}; the stage that "
            "streams them is of another checkpoint"
        )


def _examples(
    model: Code2Wav, width: int, batches: Sequence[int]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Inputs of a step of this width for so many replies at a time, codes and past of noise."""
    random, table = torch.Generator().manual_seed(width), model.embeddings
    shape = (model.config.groups, width)
    for batch in batches:
        codes = torch.randint(model.config.codebook_size, (batch, *shape), generator=random)
        state = torch.randn(batch, model.state_size, generator=random)
        seen = torch.ones(batch, dtype=torch.long, device=table.device)
        yield codes.to(table.device), seen, state.to(table.device, table.dtype)


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
    sample_rate: int = field(default=SAMPLE_RATE, init=False)
    max_replies: int | None = field(default=None, init=False)

    def open(self, params: RequestParams, payload: Payload) -> _Window:
        """An empty window."""
        return _Window()

    def push(self, states: list[_Window], codes: list[IntArray]) -> list[FloatArray]:
        """Samples of the windows that are now full, usually none."""
        for frames in codes:
            check_codes(frames, self.model.config)
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
        wav = self.model.decode(torch.from_numpy(codes).to(self.model.embeddings.device))
        samples: FloatArray = (
            wav[context * self.model.config.samples_per_frame :].float().cpu().numpy()
        )
        return samples
