"""Code2Wav: the vocoder network as an incremental decoder.

Knows codes, waveforms and the state of a stream. Knows nothing of requests or stages. For frames in
any pieces it gives the samples of one decode of the whole, from the first frame on: after n frames,
n * samples_per_frame - lookahead_samples are final (n * 1920 - 555), and no sample that was given
is ever revised. The waveform of a whole reply ends there too, as transformers' does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Checkpoint, Part, Weights, open_weights
from omni_qwen3.code2wav.config import Code2WavConfig, load_config
from omni_qwen3.code2wav.layers import CausalConv, DecoderBlock, SnakeBeta
from omni_qwen3.code2wav.memory import Past
from omni_qwen3.code2wav.transformer import Positions, TransformerLayer, UpsampleStage

PREFIX = "code2wav."
PIECE_FRAMES = 16
"""What `decode` takes at a time: enough to hide the cost of calls, and what a CPU's cache holds."""


@dataclass(frozen=True, slots=True)
class Code2Wav:
    """The network: a program of tensors alone, whose shapes follow from (B, n)."""

    config: Code2WavConfig
    embeddings: torch.Tensor
    """(groups * codebook_size, H)."""
    offsets: torch.Tensor
    """First row of each group, int64 (groups,)."""
    positions: Positions
    layers: tuple[TransformerLayer, ...]
    norm: torch.Tensor
    stages: tuple[UpsampleStage, ...]
    first: CausalConv
    blocks: tuple[DecoderBlock, ...]
    activation: SnakeBeta
    last: CausalConv
    state_shapes: tuple[tuple[int, ...], ...]
    """What each layer remembers, in the order of their calls."""

    @classmethod
    def load(cls, weights: Weights, config: Code2WavConfig) -> Code2Wav:
        """The tensors under "code2wav."."""
        hidden, width, late = config.hidden_size, config.decoder_dim, 0
        layers = tuple(
            TransformerLayer.load(weights, f"{PREFIX}pre_transformer.layers.{i}.", config)
            for i in range(config.layers)
        )
        stages = tuple(
            UpsampleStage.load(weights, f"{PREFIX}upsample.{i}.", hidden, rate)
            for i, rate in enumerate(config.upsampling_ratios)
        )
        first = CausalConv.load(weights, f"{PREFIX}decoder.0.", hidden, width)
        blocks: list[DecoderBlock] = []
        for i, rate in enumerate(config.upsample_rates, start=1):
            late = (late + 1) * rate
            blocks.append(DecoderBlock.load(weights, f"{PREFIX}decoder.{i}.", width, rate, late))
            width //= 2
        end = len(blocks) + 1
        last = CausalConv.load(weights, f"{PREFIX}decoder.{end + 1}.", width, 1, late=late)
        entries = config.codebook_size * config.groups
        return cls(
            config=config,
            embeddings=weights.tensor(f"{PREFIX}code_embedding.weight", (entries, hidden)),
            offsets=torch.arange(0, entries, config.codebook_size, device=weights.device),
            positions=Positions.of(config, weights.device),
            layers=layers,
            norm=weights.tensor(f"{PREFIX}pre_transformer.norm.weight", (hidden,)),
            stages=stages,
            first=first,
            blocks=tuple(blocks),
            activation=SnakeBeta.load(weights, f"{PREFIX}decoder.{end}.", width),
            last=last,
            state_shapes=(
                *(layer.state_shape for layer in layers),
                *(stage.state_shape for stage in stages),
                first.state_shape,
                *(shape for block in blocks for shape in block.state_shapes),
                last.state_shape,
            ),
        )

    @property
    def state_size(self) -> int:
        """Numbers that one reply's state holds."""
        return sum(prod(shape) for shape in self.state_shapes)

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Advance B replies by n frames, whatever their positions.

        codes int64 (B, groups, n), frames already decoded int64 (B,), state (B, state_size) ->
        samples (B, n * samples_per_frame) and the new state. A reply that begins has a state of
        zeros; of its samples, the first lookahead_samples lie before its start.
        """
        codes, seen, state = tensors
        past = Past(state, self.state_shapes, (seen > 0).to(state.dtype))
        x = F.embedding(codes.transpose(1, 2) + self.offsets, self.embeddings).mean(2)
        frames = self.positions(seen, codes.shape[2], x.dtype)
        for layer in self.layers:
            x = layer(x, frames, past)
        x = F.rms_norm(x, x.shape[-1:], self.norm, self.config.norm_eps)
        for stage in self.stages:
            x = stage(x, past)
        x = self.first(x.transpose(1, 2).contiguous(), past)
        for block in self.blocks:
            x = block(x, past)
        x = self.last(self.activation(x), past)
        return x.squeeze(1).clamp_(-1, 1), past.renewed()

    @torch.inference_mode()
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """A whole reply at once: codes (groups, n) to n * 1920 - 555 samples."""
        seen = torch.zeros(1, dtype=torch.long, device=codes.device)
        state, wavs = self.fresh_state(), []
        for piece in torch.split(codes[None], PIECE_FRAMES, dim=2):
            samples, state = self(piece, seen, state)
            seen = seen + piece.shape[2]
            wavs.append(samples[0])
        return torch.cat(wavs)[self.config.lookahead_samples :]

    def fresh_state(self) -> torch.Tensor:
        """The state (1, state_size) of a reply that has had no frame."""
        return self.embeddings.new_zeros(1, self.state_size)


def load_model(
    model_path: str, *, device: str, dtype: str, report: Callable[[str], None]
) -> Code2Wav:
    """The vocoder of a checkpoint."""
    return load_part(model_path, device=device, dtype=dtype, report=report).made


def load_part(
    model_path: str, *, device: str, dtype: str, report: Callable[[str], None]
) -> Part[Code2Wav]:
    """The same, and how it is made of other weights."""
    config = load_config(model_path)
    with Checkpoint(model_path) as checkpoint:
        weights = open_weights(checkpoint, (PREFIX,), device=device, dtype=dtype, report=report)
        model = weights.part(partial(Code2Wav.load, config=config))
        weights.finish()
    return Part(model, weights.parts[0].make)
