"""The Talker's input rows: what conditions a reply, and the feedback from one frame to the next.

Knows conditioning, spoken text, codec codes and the code predictor. Knows nothing of the Talker's
own layers or of the engine that runs them, of how code 0 is sampled, nor of audio.

One frame is one engine step: the engine samples code 0, the predictor draws the other groups for
all sequences at once, and the next input row is the sum of the frame's embeddings plus a text row.
The row before the first frame is made in the same way, of the mark codec_bos and the first spoken
token, and waits for this as the others do: the rest of the prompt is computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omni_core.checkpoint.weights import Weights
from omni_core.engine.base import KVSpec, Segment
from omni_core.engine.base import Sequence as EngineSequence
from omni_core.engine.common.sampling import RowSampling
from omni_core.engine.common.transfer import upload
from omni_core.steps import StepBank
from omni_core.types import FloatArray, IntArray
from omni_qwen3.config import OmniConfig, TalkerConfig
from omni_qwen3.model.layers import ResizeMlp
from omni_qwen3.model.predictor import CodePredictor
from omni_qwen3.payloads import Conditioning
from omni_qwen3.preprocess.rope import rope_index
from omni_qwen3.talker_stage import REPLY_ROWS, TalkerInputs

THINKER_EMBEDDINGS = "thinker.model.embed_tokens.weight"
EMBEDDINGS = "talker.model.codec_embedding.weight"
"""Of code 0, and of the marks beside the prompt's last rows."""
PREFIXES = (
    EMBEDDINGS,
    "talker.text_projection.",
    "talker.hidden_projection.",
    "talker.code_predictor.",
)
"""What `TalkerRows` reads of a checkpoint; the rest of the Talker is its decoder and head."""
SPECIAL_CODES = 1024
"""The last ids of the Talker's vocabulary are no codes; of them only codec_eos may be sampled."""
PREDICTOR_STREAM = 1
"""Keeps the predictor's random numbers apart from code 0's, which come from the same seed."""


@dataclass(slots=True, kw_only=True)
class Speech:
    """`Sequence.state`: the rows of one reply, as far as they are known."""

    rows: torch.Tensor
    """(R, D): the prompt without its last row, and after a retraction the replies' rows before the
    newest."""
    positions: FloatArray
    """(3, R)."""
    rope_delta: float
    rng: np.random.Generator | None
    """Draws the predictor's codes; None is greedy."""
    codes: list[IntArray] = field(default_factory=list)
    """(G,) int16 of each frame so far, a copy of its own: 32 bytes."""
    text: list[torch.Tensor] = field(default_factory=list)
    """Text row (D,) of each reply row: the spoken tokens."""
    text_ended: bool = False
    retracted: bool = False
    """Its reply rows are to be made anew; only where that waits for their text."""


class TalkerRows:
    """The methods of runners that are about requests; subclasses have to do with the decoder.

    The Talker's KV is never shared: what conditions the prompt are hidden states and a reply's
    first token, so that two prompts are hardly ever the same.
    """

    feedback = True
    prefix_cache = False
    lookahead = False

    def __init__(
        self, weights: Weights, config: OmniConfig, marks: torch.Tensor, bank: StepBank
    ) -> None:
        """`marks` (3, H) are `tts_marks`. `bank` may make
        the predictor's steps faster."""
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
            _projection(weights, source, talker) for source in ("text", "hidden")
        )
        self._embeddings = weights.tensor(EMBEDDINGS, (decoder.vocab_size, decoder.hidden_size))
        self._predictor = CodePredictor(
            weights, "talker.code_predictor.", talker.predictor, talker.code_groups, bank
        )
        self._newest = self._embeddings.new_zeros(0, decoder.hidden_size)
        self._beginning = self._embeddings[talker.codec_bos_id]
        self.parts = weights.parts
        """What new weights are copied into; `renew` is to follow."""
        self._marks = marks
        self._spoken = self._project_text(marks.to(self.device, self.dtype))
        self._tts_bos, self._tts_eos, self._tts_pad = self._spoken.unbind()

    def renew(self) -> None:
        """Make anew what was made of weights that have changed."""
        self._spoken.copy_(self._project_text(self._marks.to(self.device, self.dtype)))

    def make_room(self, rows: int) -> None:
        """Keep the next input of so many rows, but for its text: the sum of the embeddings of the
        newest frame's codes."""
        self._newest = self._newest.new_zeros(rows, self._newest.shape[1])

    def open(self, seq: EngineSequence) -> None:
        """Project the conditioning into the Talker's prompt; see `ARRunner`. `place` is to follow
        once the sequence has its row."""
        inputs: TalkerInputs = seq.request.inputs
        sampling = seq.request.sampling
        greedy = RowSampling(temperature=sampling.temperature or 0.0).greedy
        positions, rope_delta = self._positions(inputs.conditioning)
        seq.state = Speech(
            rows=self._prompt(inputs),
            positions=positions,
            rope_delta=float(np.float32(rope_delta)),
            rng=None if greedy else _generator(sampling.seed),
        )

    def recall(self, seq: EngineSequence, count: int) -> None:
        """Add the first `count` reply rows, whose text has come, to the rows of the prompt, made
        from their codes: the same numbers, for they are added in the same order."""
        speech: Speech = seq.state
        first = seq.request.prompt_len - 1
        made = [self._beginning, *self._frames(speech.codes[: max(count - 1, 0)])][:count]
        rows = [row + self._text_row(speech, index) for index, row in enumerate(made)]
        line = np.arange(first, first + count, dtype=np.float32) + np.float32(speech.rope_delta)
        lines = np.broadcast_to(line, (3, count))
        speech.rows = torch.cat([speech.rows[:first], *(row[None] for row in rows)])
        speech.positions = np.concatenate([speech.positions[:, :first], lines], axis=1)

    def place(self, seq: EngineSequence) -> None:
        """Put the next input into the sequence's row, which is a new one."""
        codes = seq.state.codes
        self._newest[seq.row] = self._frames(codes[-1:])[0] if codes else self._beginning

    def feed(self, seq: EngineSequence, chunk: Any) -> None:
        """Take the rows (n, H) of more spoken tokens, or None: all of them have come."""
        speech: Speech = seq.state
        if chunk is None:
            speech.text_ended = True
        else:
            rows = torch.as_tensor(chunk["rows"]).to(self.device, self.dtype)
            speech.text += self._project_text(rows).unbind()

    def ready(self, seq: EngineSequence) -> bool:
        """Whether the text of the next reply row is known."""
        speech: Speech = seq.state
        return speech.text_ended or len(speech.codes) < len(speech.text)

    def collect(
        self, seqs: list[EngineSequence], hidden: torch.Tensor, finished: list[bool]
    ) -> list[Any]:
        """The frame int64 (G,) of each sequence that goes on; None for one that ends, whose last
        code 0 never becomes a frame."""
        going = [index for index, done in enumerate(finished) if not done]
        frames: list[Any] = [None] * len(seqs)
        if not going:
            return frames
        speeches: list[Speech] = [seqs[index].state for index in going]
        first = upload([seqs[index].tokens[-1] for index in going], self.device)
        embedding = F.embedding(first, self._embeddings)
        rows = hidden if len(going) == len(seqs) else hidden[going]
        predicted = self._predictor(rows, first, embedding, self._uniforms(speeches))
        places = upload([seqs[index].row for index in going], self.device)
        self._newest.index_copy_(0, places, predicted.embedding + embedding)
        codes = predicted.codes.cpu().numpy()
        for index, speech, frame in zip(going, speeches, codes, strict=True):
            speech.codes.append(frame.astype(np.int16))
            frames[index] = frame
        return frames

    def text(self, token_ids: list[int]) -> str:
        """Codes have no text, so stop strings never match."""
        return ""

    def close(self, seq: EngineSequence) -> None:
        """Drop the rows."""
        seq.state = None

    def reply_rows(self, segments: Sequence[Segment], rows: torch.Tensor) -> torch.Tensor:
        """Reply rows (N, D) of decode segments, whose `Sequence.row` are `rows` (N,): the newest
        frames, and their text."""
        newest = self._newest.index_select(0, rows)
        if not segments:
            return newest
        texts = [
            self._text_row(s.seq.state, s.start + 1 - s.seq.request.prompt_len) for s in segments
        ]
        return newest.add_(torch.stack(texts))

    def _frames(self, codes: list[IntArray]) -> torch.Tensor:
        """The sum of the embeddings (F, D) of each frame, from its codes."""
        if not codes:
            return self._newest[:0]
        stacked = torch.from_numpy(np.stack(codes).astype(np.int64)).to(self.device)
        return self._predictor.embed(stacked) + F.embedding(stacked[:, 0], self._embeddings)

    def _text_row(self, speech: Speech, index: int) -> torch.Tensor:
        if index < len(speech.text):
            return speech.text[index]
        return self._tts_eos if index == len(speech.text) else self._tts_pad

    def _prompt(self, inputs: TalkerInputs) -> torch.Tensor:
        """(U + 8, D) rows: the user turns, then text and codec marks of the reply's head, added."""
        given, config = inputs.conditioning, self.config
        user, head = (
            torch.as_tensor(rows).to(self.device, self.dtype)
            for rows in (given["user_rows"], given["assistant_rows"])
        )
        is_media = torch.as_tensor(given["user_is_media"]).to(self.device)
        projected = self._project_text(torch.cat([user, head]))
        turns, reply = projected.split_with_sizes([len(user), len(head)])
        if len(media := is_media.nonzero()[:, 0]):
            turns[media] = self._project_hidden(user[media])
        pads = self._tts_pad.expand(4, -1)
        text = torch.cat([reply, pads, self._tts_bos[None]])
        marks = [
            config.codec_nothink_id,
            config.codec_think_bos_id,
            config.codec_think_eos_id,
            inputs.speaker_id,
            config.codec_pad_id,
        ]
        text[3:] += F.embedding(torch.tensor(marks, device=self.device), self._embeddings)
        return torch.cat([turns, text])

    def _positions(self, given: Conditioning) -> tuple[FloatArray, float]:
        """M-RoPE positions of the prompt without its last row, and what to add to the number of a
        later row.

        Without `use_audio_in_video`, whatever the request says, because transformers never passes
        it on to its Talker.
        """
        ids = np.concatenate([given["user_ids"], [self._tts_pad_token_id] * (REPLY_ROWS - 1)])
        return rope_index(
            ids,
            image_grid_thw=given.get("image_grid_thw"),
            video_grid_thw=given.get("video_grid_thw"),
            second_per_grid=given.get("second_per_grid"),
            audio_lengths=given.get("audio_lengths"),
            use_audio_in_video=False,
            config=self.config.positions,
        )

    def _uniforms(self, speeches: list[Speech]) -> torch.Tensor | None:
        """Random numbers (B, G - 1) for `CodePredictor`; -1 where a request is greedy."""
        if all(speech.rng is None for speech in speeches):
            return None
        groups = self.config.code_groups - 1
        draws = [
            np.full(groups, -1.0, np.float32) if s.rng is None else s.rng.random(groups, np.float32)
            for s in speeches
        ]
        return torch.from_numpy(np.stack(draws)).to(self.device)


def tts_marks(weights: Weights, config: OmniConfig) -> torch.Tensor:
    """Thinker embeddings (3, H) of tts_bos, tts_eos and tts_pad."""
    ids = (config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id)
    return weights.rows(THINKER_EMBEDDINGS, ids)


def _projection(weights: Weights, source: str, config: TalkerConfig) -> ResizeMlp:
    """From Thinker space: of embeddings ("text") or of `accept_hidden_layer` states ("hidden")."""
    return ResizeMlp.load(
        weights,
        f"talker.{source}_projection.",
        config.thinker_hidden_size,
        config.decoder.intermediate_size,
        config.decoder.hidden_size,
    )


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
