"""The Talker on the embedded engine: a row of the language model in, a patch of latents out.

Knows rows, the flow and what feeds back from one patch to the next. Knows nothing of batching, KV
memory or steps (the engine's), nor of texts, audio or requests (the stage's).

One patch is one engine step. The engine's tokens say whether the speech goes on: GO_ON or STOP, by
the stop head. Whatever they say, the step's patch is part of the speech; the flow draws it for all
sequences at once, and the aggregator makes the next input row of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Checkpoint, Weights, open_weights
from omni_core.engine.base import AttentionParts, Batch, KVSpec
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.common.transfer import upload
from omni_core.layers.decode import DecodeStep
from omni_core.specs import StageContext
from omni_core.steps import StepBank
from omni_core.types import FloatArray
from omni_ming.defaults import TALKER
from omni_ming.talker.aggregator import Aggregator
from omni_ming.talker.blocks import Linear
from omni_ming.talker.config import TalkerConfig, load_talker_config
from omni_ming.talker.flow import Flow
from omni_ming.talker.llm import Llm
from omni_ming.talker.prompt import TalkerPrompt
from omni_ming.voices import Voice

WEIGHTS: Final = ("model.", "cfm.", "aggregator.", "stop_head.", "spk_head.")
"""Of the tensors in the checkpoint's talker folder."""
GO_ON, STOP = 0, 1
"""The vocabulary: classes of the stop head."""


class Noise(Protocol):
    """`numpy.random.Generator`, as far as it is used."""

    def standard_normal(self, size: tuple[int, ...], dtype: type[np.float32]) -> FloatArray:
        """Numbers of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpeechInputs:
    """`EngineRequest.inputs`: one utterance."""

    prompt: TalkerPrompt
    voice: Voice | None
    noise: Noise
    """Of this utterance alone: what it draws depends on no other."""
    temperature: float = 0.0
    """Of the noise that each step of the flow adds; see `flow`."""


@dataclass(slots=True, kw_only=True)
class _Speech:
    """`Sequence.state`."""

    rows: torch.Tensor
    """(R, hidden): the prompt, and after a retraction the patches' rows before the newest."""
    past: torch.Tensor
    """(history, latent_dim): what came before the first patch."""
    inputs: SpeechInputs
    patches: list[torch.Tensor] = field(default_factory=list)
    """(patch, latent_dim) of each step so far."""


def load_runner(ctx: StageContext, bank: StepBank | None = None) -> TalkerRunner:
    """The checkpoint's Talker, without the VAE."""
    with Checkpoint(str(Path(ctx.model_path) / TALKER)) as checkpoint:
        weights = open_weights(
            checkpoint, WEIGHTS, device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        runner = TalkerRunner(weights, load_talker_config(ctx.model_path), bank)
        weights.finish()
    return runner


class TalkerRunner:
    """`ARRunner` with feedback. Its KV is never shared: prompts are short."""

    feedback = True
    prefix_cache = False
    lookahead = False
    suppress: torch.Tensor | None = None
    vocab_size = 2
    eos_token_ids = frozenset({STOP})

    def __init__(
        self, weights: Weights, config: TalkerConfig, bank: StepBank | None = None
    ) -> None:
        """`bank` may make the steps faster; without one they stay as they are."""
        self._bank = bank or StepBank.eager()
        llm = config.llm
        self.config = config
        self.device, self.dtype = weights.device, weights.dtype
        self.kv = KVSpec(
            layers=llm.layers, kv_heads=llm.kv_heads, head_dim=llm.head_dim, max_len=llm.max_len
        )
        self.parts = weights.parts
        """What new weights are copied into."""
        self._embeddings = weights.tensor(
            "model.embed_tokens.weight", (llm.vocab_size, llm.hidden_size)
        )
        self._llm = Llm.load(weights, llm)
        self._stop_head = weights.part(lambda w: Linear.load(w, "stop_head", llm.hidden_size, 2))
        self._speaker_head = weights.part(
            lambda w: Linear.load(w, "spk_head", config.speaker_dim, llm.hidden_size)
        )
        self.flow = Flow(weights, config, self._bank)
        self._aggregator = weights.part(lambda w: Aggregator.load(w, config))
        self._aggregate = self._bank.step(
            "aggregator",
            self._aggregator,
            dynamic=({0: "batch"},),
            examples=lambda: (
                (torch.zeros(batch, config.patch, config.latent_dim, device=self.device),)
                for batch in self._bank.batches
            ),
        )
        self._decode: DecodeStep | None = None
        self._newest = self._embeddings.new_zeros(0, llm.hidden_size)
        """Next input of every row of the batch."""
        self._history = self._newest.new_zeros(
            0, config.history, config.latent_dim, dtype=torch.float32
        )
        """The last latents of every row of the batch."""

    def prepare(self, rows: int, decode: Callable[[int], AttentionParts]) -> None:
        """Set up the decode step, and make room for what is kept of every row."""
        self._decode = self._decode or DecodeStep("talker_decode", self._llm, self._bank, decode)
        self._newest = self._newest.new_zeros(rows, *self._newest.shape[1:])
        self._history = self._history.new_zeros(rows, *self._history.shape[1:])

    def open(self, seq: EngineSequence) -> None:
        """Make the prompt's rows; see `ARRunner`."""
        inputs: SpeechInputs = seq.request.inputs
        past = self._history.new_zeros(self._history.shape[1:])
        if inputs.voice is not None:
            known = inputs.voice.latents[-len(past) :]
            past[len(past) - len(known) :] = known.to(past)
        seq.state = _Speech(rows=self._prompt(inputs), past=past, inputs=inputs)
        self._history[seq.row] = past

    def resume(self, seq: EngineSequence) -> None:
        """Make the rows of all patches anew. What was drawn stays drawn."""
        speech: _Speech = seq.state
        self._history[seq.row] = speech.past
        if not speech.patches:
            return
        drawn = torch.stack(speech.patches)
        (rows,) = self._aggregator(drawn)
        speech.rows = torch.cat([speech.rows[: seq.request.prompt_len], rows[:-1]])
        self._newest[seq.row] = rows[-1]
        latents = torch.cat([speech.past, drawn.flatten(0, 1)])
        self._history[seq.row] = latents[-self.config.history :]

    def keep(self, seq: EngineSequence, start: int, stop: int) -> Any:
        """Nothing: KV is not shared."""

    def restore(self, seq: EngineSequence, start: int, stop: int, kept: Any) -> None:
        """Never called."""

    def feed(self, seq: EngineSequence, chunk: Any) -> None:
        """Never called: an utterance is known as a whole."""

    def ready(self, seq: EngineSequence) -> bool:
        """Always: `collect` has made the next row."""
        return True

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        decoding, chunks = batch.segments[: batch.decodes], batch.segments[batch.decodes :]
        x = self._newest.index_select(0, batch.rows)
        line = [float(segment.start) for segment in decoding]
        parts = None if chunks else batch.attend.parts
        if parts is not None and self._decode is not None:
            return self._decode(x, upload(line, self.device, torch.float32), parts)
        places = [np.arange(s.start, s.start + s.count, dtype=np.float32) for s in chunks]
        positions = np.concatenate([np.array(line, np.float32), *places])
        rows = [s.seq.state.rows[s.start : s.start + s.count] for s in chunks]
        x = torch.cat([x, *rows])
        x = self._llm(x, upload(positions, self.device, torch.float32), batch.attend)
        ends = np.cumsum([s.count for s in batch.segments])
        sampled = [int(e) - 1 for e, s in zip(ends, batch.segments, strict=True) if s.samples]
        return self._llm.norm(x[upload(sampled, self.device)])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of GO_ON and STOP; see `ARRunner`."""
        return self._stop_head(hidden).float()

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """The patch float32 (patch, latent_dim) of each sequence, of those that end as well."""
        places = upload([seq.row for seq in seqs], self.device)
        speeches: list[_Speech] = [seq.state for seq in seqs]
        history = self._history.index_select(0, places)
        start, noise = self._draw([speech.inputs for speech in speeches])
        patches = self.flow(hidden, history, start, noise)
        (rows,) = self._aggregate(patches)
        self._newest.index_copy_(0, places, rows)
        self._history.index_copy_(
            0, places, torch.cat([history[:, self.config.patch :], patches], dim=1)
        )
        apart = [patch.clone() for patch in patches]  # kept for longer than those of the others
        for speech, patch in zip(speeches, apart, strict=True):
            speech.patches.append(patch)
        return apart

    def text(self, token_ids: list[int]) -> str:
        """Patches have no text, so stop strings never match."""
        return ""

    def close(self, seq: EngineSequence) -> None:
        """Drop the rows and patches."""
        seq.state = None

    def _prompt(self, inputs: SpeechInputs) -> torch.Tensor:
        """(P, hidden): embeddings of the ids, and what the voice is in their place."""
        prompt, voice = inputs.prompt, inputs.voice
        rows = F.embedding(upload(prompt.ids, self.device), self._embeddings)
        if voice is None:
            return rows
        if prompt.speaker_row is not None:
            speaker = voice.speaker
            head = self._speaker_head
            rows[prompt.speaker_row] = 0 if speaker is None else head(speaker.to(rows))
        if prompt.patches_from < len(rows):
            patches = voice.latents.view(-1, self.config.patch, self.config.latent_dim)
            (reference,) = self._aggregator(patches.to(self.device))
            rows[prompt.patches_from :] = reference
        return rows

    def _draw(self, utterances: list[SpeechInputs]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`start` and `noise` of `Flow`, each utterance's from its own generator."""
        shape = (self.config.patch, self.config.latent_dim)
        starts, noises = [], []
        for one in utterances:
            starts.append(one.noise.standard_normal(shape, dtype=np.float32))
            scale = np.float32(one.temperature**0.5)
            drawn = np.zeros(self.flow.noise_shape, np.float32)
            if scale:
                drawn = scale * one.noise.standard_normal(self.flow.noise_shape, dtype=np.float32)
            noises.append(drawn)
        start = upload(np.stack(starts), self.device, torch.float32)
        if not any(one.temperature for one in utterances):
            return start, None
        return start, upload(np.stack(noises, axis=1), self.device, torch.float32)
