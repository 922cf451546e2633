"""What is said of a request, and how it becomes requests of the engine: one for each utterance.

Knows texts, voices, limits and seeds. Knows nothing of rows, weights or sound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from omni_core.engine.base import EngineRequest
from omni_core.scheduler.base import Work
from omni_core.types import RequestParams, SamplingParams
from omni_ming.payloads import Utterance
from omni_ming.speech_text.front_end import utterances
from omni_ming.talker.prompt import TalkerPrompts
from omni_ming.talker.runner import SpeechInputs
from omni_ming.voices import Voice, Voices, voice_of

FIRST_STOP: Final = 11
"""The stop head is not asked before."""
MAX_PATCHES: Final = 1000
"""Of an utterance, in the authors' loop."""
SECONDS_PER_CHARACTER: Final = 5818 / 16_000
LEAST_S: Final = 2.0
"""An utterance that is longer than its text takes, and than this, has gone astray: it is ended. A
constant of the authors' loop, as is the above."""


class Script(Protocol):
    """The utterances of one request, as they become known."""

    def push(self, data: Any) -> list[Utterance]:
        """Take a chunk; the utterances that are complete now."""

    def flush(self) -> list[Utterance]:
        """No more chunks will come: what is left."""


class Utterances:
    """`Script` of chunks that are an `Utterance` each."""

    def push(self, data: Any) -> list[Utterance]:
        """See `Script`."""
        return [data]

    def flush(self) -> list[Utterance]:
        """See `Script`."""
        return []


class WholeText:
    """`Script` of `SpokenText`, which is cut into utterances when all of it is there."""

    def __init__(self) -> None:
        self._text: list[str] = []

    def push(self, data: Any) -> list[Utterance]:
        """See `Script`."""
        self._text.append(data["text"])
        return []

    def flush(self) -> list[Utterance]:
        """See `Script`."""
        return utterances("".join(self._text))


@dataclass(frozen=True, slots=True)
class Line:
    """One utterance, as it is asked of the engine."""

    request: EngineRequest
    whole_after: int
    """Patches after which the speech is whole whether or not it has stopped."""


class Director:
    """Asks the engine for utterances."""

    def __init__(self, stage: str, prompts: TalkerPrompts, voices: Voices, patch_s: float) -> None:
        """`stage` is what a caller's parameters know the stage by; `patch_s` how long a patch is
        heard."""
        self._stage = stage
        self._prompts = prompts
        self._patch_s = patch_s
        self.voices = voices
        """Those of the weights that are served."""

    def voice(self, work: Work) -> Voice | None:
        """Whose voice a request is spoken with: the one it brings, or one of the checkpoint's.
        RequestError for an unknown name."""
        cloned = work.payload.get("voice")
        return self.voices.get(work.params.voice) if cloned is None else voice_of(cloned)

    def line(
        self, request_id: str, params: RequestParams, voice: Voice | None, text: str, n: int
    ) -> Line:
        """Utterance `n` of a request; ContextLengthError if it can never be spoken in one go."""
        prompt = self._prompts(text, voice)
        mine = params.sampling_for(self._stage)
        longest_s = max(LEAST_S, len(text) * SECONDS_PER_CHARACTER)
        whole_after = math.ceil(longest_s / self._patch_s)
        limits = [whole_after, MAX_PATCHES, *([mine.max_tokens] if mine.max_tokens else [])]
        request = EngineRequest(
            request_id=f"{request_id}/{n}",
            prompt_len=len(prompt.ids),
            inputs=SpeechInputs(
                prompt=prompt,
                voice=voice,
                noise=_generator(mine.seed if mine.seed is not None else params.sampling.seed, n),
                temperature=max(0.0, mine.temperature or 0.0),
            ),
            params=params,
            sampling=SamplingParams(
                temperature=0.0,  # of the tokens, which are the stop head's likelier class
                min_tokens=FIRST_STOP,
                max_tokens=min(limits),
            ),
        )
        return Line(request, whole_after)


def _generator(seed: int | None, n: int) -> np.random.Generator:
    """Numbers that depend on the request's seed and the utterance's place alone; fresh ones without
    a seed."""
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng([seed & (2**64 - 1), n])
