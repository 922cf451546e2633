"""The audio tower: mel frames of clips to rows of the Thinker, of length 1.

Whisper's encoder without its fixed length, then a convolution that thins out and two layers. Knows
mel frames and clips. Knows nothing of requests. Attribute names are the checkpoint's.

Each clip is computed as if it were alone. The authors pad the clips of one prompt to the longest
and mask nothing, so that a clip depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.layers.segments import attend
from omni_ming.towers.config import AudioConfig
from omni_ming.towers.sizes import halved

WEIGHTS = "audio."
PROJECTOR_WEIGHTS = "linear_proj_audio."


class Attention(nn.Module):
    """Full attention inside each clip."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self._heads = config.n_head
        self.query = nn.Linear(config.n_state, config.n_state)
        self.key = nn.Linear(config.n_state, config.n_state, bias=False)
        self.value = nn.Linear(config.n_state, config.n_state)
        self.out = nn.Linear(config.n_state, config.n_state)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(1, (self._heads, -1))
            for project in (self.query, self.key, self.value)
        )
        out: torch.Tensor = self.out(attend(query, key, value, lengths))
        return out


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.n_state
        self.attn = Attention(config)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x), lengths)
        out: torch.Tensor = x + self.mlp(self.mlp_ln(x))
        return out


class Whisper(nn.Module):
    """Whisper's encoder over clips of any lengths."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.n_state
        self.conv1 = nn.Conv1d(config.n_mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(config.n_ctx, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, clips: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Mel frames (n_mels, frames) of each clip to its states (`halved`(frames), n_state)."""
        x = torch.cat([self._embed(clip) for clip in clips])
        lengths = [halved(clip.shape[1]) for clip in clips]
        for block in self.blocks:
            x = block(x, lengths)
        return list(torch.split(self.ln_post(x), lengths))

    def _embed(self, clip: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv1(clip[None]))
        x = F.gelu(self.conv2(x))[0].T
        return x + self.positional_embedding[: len(x)]


class AudioTower(nn.Module):
    """Clips of any lengths up to `AudioConfig.max_frames`."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.config = config
        self.audio = Whisper(config)
        hidden = config.thinker_hidden_size
        self.linear_proj_audio = nn.ModuleDict(
            {
                "0": nn.Conv1d(config.n_state, hidden, 3, stride=2, padding=1),
                "3": nn.Linear(hidden, hidden),
            }
        )

    def forward(self, clips: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Mel frames (n_mels, frames) of each clip to its rows (`audio_tokens`(frames), hidden)."""
        return [self._project(states) for states in self.audio(clips)]

    def _project(self, states: torch.Tensor) -> torch.Tensor:
        thinned = self.linear_proj_audio["0"](states.T[None])[0].T
        return F.normalize(self.linear_proj_audio["3"](F.gelu(thinned)), dim=-1)
