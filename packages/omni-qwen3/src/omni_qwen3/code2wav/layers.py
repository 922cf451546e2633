"""Convolutions and activations of the vocoder that continue where their last input ended.

Each takes its input and the `Past`, and gives for a sequence in pieces exactly what it would give
for the whole. Knows nothing of weights on disk beyond the names within one layer. Weights are plain
tensors, not modules: a step of a few frames is bound by the cost of each call.

An upsampling by `rate` looks one input ahead, so what it gives is late: the first `rate` outputs of
a reply lie before its start. They are computed, so that every step has the same shapes, made zero
wherever a later convolution would take them for a past, and cut from the audio at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_qwen3.code2wav.memory import Past


@dataclass(frozen=True, slots=True)
class SnakeBeta:
    """x + sin(x e^alpha)^2 / (e^beta + 1e-9), per channel (BigVGAN; Lee et al., 2023)."""

    frequency: torch.Tensor
    """e^alpha, (C, 1)."""
    gain: torch.Tensor
    """1 / (e^beta + 1e-9), (C, 1)."""

    @classmethod
    def load(cls, weights: Weights, prefix: str, channels: int) -> SnakeBeta:
        """From `prefix`alpha and `prefix`beta."""
        alpha, beta = (weights.tensor(prefix + name, (channels,)) for name in ("alpha", "beta"))
        return cls(alpha.exp()[:, None], (beta.exp() + 1e-9).reciprocal()[:, None])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(B, C, n) -> (B, C, n), a new tensor."""
        wave = (x * self.frequency).sin_()
        return torch.addcmul(x, wave.mul_(wave), self.gain)


@dataclass(frozen=True, slots=True)
class CausalConv:
    """Convolution over the past: zeros before the first input. (B, C, n) -> (B, C', n).

    On a CPU it copies the inputs of each tap and multiplies once, which for one frame is up to four
    times as fast as the library's convolution, as long as the copy fits the cache.
    """

    kernel: torch.Tensor
    """(C', C, 1, k)."""
    taps: torch.Tensor
    """The same as a matrix (C', k * C)."""
    bias: torch.Tensor
    """(C', 1)."""
    dilation: int
    late: int
    """Of a reply's first inputs, so many lie before its start."""

    @classmethod
    def of(
        cls, kernel: torch.Tensor, bias: torch.Tensor, *, dilation: int = 1, late: int = 0
    ) -> CausalConv:
        """From a kernel (C', C, k) and a bias (C',)."""
        taps = kernel.transpose(1, 2).reshape(kernel.shape[0], -1)
        return cls(kernel.unsqueeze(2), taps, bias[:, None], dilation, late)

    @classmethod
    def load(
        cls,
        weights: Weights,
        prefix: str,
        inputs: int,
        outputs: int,
        *,
        dilation: int = 1,
        late: int = 0,
    ) -> CausalConv:
        """A kernel of 7 from `prefix`conv."""
        kernel = weights.tensor(f"{prefix}conv.weight", (outputs, inputs, 7))
        bias = weights.tensor(f"{prefix}conv.bias", (outputs,))
        return cls.of(kernel, bias, dilation=dilation, late=late)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """What `Past` holds for this layer: the inputs that its kernel still reaches."""
        return self.kernel.shape[1], (self.kernel.shape[3] - 1) * self.dilation

    def __call__(self, x: torch.Tensor, past: Past) -> torch.Tensor:
        past.silence_before_start(x, self.late)
        count = x.shape[2]
        x = past.extend(x, 2)
        if x.is_cuda:
            bias, dilation = self.bias.squeeze(1), (1, self.dilation)
            return F.conv2d(x.unsqueeze(2), self.kernel, bias, dilation=dilation).squeeze(2)
        batch, channels, length = x.shape
        width = self.kernel.shape[3]
        windows = x.as_strided(
            (batch, width, channels, count), (channels * length, self.dilation, length, 1)
        )
        windows = windows.reshape(batch, width * channels, count)
        return torch.baddbmm(self.bias, self.taps.expand(batch, -1, -1), windows)


@dataclass(frozen=True, slots=True)
class Upsample:
    """Transposed convolution of stride `rate` and kernel 2 * rate, its first `rate` outputs cut.

    Its outputs, `rate` at a time, are a convolution of two inputs. (B, C, n) -> (B, C', n * rate).
    """

    conv: CausalConv
    """To (B, C' * rate, n)."""
    rate: int

    @classmethod
    def load(cls, weights: Weights, prefix: str, inputs: int, outputs: int, rate: int) -> Upsample:
        """From `prefix`conv, whose kernel is (C, C', 2 * rate)."""
        stored = weights.tensor(f"{prefix}conv.weight", (inputs, outputs, 2 * rate))
        newest, before = torch.split(stored, rate, dim=2)
        kernel = torch.stack([before, newest], dim=3).flatten(1, 2).transpose(0, 1).contiguous()
        bias = weights.tensor(f"{prefix}conv.bias", (outputs,))
        return cls(CausalConv.of(kernel, bias.repeat_interleave(rate)), rate)

    def __call__(self, x: torch.Tensor, past: Past) -> torch.Tensor:
        y = self.conv(x, past)
        batch, _, count = y.shape
        y = y.view(batch, -1, self.rate, count).transpose(2, 3)
        return y.reshape(batch, -1, count * self.rate)


@dataclass(frozen=True, slots=True)
class ResidualUnit:
    """Two activated convolutions beside a skip connection."""

    act1: SnakeBeta
    conv1: CausalConv
    act2: SnakeBeta
    kernel2: torch.Tensor
    """Of a convolution of width 1, (C, C)."""
    bias2: torch.Tensor
    """(C, 1)."""

    @classmethod
    def load(
        cls, weights: Weights, prefix: str, width: int, *, dilation: int, late: int
    ) -> ResidualUnit:
        """From `prefix`{act1,conv1,act2,conv2}."""
        return cls(
            act1=SnakeBeta.load(weights, f"{prefix}act1.", width),
            conv1=CausalConv.load(
                weights, f"{prefix}conv1.", width, width, dilation=dilation, late=late
            ),
            act2=SnakeBeta.load(weights, f"{prefix}act2.", width),
            kernel2=weights.tensor(f"{prefix}conv2.conv.weight", (width, width, 1)).squeeze(2),
            bias2=weights.tensor(f"{prefix}conv2.conv.bias", (width,))[:, None],
        )

    def __call__(self, x: torch.Tensor, past: Past) -> torch.Tensor:
        y = self.act2(self.conv1(self.act1(x), past))
        kernel = self.kernel2.expand(x.shape[0], -1, -1)
        return torch.baddbmm(x, kernel, y).add_(self.bias2)


@dataclass(frozen=True, slots=True)
class DecoderBlock:
    """Upsampling by `rate` while halving the width, then three residual units."""

    activation: SnakeBeta
    upsample: Upsample
    units: tuple[ResidualUnit, ...]

    @classmethod
    def load(cls, weights: Weights, prefix: str, inputs: int, rate: int, late: int) -> DecoderBlock:
        """From `prefix`block.0 to 4; `late` is what is late of its outputs."""
        outputs = inputs // 2
        return cls(
            activation=SnakeBeta.load(weights, f"{prefix}block.0.", inputs),
            upsample=Upsample.load(weights, f"{prefix}block.1.", inputs, outputs, rate),
            units=tuple(
                ResidualUnit.load(
                    weights, f"{prefix}block.{i}.", outputs, dilation=dilation, late=late
                )
                for i, dilation in ((2, 1), (3, 3), (4, 9))
            ),
        )

    @property
    def state_shapes(self) -> list[tuple[int, ...]]:
        """Of its layers, in the order of their calls."""
        return [self.upsample.conv.state_shape, *(unit.conv1.state_shape for unit in self.units)]

    def __call__(self, x: torch.Tensor, past: Past) -> torch.Tensor:
        x = self.upsample(self.activation(x), past)
        for unit in self.units:
            x = unit(x, past)
        return x
