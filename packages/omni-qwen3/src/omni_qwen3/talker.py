"""The talker_ar stage: Talker and code predictor together, from spoken text rows to codec frames.

Knows conditioning, codec codes and the feedback from one frame to the next. Knows nothing of
batching, KV memory or how code 0 is sampled (the engine's), nor of audio.

One frame is one engine step: the engine samples code 0, the predictor draws the other groups for
all sequences at once, and the next input row is the sum of the frame's embeddings plus a text row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np
import torch
import torch.nn.functional as F

from omni_core.engine import build_engine
from omni_core.engine.base import Batch, EngineRequest, KVSpec, Segment, StepOutput
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.errors import RequestError
from omni_core.scheduler.base import Outbox, Scheduler, Work
from omni_core.scheduler.omni import OmniScheduler
from omni_core.specs import StageContext
from omni_core.types import CodecDelta, FloatArray, RequestParams, SamplingParams, Usage
from omni_qwen3.config import OmniConfig, TalkerConfig, load_config
from omni_qwen3.defaults import talker_defaults
from omni_qwen3.model.decoder import Decoder
from omni_qwen3.model.layers import ResizeMlp
from omni_qwen3.model.predictor import CodePredictor
from omni_qwen3.payloads import Conditioning
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.weights import Checkpoint, Weights, open_weights

NAME = "talker_ar"
VOCODER_TARGET = "code2wav"
WEIGHTS = "talker."
EMBEDDINGS = "thinker.model.embed_tokens.weight"
REPLY_ROWS = 9
"""Rows of the prompt after the user turns: three of the reply's head, four tts_pad, tts_bos and the
first spoken token."""
SPECIAL_CODES = 1024
"""The last ids of the Talker's vocabulary are no codes; of them only codec_eos may be sampled."""
PREDICTOR_STREAM = 1
"""Keeps the predictor's random numbers apart from code 0's, which come from the same seed."""


def build(ctx: StageContext) -> Scheduler:
    """The stage over the engine that `ctx` names."""
    runner = load_runner(ctx)
    stage = TalkerStage(runner.config, talker_defaults(ctx.model_path))
    return OmniScheduler(build_engine(ctx, runner), stage)


def load_runner(ctx: StageContext) -> TalkerRunner:
    """The checkpoint's Talker and code predictor."""
    config = load_config(ctx.model_path)
    marks = (config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id)
    with Checkpoint(ctx.model_path) as checkpoint:
        weights = open_weights(
            checkpoint, (WEIGHTS,), device=ctx.device, dtype=ctx.dtype, report=ctx.report
        )
        runner = TalkerRunner(weights, config, checkpoint.rows(EMBEDDINGS, marks))
        weights.finish()
    return runner


@dataclass(frozen=True, slots=True)
class TalkerInputs:
    """`EngineRequest.inputs` of this stage."""

    conditioning: Conditioning
    speaker_id: int
    """Codec token of the voice."""


@dataclass(slots=True, kw_only=True)
class _Speech:
    """`Sequence.state`: the rows of one reply, as far as they are known."""

    prompt: torch.Tensor
    """(P, D) rows."""
    positions: FloatArray
    """(3, P)."""
    rope_delta: float
    rng: np.random.Generator | None
    """Draws the predictor's codes; None is greedy."""
    text: list[torch.Tensor] = field(default_factory=list)
    """Text row (D,) of frame 0, 1, ...: the spoken tokens after the first."""
    text_ended: bool = False
    newest: torch.Tensor | None = None
    """(D,) sum of the embeddings of the newest frame's codes; the next row, but for its text."""


class TalkerRunner:
    """`ARRunner` with feedback."""

    feedback = True
    prefix_cache = False
    lookahead = False

    def __init__(self, weights: Weights, config: OmniConfig, tts_marks: torch.Tensor) -> None:
        """`tts_marks` (3, H): Thinker embeddings of tts_bos, tts_eos and tts_pad."""
        talker = config.require_talker()
        decoder = talker.decoder
        self.device, self.dtype = weights.device, weights.dtype
        self.vocab_size = decoder.vocab_size
        self.eos_token_ids = frozenset({talker.codec_eos_id})
        self.suppress: torch.Tensor | None = _suppressed(talker, self.device)
        self.kv = KVSpec(
            layers=decoder.layers,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            max_len=decoder.max_len,
        )
        self.config = talker
        self._tts_pad_token_id = config.tts_pad_token_id
        self._project_text, self._project_hidden = (
            ResizeMlp.load(
                weights,
                f"talker.{source}_projection.",
                talker.thinker_hidden_size,
                decoder.intermediate_size,
                decoder.hidden_size,
            )
            for source in ("text", "hidden")
        )
        table = (decoder.vocab_size, decoder.hidden_size)
        self._embeddings = weights.tensor("talker.model.codec_embedding.weight", table)
        self._decoder = Decoder.load(weights, "talker.model.", decoder)
        self._head = weights.tensor("talker.codec_head.weight", table)
        self._predictor = CodePredictor(
            weights, "talker.code_predictor.", talker.predictor, talker.code_groups
        )
        marks = self._project_text(tts_marks.to(self.device, self.dtype))
        self._tts_bos: torch.Tensor = marks[0]
        self._tts_eos: torch.Tensor = marks[1]
        self._tts_pad: torch.Tensor = marks[2]

    def prepare(self, rows: int) -> None:
        """Nothing is kept by row."""

    def open(self, seq: EngineSequence) -> None:
        """Project the conditioning into the Talker's prompt; see `ARRunner`."""
        inputs: TalkerInputs = seq.request.inputs
        sampling = seq.request.sampling
        positions, rope_delta = self._positions(inputs.conditioning)
        seq.state = _Speech(
            prompt=self._prompt(inputs),
            positions=positions,
            rope_delta=rope_delta,
            rng=None if sampling.temperature == 0 else _generator(sampling.seed),
        )

    def resume(self, seq: EngineSequence) -> None:
        """Not needed by an engine that never retracts."""

    def keep(self, seq: EngineSequence, start: int, stop: int) -> Any:
        """Nothing: what the Talker is conditioned on is never the same twice."""

    def restore(self, seq: EngineSequence, start: int, stop: int, kept: Any) -> None:
        """Never called."""

    def feed(self, seq: EngineSequence, chunk: Any) -> None:
        """Take the row (H,) of one more spoken token, or None: all of them have come."""
        speech: _Speech = seq.state
        if chunk is None:
            speech.text_ended = True
        else:
            row = torch.as_tensor(chunk["row"]).to(self.device, self.dtype)
            speech.text.append(self._project_text(row))

    def ready(self, seq: EngineSequence) -> bool:
        """Whether the text row of the newest frame is known."""
        speech: _Speech = seq.state
        frame = seq.computed - seq.request.prompt_len
        return speech.text_ended or frame < len(speech.text)

    def forward(self, batch: Batch) -> torch.Tensor:
        """See `ARRunner`."""
        segments = batch.segments
        x = torch.cat([self._rows(s) for s in segments])
        positions = np.concatenate([_segment_positions(s) for s in segments], axis=1)
        x = self._decoder(x, torch.from_numpy(positions).to(self.device), batch.attend)
        ends = np.cumsum([s.count for s in segments])
        sampled = [int(e) - 1 for e, s in zip(ends, segments, strict=True) if s.samples]
        rows = torch.tensor(sampled, dtype=torch.long, device=self.device)
        return self._decoder.norm(x[rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of code 0; see `ARRunner`."""
        return F.linear(hidden, self._head).float()

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """The frame int64 (G,) of each sequence that goes on; None for one that ends, whose last
        code 0 never becomes a frame."""
        going = [index for index, done in enumerate(finished) if not done]
        frames: list[Any] = [None] * len(seqs)
        if not going:
            return frames
        speeches: list[_Speech] = [seqs[index].state for index in going]
        first = torch.tensor([seqs[index].tokens[-1] for index in going], device=self.device)
        embedding = F.embedding(first, self._embeddings)
        rows = hidden if len(going) == len(seqs) else hidden[going]
        predicted = self._predictor(rows, first, embedding, self._uniforms(speeches))
        for speech, total in zip(speeches, embedding + predicted.embedding, strict=True):
            speech.newest = total
        for index, codes in zip(going, predicted.codes.cpu().numpy(), strict=True):
            frames[index] = codes
        return frames

    def text(self, token_ids: list[int]) -> str:
        """Codes have no text, so stop strings never match."""
        return ""

    def close(self, seq: EngineSequence) -> None:
        """Drop the rows."""
        seq.state = None

    def _rows(self, segment: Segment) -> torch.Tensor:
        """Input rows (count, D) of a segment: part of the prompt, or the newest frame's."""
        speech: _Speech = segment.seq.state
        length = len(speech.prompt)
        if speech.newest is None or segment.start < length:
            return speech.prompt[segment.start : segment.start + segment.count]
        return (speech.newest + self._text_row(speech, segment.start - length))[None]

    def _text_row(self, speech: _Speech, frame: int) -> torch.Tensor:
        if frame < len(speech.text):
            return speech.text[frame]
        return self._tts_eos if frame == len(speech.text) else self._tts_pad

    def _prompt(self, inputs: TalkerInputs) -> torch.Tensor:
        """(U + 9, D) rows: the user turns, then text and codec marks of the reply's head, added."""
        given, config = inputs.conditioning, self.config
        user, head, first = (
            torch.as_tensor(rows).to(self.device, self.dtype)
            for rows in (given["user_rows"], given["assistant_rows"], given["first_row"])
        )
        is_media = torch.as_tensor(given["user_is_media"]).to(self.device)
        turns = self._project_text(user)
        turns[is_media] = self._project_hidden(user[is_media])
        reply = self._project_text(torch.cat([head, first[None]]))
        pads = self._tts_pad.expand(4, -1)
        text = torch.cat([reply[:3], pads, self._tts_bos[None], reply[3:]])
        marks = [
            config.codec_nothink_id,
            config.codec_think_bos_id,
            config.codec_think_eos_id,
            inputs.speaker_id,
            config.codec_pad_id,
            config.codec_bos_id,
        ]
        text[3:] += F.embedding(torch.tensor(marks, device=self.device), self._embeddings)
        return torch.cat([turns, text])

    def _positions(self, given: Conditioning) -> tuple[FloatArray, float]:
        """M-RoPE positions of the prompt, and what to add to P + i for frame i.

        Without `use_audio_in_video`, whatever the request says, because transformers never passes
        it on to its Talker.
        """
        ids = np.concatenate([given["user_ids"], [self._tts_pad_token_id] * REPLY_ROWS])
        return rope_index(
            ids,
            image_grid_thw=given.get("image_grid_thw"),
            video_grid_thw=given.get("video_grid_thw"),
            second_per_grid=given.get("second_per_grid"),
            audio_lengths=given.get("audio_lengths"),
            use_audio_in_video=False,
            config=self.config.positions,
        )

    def _uniforms(self, speeches: list[_Speech]) -> torch.Tensor | None:
        """Random numbers (B, G - 1) for `CodePredictor`; -1 where a request is greedy."""
        if all(speech.rng is None for speech in speeches):
            return None
        groups = self.config.code_groups - 1
        draws = [
            np.full(groups, -1.0, np.float32) if s.rng is None else s.rng.random(groups, np.float32)
            for s in speeches
        ]
        return torch.from_numpy(np.stack(draws)).to(self.device)


def _suppressed(config: TalkerConfig, device: torch.device) -> torch.Tensor:
    """Bool (vocab,): all special ids but codec_eos, as in transformers' `generate`."""
    mask = torch.zeros(config.decoder.vocab_size, dtype=torch.bool)
    mask[-SPECIAL_CODES:] = True
    mask[config.codec_eos_id] = False
    return mask.to(device)


def _generator(seed: int | None) -> np.random.Generator:
    """Random numbers that depend on the request's seed alone; fresh ones without a seed."""
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng([seed & (2**64 - 1), PREDICTOR_STREAM])


def _segment_positions(segment: Segment) -> FloatArray:
    """M-RoPE positions (3, count) of a segment's rows."""
    speech: _Speech = segment.seq.state
    if segment.start < len(speech.prompt):
        return speech.positions[:, segment.start : segment.start + segment.count]
    return np.full((3, 1), segment.start + speech.rope_delta, dtype=np.float32)


class TalkerStage:
    """`ARStage`: `Conditioning` in, one codec frame per step to the vocoder."""

    def __init__(self, config: TalkerConfig, defaults: SamplingParams) -> None:
        self._config = config
        self._defaults = defaults

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """See `ARStage`. RequestError if the voice is none of the checkpoint's speakers."""
        given = cast(Conditioning, work.payload)
        speaker_id = self._speaker(work.params.voice)
        outbox.send(work.request_id, {}, target=VOCODER_TARGET)
        if not given["speak"]:
            outbox.stream_done(work.request_id)
            outbox.done(work.request_id)
            return None
        return EngineRequest(
            request_id=work.request_id,
            prompt_len=len(given["user_ids"]) + REPLY_ROWS,
            inputs=TalkerInputs(given, speaker_id),
            params=work.params,
            sampling=self._sampling(work.params),
        )

    def publish(self, request: EngineRequest, output: StepOutput, outbox: Outbox) -> None:
        """See `ARStage`."""
        request_id = request.request_id
        if output.data is not None:
            codes = output.data[:, None]
            outbox.stream(request_id, codes, target=VOCODER_TARGET)
            if request.params.return_codec:
                outbox.emit(request_id, CodecDelta(codes=codes))
        if output.finish_reason is not None:
            outbox.stream_done(request_id)
            outbox.done(request_id, Usage(audio_tokens=output.index))

    def forget(self, request_id: str) -> None:
        """Nothing is kept here."""

    def _speaker(self, voice: str | None) -> int:
        speakers = self._config.speakers
        name = self._config.default_speaker if voice is None else voice.lower()
        if name not in speakers:
            raise RequestError(
                f"voice {voice!r} is unknown; this checkpoint has {', '.join(speakers)}",
                param="voice",
            )
        return speakers[name]

    def _sampling(self, params: RequestParams) -> SamplingParams:
        """The caller's parameters for this stage alone, but the request's seed."""
        mine = params.sampling_for(NAME)
        if mine.seed is None:
            mine = msgspec.structs.replace(mine, seed=params.sampling.seed)
        return mine.over(self._defaults)
