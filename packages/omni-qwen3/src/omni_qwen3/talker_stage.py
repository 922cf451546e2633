"""What the talker_ar stage makes of requests: a prompt for the Talker in, codec frames out.

Knows voices, sampling parameters and the vocoder's stream. Knows nothing of rows or weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import msgspec

from omni_core.engine.base import EngineRequest, StepOutput
from omni_core.errors import RequestError
from omni_core.scheduler.base import Outbox, Work
from omni_core.types import CodecDelta, Modality, RequestParams, SamplingParams, Usage
from omni_qwen3.config import TalkerConfig
from omni_qwen3.payloads import Conditioning

NAME = "talker_ar"
VOCODER_TARGET = "code2wav"
REPLY_ROWS = 9
"""Rows of the prompt after the user turns: three of the reply's head, four tts_pad, tts_bos and the
first spoken token, which the Thinker has yet to find."""


FRAMES_PER_TOKEN = 16
"""At most, of a text to read aloud: 1.3 seconds for what mostly takes a third of one."""


@dataclass(frozen=True, slots=True)
class TalkerInputs:
    """`EngineRequest.inputs` of this stage."""

    conditioning: Conditioning
    speaker_id: int
    """Codec token of the voice."""


class TalkerStage:
    """`ARStage`: `Conditioning` in, one codec frame per step to the vocoder."""

    def __init__(self, config: TalkerConfig, defaults: SamplingParams) -> None:
        self._config = config
        self._defaults = defaults
        self._silent: set[str] = set()
        """Requests of which no spoken token is known yet."""

    def admit(self, work: Work, outbox: Outbox) -> EngineRequest | None:
        """See `ARStage`. RequestError if the voice is none of the checkpoint's speakers."""
        given = cast(Conditioning, work.payload)
        speaker_id = self._speaker(work.params.voice)
        outbox.send(work.request_id, {}, target=VOCODER_TARGET)
        if not given["speak"]:
            outbox.stream_done(work.request_id)
            outbox.done(work.request_id)
            return None
        self._silent.add(work.request_id)
        return EngineRequest(
            request_id=work.request_id,
            prompt_len=len(given["user_ids"]) + REPLY_ROWS,
            open_prompt=True,
            inputs=TalkerInputs(given, speaker_id),
            params=work.params,
            sampling=self._sampling(work.params, given.get("reading", 0)),
        )

    def hear(self, request: EngineRequest, chunk: object, outbox: Outbox) -> bool:
        """See `ARStage`; a reply may end before anything of it was to be spoken."""
        request_id = request.request_id
        if chunk is None and request_id in self._silent:
            outbox.stream_done(request_id)
            outbox.done(request_id)
            return False
        self._silent.discard(request_id)
        return True

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
            cut: Modality | None = "audio" if output.finish_reason == "length" else None
            outbox.done(request_id, Usage(audio_tokens=output.index), cut=cut)

    def forget(self, request_id: str) -> None:
        """See `ARStage`."""
        self._silent.discard(request_id)

    def _speaker(self, voice: str | None) -> int:
        speakers = self._config.speakers
        name = self._config.default_speaker if voice is None else voice.lower()
        if name not in speakers:
            raise RequestError(
                f"voice {voice!r} is unknown; this checkpoint has {', '.join(speakers)}",
                param="voice",
            )
        return speakers[name]

    def _sampling(self, params: RequestParams, reading: int) -> SamplingParams:
        """The caller's parameters for this stage alone, but the request's seed.

        The end token has no sound: whoever ignores it may not draw it. A text to read of so many
        tokens is not cut because the checkpoint expects replies to be shorter.
        """
        mine = params.sampling_for(NAME)
        if mine.seed is None:
            mine = msgspec.structs.replace(mine, seed=params.sampling.seed)
        sampling = mine.over(self._defaults)
        if reading and mine.max_tokens is None:
            most = max(sampling.max_tokens or 0, FRAMES_PER_TOKEN * reading)
            sampling = msgspec.structs.replace(sampling, max_tokens=most)
        if sampling.ignore_eos:
            return msgspec.structs.replace(
                sampling, ignore_eos=False, min_tokens=sampling.max_tokens
            )
        return sampling
